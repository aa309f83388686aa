# SPDX-License-Identifier: Apache-2.0
"""The place of the admin process: one that cannot start is given up, and the service goes on."""

import asyncio
import socket
from pathlib import Path

import pytest

from rollout_router.admin.config import AdminConfig
from rollout_router.serve import admin_slot
from rollout_router.serve.admin_slot import AdminSlot
from rollout_router.serve.child import Child

CONFIG = AdminConfig(state_dir="/nowhere", host="127.0.0.1", url="http://x", token="t0ken")  # noqa: S106 - of a test


def test_an_admin_process_that_cannot_start_is_said_and_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(admin_slot, "EARLY_EXITS_MAX", 1)  # each takes an interpreter's start
    monkeypatch.setattr(admin_slot, "BACKOFF_S", (0.0,))
    said: list[str] = []
    config = AdminConfig(
        state_dir=str(tmp_path / "none"), host="127.0.0.1", url="http://x", token=CONFIG.token
    )
    listener = socket.create_server(("127.0.0.1", 0))
    slot = AdminSlot(config, listener, shown="http://x", say=said.append)

    asyncio.run(slot.keep(lambda: said.append("ready")))

    assert [line.split(" ", 3)[-1] for line in said[:-1]] == ["exited with code 1"]
    assert said[-1].endswith("the service goes on without one")
    assert listener.fileno() == -1


def test_one_that_cannot_be_made_counts_as_one_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise OSError("no descriptor")

    monkeypatch.setattr(admin_slot, "BACKOFF_S", (0.0,))
    monkeypatch.setattr(Child, "start", refuse)
    said: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    asyncio.run(AdminSlot(CONFIG, listener, shown="", say=said.append).keep(lambda: None))
    assert len(said) == 4
    assert "cannot be started" in said[0]


def test_a_token_is_not_shown_by_accident() -> None:
    assert "t0ken" not in repr(CONFIG)
