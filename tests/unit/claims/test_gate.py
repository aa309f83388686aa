# SPDX-License-Identifier: Apache-2.0
"""The gate file (R6)."""

import errno
import os
from pathlib import Path

import pytest

from rollout_router.claims import (
    WHY_LENGTH_MAX,
    FileClaimStore,
    Gate,
    StoreUnavailable,
    read_gate,
    write_gate,
)


def test_r6_a_missing_gate_is_open(state_dir: Path) -> None:
    assert read_gate(state_dir) == Gate(open=True)


@pytest.mark.parametrize("is_open", [True, False])
def test_r6_a_gate_says_what_was_written(store: FileClaimStore, *, is_open: bool) -> None:
    gate = Gate(open=is_open, by="ada", why="an upgrade")
    write_gate(store.state_dir, Gate(open=not is_open))
    write_gate(store.state_dir, gate)

    assert read_gate(store.state_dir) == gate


@pytest.mark.parametrize("letter", ["a", "é", "\N{GRINNING FACE}"])
def test_r6_a_reason_may_be_as_long_as_its_bound_in_any_letters(
    store: FileClaimStore, letter: str
) -> None:
    gate = Gate(open=False, by="operator", why=letter * WHY_LENGTH_MAX)
    write_gate(store.state_dir, gate)

    assert read_gate(store.state_dir) == gate
    with pytest.raises(ValueError, match=f"at most {WHY_LENGTH_MAX} characters"):
        write_gate(store.state_dir, Gate(open=False, by="operator", why=gate.why + letter))
    assert read_gate(store.state_dir) == gate


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"v":1,"open":true,"by":"","why":""}', id="by hand"),
        pytest.param(b"x" * 5000, id="large"),
    ],
)
def test_r6_an_unreadable_gate_is_closed_and_says_so(store: FileClaimStore, raw: bytes) -> None:
    (store.state_dir / "gate").write_bytes(raw)

    gate = read_gate(store.state_dir)

    assert not gate.open
    assert "unreadable" in gate.why


def test_r6_a_gate_that_is_no_file_is_closed(store: FileClaimStore) -> None:
    (store.state_dir / "gate").mkdir()

    assert not read_gate(store.state_dir).open


def test_c7_a_gate_that_cannot_be_written_stays_as_it_was(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Gate(open=False, by="ada", why="an upgrade")
    write_gate(store.state_dir, closed)
    before = sorted(store.state_dir.iterdir())

    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="EDQUOT"):
        write_gate(store.state_dir, Gate(open=True))

    assert read_gate(store.state_dir) == closed
    assert sorted(store.state_dir.iterdir()) == before
