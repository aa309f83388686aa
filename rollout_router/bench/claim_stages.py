# SPDX-License-Identifier: Apache-2.0
"""The operations on claims, one by one, in a store with an owner, another worker and a dead one.

Every result is checked: an operation that did not do what it is named after ends the benchmark.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.measure import Stage
from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Grant,
    LifeLock,
    Moved,
    Owner,
    new_nonce,
)
from rollout_router.routing.admission import Admission

__all__ = ["PLAIN_READS", "ClaimBench", "plain_reads"]

PLAIN_READS: Final = "plain_reads"
_READS: Final = 3
_READ_BYTES: Final = 300

_Timed = Callable[[], object]


class ClaimBench:
    """A new store in *folder*, whose disk is measured; :meth:`close` gives the owner's lock back.

    Raises:
        ClaimsError: no store can be there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.store: Final = self._open()
        self._other = self._open()  # how another worker sees the same directory
        with closing(self._live()) as life:
            self._dead = life.owner
        self._life = self._live()
        self._admission = Admission(folder / "store")
        self._held: list[Grant] = []
        self._turns: Iterator[Grant] = iter(())
        self._loose: dict[str, Grant] = {}  # what a round left, given back before the next
        self._touched, self._moved, self._gone = (
            self._take(f"bench-{state}") for state in ("touched", "moved", "gone")
        )
        self._take("bench-moved")  # a worker takes what is its own again, higher
        self._release(self._gone)

    def close(self) -> None:
        """End the owner."""
        self._life.close()

    def fill(self, count: int) -> None:
        """Let the owner hold *count* claims or more, at least one; they are re-checked in turn."""
        for number in range(len(self._held), count):
            self._held.append(self._take(f"rollout-{number:06}-{new_nonce()}"))
        self._turns = itertools.cycle(self._held)

    def count(self) -> int:
        """The claims in the store, read one by one."""
        found = list(self.store.survey())
        _require(all(isinstance(each, Claim) for each in found), "every claim is readable")
        return len(found)

    def stages(self) -> list[Stage]:
        """Every operation, after :meth:`fill`, and the plain reads that it is compared with."""
        prepares: dict[str, Callable[[], _Timed]] = {
            "claim_recheck": lambda: self._recheck(self._held[0], stands=True),
            "claim_recheck_in_turn": lambda: self._recheck(next(self._turns), stands=True),
            "claim_recheck_touched": self._touch,
            "claim_recheck_moved": lambda: self._recheck(self._moved, stands=False),
            "claim_recheck_gone": lambda: self._recheck(self._gone, stands=False),
            "claim_recheck_admission": self._recheck_and_admit,
            "claim_lookup": self._look_up,
            "claim_take": self._free_first,
            "claim_take_over": self._die_first,
            "claim_release": self._take_first,
        }
        reads = Stage(name=PLAIN_READS, reference=None, prepare=plain_reads(self._folder))
        return [reads] + [
            Stage(name=name, reference=PLAIN_READS, prepare=prepare)
            for name, prepare in prepares.items()
        ]

    def _recheck(self, grant: Grant, *, stands: bool) -> _Timed:
        what = f"{grant.claim.rollout_id} stands" + ("" if stands else " no longer")
        return lambda: _require(self.store.stands(grant) is stands, what)

    def _touch(self) -> _Timed:
        path = Path(self.store.path_of(self._touched.claim.rollout_id))
        path.chmod(0o600)
        while path.stat().st_ctime_ns == self._touched.signature.changed_ns:
            path.chmod(0o600)  # in the tick of the kernel's clock in which it was granted
        return self._recheck(self._touched, stands=True)

    def _recheck_and_admit(self) -> _Timed:
        """What every call pays before its dispatch."""
        grant = self._held[0]
        recheck = self._recheck(grant, stands=True)

        def timed() -> None:
            self._admission.check(grant.claim.rollout_id)
            recheck()

        return timed

    def _look_up(self) -> _Timed:
        claim = self._held[0].claim
        return lambda: _require(
            claim.same_grant(self._other.read(claim.rollout_id)), "another worker finds the claim"
        )

    def _free_first(self) -> _Timed:
        self._free("bench-take")

        def timed() -> None:
            self._loose["bench-take"] = self._take("bench-take")

        return timed

    def _die_first(self) -> _Timed:
        self._free("bench-take-over")
        seen = self._take("bench-take-over", by=self._dead).claim

        def timed() -> None:
            proof = self._other.judge(seen.owner).proof
            if proof is None:
                raise BenchFailed(f"not so: the death of worker {seen.owner.nonce} is proven")
            taken = self._other.take_over(seen, self._life.owner, proof)
            self._loose["bench-take-over"] = _granted(taken)

        return timed

    def _take_first(self) -> _Timed:
        grant = self._take("bench-release")
        return lambda: self._release(grant)

    def _free(self, rollout_id: str) -> None:
        if grant := self._loose.pop(rollout_id, None):
            self._release(grant)

    def _take(self, rollout_id: str, *, by: Owner | None = None) -> Grant:
        return _granted(self.store.take(rollout_id, by or self._life.owner))

    def _release(self, grant: Grant) -> None:
        _require(self.store.release(grant), f"{grant.claim.rollout_id} was released")

    def _open(self) -> FileClaimStore:
        return FileClaimStore.open(self._folder / "store", service="bench")

    def _live(self) -> LifeLock:
        """A worker that listens nowhere."""
        return LifeLock.acquire(self.store, nonce=new_nonce(), socket="/nowhere.sock")


def plain_reads(folder: Path) -> Callable[[], _Timed]:
    """Open, read to the end, close, three times; the file lies as deep in *folder* as a claim."""
    parent = folder / "plain" / "reads" / "00"
    parent.mkdir(parents=True, exist_ok=True)
    path, content = str(parent / "file"), b"x" * _READ_BYTES
    Path(path).write_bytes(content)

    def timed() -> None:
        for _ in range(_READS):
            fd = os.open(path, os.O_RDONLY)
            try:
                found = os.read(fd, _READ_BYTES + 1)
                end = os.read(fd, _READ_BYTES + 1)
            finally:
                os.close(fd)
            _require(found == content and not end, f"{path} holds what was written")

    return lambda: timed


def _granted(taken: Grant | Moved) -> Grant:
    if isinstance(taken, Moved):
        raise BenchFailed(f"not so: a claim in a store of our own was granted ({taken.current})")
    return taken


def _require(holds: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence at each call
    if not holds:
        raise BenchFailed(f"not so: {what}")
