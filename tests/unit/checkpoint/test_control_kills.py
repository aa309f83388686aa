# SPDX-License-Identifier: Apache-2.0
"""A command of a checkpoint that is killed at any of its steps, and then said again by another."""

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.deployment import Clock, Deployment
from support.folders import private_folder

from rollout_router.checkpoint.archive import list_archives, read_archive
from rollout_router.checkpoint.database import Database
from rollout_router.checkpoint.restoring import kept_in
from rollout_router.claims import FileClaimStore

CHANGES = ("INSERT", "UPDATE", "DELETE", "COMMIT")
FILES = {"os.mkdir", "os.rename", "os.link", "os.remove"}
STRIDE = 7
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def prepare(place: Deployment) -> None:
    place.prepare()


def commit(place: Deployment) -> None:
    place.commit()


def resume(place: Deployment) -> None:
    place.checkpoints.resume("c1")


def restore(place: Deployment) -> None:
    place.restore()


VERBS: dict[str, tuple[list[Callable[[Deployment], None]], Callable[[Deployment], None], set[str]]]
VERBS = {  # what came before, what is killed, and the phases in which that may leave it
    "prepare": ([], prepare, {"preparing", "prepared"}),
    "prepare again": ([prepare], prepare, {"preparing", "prepared"}),
    "commit": ([prepare], commit, {"prepared", "committed"}),
    "abort": ([prepare], resume, {"prepared", "abandoned"}),
    "resume": ([prepare, commit], resume, {"committed", "resumed"}),
    "restore": ([], restore, {"restoring", "restored"}),
    "resume a restore": ([restore], resume, {"restored", "resumed"}),
}


def die_at(nth: int) -> None:
    """Have this process killed before its *nth* step that a file could tell of."""
    steps, sync, connect = count(1), os.fsync, Database._connect

    def happens() -> None:
        if next(steps) == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: Any) -> None:
        if event in FILES or (event == "open" and arguments[2] & WRITES):
            happens()

    def synced(fd: Any) -> None:
        happens()
        sync(fd)

    def connected(self: Database) -> Any:
        connection = connect(self)
        connection.set_trace_callback(lambda sql: happens() if sql.startswith(CHANGES) else None)
        return connection

    os.fsync = synced
    Database._connect = connected  # type: ignore[method-assign]
    sys.addaudithook(audit)


class Stage:
    """Folders that are as they were before, for one kill after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.gate = folder / "store" / "gate"
        self.was: bytes | None = None  # in the gate, before the kill
        for name in ("store", "fresh store"):
            FileClaimStore.open(folder / name, service="agent")
        with self.opened("before") as place:
            place.play("open", 2)
            place.play("waiting", 1, ends=True)
            place.play("taken", 1, ends=True)
            place.acknowledge("taken")

    def opened(self, name: str, store: str = "store") -> "closing[Deployment]":
        """The deployment in a folder of this name; archives are those of "now" but at first."""
        archives = self.folder / ("now" if name == "fresh" else name) / "archives"
        return closing(
            Deployment(
                self.folder / name,
                state=self.folder / store,
                archives=archives,
                clock=self.clock,
            )
        )

    def copy(self, name: str, to: str) -> None:
        shutil.rmtree(self.folder / to, ignore_errors=True)
        shutil.copytree(self.folder / name, self.folder / to)

    def die(self, work: Callable[[Deployment], None], nth: int) -> bool:
        """Do *work* on "now" in a process that is killed; False: it came to its end."""
        if not (child := os.fork()):
            code = 1
            try:
                with self.opened("now") as place:
                    die_at(nth)
                    work(place)
                    code = 0
            finally:
                os._exit(code)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in (0, -signal.SIGKILL)
        return ended != 0


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with private_folder() as folder:
        yield Stage(folder)


def manifest_of(place: Deployment) -> Any:
    """The manifest, which verifies, or None where there is none."""
    listed = list_archives(place.archives, "agent")
    assert {one.code for one in listed} <= {None, "manifest_missing"}
    return next((one.manifest for one in listed), None)


def check_restores(stage: Stage, first: Deployment) -> None:
    """O6, O8: what is committed can be brought back elsewhere, and all of it goes on."""
    archive = read_archive(first.archives, instance="agent", run="run-1", checkpoint_id="c1")
    kept = {one.rollout.rollout_id: one for one in kept_in(archive)}
    assert {name for name, one in kept.items() if one.kind == "open"} == {"open"}
    assert not any(first.outbox(name) for name, one in kept.items() if one.kind == "open")
    shutil.rmtree(stage.folder / "fresh", ignore_errors=True)
    (stage.folder / "fresh store" / "gate").unlink(missing_ok=True)
    with stage.opened("fresh", "fresh store") as fresh:
        fresh.restore()
        fresh.check_gate()
        fresh.checkpoints.resume("c1")
        assert fresh.rows("open") == kept["open"].rows
        assert fresh.play("open", 3, ends=True) == ["open 0", "open 1", "open 2"]
        assert [line for _, line in fresh.notebook.applied] == ["open 2"]


def staged(stage: Stage, name: str) -> None:
    """Make "staged", and the gate, what the command that is killed finds."""
    before, verb, _ = VERBS[name]
    stage.gate.unlink(missing_ok=True)
    stage.copy("before", "now")
    if restore in (*before, verb):
        with stage.opened("now") as place:
            place.taken()
        for file in ("journal", "environments"):
            (stage.folder / "now" / file).unlink()
    with stage.opened("now") as place:
        for step in before:
            step(place)
    stage.copy("now", "staged")
    stage.was = stage.gate.read_bytes() if stage.gate.exists() else None


def check_repeat(stage: Stage, name: str, place: Deployment) -> None:
    """The phases are those of the table, and the same command goes on from each of them."""
    _, verb, left = VERBS[name]
    phases, manifest = place.phases, manifest_of(place)
    assert set(phases.values()) <= left
    if verb is commit:
        assert (manifest is not None) == (phases == {"c1": "committed"})
    for step in (verb, *(commit,) * (verb is prepare), resume):
        step(place)
        place.check_gate()  # O5
        assert manifest is None or manifest_of(place) == manifest
    if name == "abort":
        assert manifest_of(place) is None
    else:
        check_restores(stage, place)
    assert place.play("open", 3, ends=True) == ["open 0", "open 1", "open 2"]


@pytest.mark.parametrize(
    "offset", [1, *(pytest.param(one, marks=pytest.mark.long) for one in range(2, STRIDE + 1))]
)
@pytest.mark.parametrize("name", VERBS)
def test_a_command_killed_anywhere_is_whole_or_absent_and_its_repeat_ends_it(
    stage: Stage, name: str, offset: int
) -> None:
    staged(stage, name)
    for nth in count(offset, STRIDE):
        stage.copy("staged", "now")
        stage.gate.unlink(missing_ok=True)
        if stage.was is not None:
            stage.gate.write_bytes(stage.was)
        died = stage.die(VERBS[name][1], nth)
        with stage.opened("now") as place:
            check_repeat(stage, name, place)
        if not died:
            break
    assert nth > STRIDE or offset > 1
