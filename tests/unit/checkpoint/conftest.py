# SPDX-License-Identifier: Apache-2.0
"""Journals and deployments for the tests of checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.deployment import Deploy, Deployment
from support.folders import private_folder
from support.recording import journal_in

from rollout_router.checkpoint import run
from rollout_router.checkpoint.journal import Journal
from rollout_router.claims import FileClaimStore


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits before an operation is tried again, but as long as its server asks for."""
    monkeypatch.setattr(run, "_PAUSE_S_MIN", 0.0)


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    """A new journal, in a folder of its own."""
    journal = journal_in(folder)
    yield journal
    journal.close()


@pytest.fixture(scope="module")
def stores() -> Iterator[list[Path]]:
    """Two claim stores for all: one has hundreds of files."""
    with private_folder() as folder:
        for name in ("a", "b"):
            FileClaimStore.open(folder / name, service="agent")
        yield [folder / "a", folder / "b"]


@pytest.fixture
def deploy(folder: Path, stores: list[Path]) -> Iterator[Deploy]:
    """Makes deployments that share archives; "new", "middle" and "other" have the second store."""
    made: list[Deployment] = []
    for store in stores:
        (store / "gate").unlink(missing_ok=True)

    def one(name: str = "old", **settings: Any) -> Deployment:
        state = stores[name in ("new", "middle", "other")]
        settings = {"archives": folder / "archives", "state": state, **settings}
        made.append(Deployment(folder / name, **settings))
        return made[-1]

    yield one
    for each in made:
        each.close()
