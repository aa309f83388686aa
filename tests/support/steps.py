# SPDX-License-Identifier: Apache-2.0
"""The operations of the claims room one by one, and a fault point before each call they make.

A fault point is named by the Python function that asks the kernel. The same operations run in
processes that are killed (``test_crash.py``) and under errors (``test_errno.py``), and the same
:func:`settle` finds afterwards that nothing was lost: it is what a fresh worker would do.
"""

import builtins
import contextlib
import fcntl
import io
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Grant,
    LifeLock,
    Owner,
    ProofOfDeath,
    Swept,
    new_nonce,
    stripe_of,
    sweep,
)

__all__ = [
    "NEIGHBOUR",
    "OPERATIONS",
    "READS",
    "Act",
    "Operation",
    "Scene",
    "new_worker",
    "nothing_is_locked",
    "regain",
    "settle",
    "stepping",
    "swept",
    "temporary_files",
]


def _beside(rollout_id: str, letter: str) -> str:
    """An id of the same stripe."""
    ids = (f"{letter}{number}" for number in itertools.count())
    return next(each for each in ids if stripe_of(each) == stripe_of(rollout_id))


ROLLOUT: Final = "r1"
SESSION: Final = _beside(ROLLOUT, "s")
NEIGHBOUR: Final = _beside(ROLLOUT, "n")
"""A rollout that a living worker owns all the while."""

_CALLS: Final[dict[Any, str]] = {
    os: "open close read write pwrite fsync stat lstat fstat rename unlink mkdir listdir fchmod",
    fcntl: "flock",
    builtins: "open",
    io: "open",
}


READS: Final = frozenset({"stat", "lstat", "fstat", "listdir", "read"})
"""Calls that change neither the disk nor a lock: before and after them a kill leaves the same."""


@contextmanager
def stepping(fault: Callable[[int, str], OSError | None]) -> Iterator[list[str]]:
    """Call *fault* with number (from 1) and name of each call, before it is made.

    The call fails with the error that *fault* returns. A ``close`` fails as the kernel's does: the
    descriptor is gone all the same.

    Yields:
        The names of the calls so far.
    """
    names: list[str] = []

    def broken(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            names.append(name)
            if (error := fault(len(names), name)) is None:
                return real(*arguments, **named)
            if name == "close":
                real(*arguments)
            raise error

        return call

    with contextlib.ExitStack() as undo:
        for module, functions in _CALLS.items():
            for name in functions.split():
                real = getattr(module, name)
                undo.callback(setattr, module, name, real)
                setattr(module, name, broken(name, real))
        yield names


def new_worker(store: FileClaimStore, run_dir: Path) -> LifeLock:
    """A worker with a life lock and the file of a socket."""
    nonce = new_nonce()
    path = f"{run_dir}/{nonce}.sock"
    life = LifeLock.acquire(store, nonce=nonce, socket=path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
    return life


@dataclass(slots=True, kw_only=True)
class Scene:
    """A store, and the worker that does the operation."""

    store: FileClaimStore
    run_dir: Path
    owner: Owner
    highest: int = 0  # of the epochs that were granted in it

    def granted(self, rollout_id: str, owner: Owner, *, session: bool = False) -> Grant:
        grant = self.store.take(rollout_id, owner, kind="session" if session else "rollout")
        assert isinstance(grant, Grant)
        self.highest = max(self.highest, grant.claim.claim_epoch)
        return grant

    def taken(self, rollout_id: str, seen: Claim | None) -> Grant:
        """The rollout, whoever had it: nobody, this worker, or one that is dead."""
        if seen and seen.state == "owned" and seen.owner != self.owner:
            proof = self.store.proof_of_death(seen.owner)
            assert proof
            if seen.kind == "rollout":
                grant = self.store.take_over(seen, self.owner, proof)
                assert isinstance(grant, Grant)
                self.highest = grant.claim.claim_epoch
                return grant
            assert self.store.reap(seen, proof)
            seen = self.store.read(rollout_id)
        if seen and seen.state == "lost":
            assert self.store.forget(seen)
        return self.granted(rollout_id, self.owner)

    def left(self, rollout_id: str, *, session: bool = False) -> tuple[Claim, ProofOfDeath]:
        """A claim of a worker that died, and the proof."""
        dead = new_worker(self.store, self.run_dir)
        claim = self.granted(rollout_id, dead.owner, session=session).claim
        dead.close()
        proof = self.store.proof_of_death(claim.owner)
        assert proof
        return claim, proof

    def standing(self, rollout_id: str) -> str:
        claim = self.store.read(rollout_id)
        if claim is None or claim.state == "lost":
            return "free" if claim is None else "lost"
        return "mine" if claim.owner == self.owner else "another's"


Act = Callable[[], object]


def _take(scene: Scene) -> Act:
    return lambda: scene.store.take(ROLLOUT, scene.owner)


def _take_again(scene: Scene) -> Act:
    scene.granted(ROLLOUT, scene.owner)
    return _take(scene)


def _take_over(scene: Scene) -> Act:
    seen, proof = scene.left(ROLLOUT)
    return lambda: scene.store.take_over(seen, scene.owner, proof)


def _release(scene: Scene) -> Act:
    grant = scene.granted(ROLLOUT, scene.owner)
    return lambda: scene.store.release(grant)


def _lose(scene: Scene) -> Act:
    grant = scene.granted(SESSION, scene.owner, session=True)
    return lambda: scene.store.lose(grant, reason="leaving")


def _reap(scene: Scene) -> Act:
    seen, proof = scene.left(ROLLOUT)
    return lambda: scene.store.reap(seen, proof)


def _reap_session(scene: Scene) -> Act:
    seen, proof = scene.left(SESSION, session=True)
    return lambda: scene.store.reap(seen, proof)


def _forget(scene: Scene) -> Act:
    scene.store.lose(scene.granted(SESSION, scene.owner, session=True), reason="leaving")
    tombstone = scene.store.read(SESSION)
    assert tombstone
    return lambda: scene.store.forget(tombstone)


def _force(scene: Scene) -> Act:
    epoch = scene.granted(ROLLOUT, scene.owner).claim.claim_epoch
    return lambda: scene.store.force(ROLLOUT, expect_epoch=epoch, reason="test")


def _force_session(scene: Scene) -> Act:
    epoch = scene.granted(SESSION, scene.owner, session=True).claim.claim_epoch
    return lambda: scene.store.force(SESSION, expect_epoch=epoch, reason="test")


def _sweep(scene: Scene) -> Act:
    """Over all that dead workers can leave."""
    scene.left(ROLLOUT)
    scene.left(SESSION, session=True)
    for part in ("owners", f"claims/{stripe_of(ROLLOUT)}"):
        (scene.store.state_dir / part / ".tmp.left").touch()
    return lambda: swept(scene.store)


def _come_and_go(scene: Scene) -> Act:
    path = f"{scene.run_dir}/come.sock"
    return lambda: LifeLock.acquire(scene.store, nonce=new_nonce(), socket=path).close(remove=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation, and what stands before and after it."""

    prepare: Callable[[Scene], Act]
    rollout: tuple[str, str] = ("free", "free")
    session: tuple[str, str] = ("free", "free")

    def standing(self, *, done: bool) -> dict[str, str]:
        return {ROLLOUT: self.rollout[done], SESSION: self.session[done]}


OPERATIONS: Final = {
    "take": Operation(prepare=_take, rollout=("free", "mine")),
    "take_again": Operation(prepare=_take_again, rollout=("mine", "mine")),
    "take_over": Operation(prepare=_take_over, rollout=("another's", "mine")),
    "release": Operation(prepare=_release, rollout=("mine", "free")),
    "lose": Operation(prepare=_lose, session=("mine", "lost")),
    "reap": Operation(prepare=_reap, rollout=("another's", "free")),
    "reap_session": Operation(prepare=_reap_session, session=("another's", "lost")),
    "forget": Operation(prepare=_forget, session=("lost", "free")),
    "force": Operation(prepare=_force, rollout=("mine", "free")),
    "force_session": Operation(prepare=_force_session, session=("mine", "lost")),
    "come_and_go": Operation(prepare=_come_and_go),
    "sweep": Operation(
        prepare=_sweep, rollout=("another's", "free"), session=("another's", "lost")
    ),
}


def swept(store: FileClaimStore) -> Swept:
    """A sweep that keeps every tombstone."""
    return sweep(store, now=datetime.now(UTC), tombstone_age_max=timedelta(days=1))


def regain(scene: Scene) -> None:
    """What the next worker does: take whatever stands, higher than ever (C2), and give it back."""
    for rollout_id in (ROLLOUT, SESSION):
        seen = scene.store.read(rollout_id)
        scene.highest = max(scene.highest, seen.claim_epoch if seen else 0)
        before, grant = scene.highest, scene.taken(rollout_id, seen)
        assert grant.claim.claim_epoch > before
        assert scene.store.release(grant)


def settle(scene: Scene) -> None:
    """Regain all, sweep, and find that nothing is left: neither file nor socket nor lock.

    Alive are the owners of *scene* and of the neighbour, and nobody else.
    """
    store, neighbour = scene.store, scene.store.read(NEIGHBOUR)
    assert neighbour
    regain(scene)
    found = swept(store)
    assert (found.unreadable, found.failed, found.whole) == ((), (), True)
    path = Path(store.path_of(NEIGHBOUR))
    assert _names(path.parent) == {path.name}
    assert store.read(NEIGHBOUR) == neighbour
    assert temporary_files(store) == []
    living = {scene.owner.nonce, neighbour.owner.nonce}
    assert _names(store.state_dir / "owners") == living
    assert {name.removesuffix(".sock") for name in _names(scene.run_dir)} <= living
    nothing_is_locked(store)


def nothing_is_locked(store: FileClaimStore) -> None:
    """None of the locks that the operations take is held."""
    for name in (stripe_of(ROLLOUT), "format"):
        with (store.state_dir / "locks" / name).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def temporary_files(store: FileClaimStore) -> list[str]:
    """In the directories that the operations write to."""
    parts = (".", "owners", "epochs", f"claims/{stripe_of(ROLLOUT)}")
    return [n for part in parts for n in _names(store.state_dir / part) if n.startswith(".tmp.")]


def _names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}
