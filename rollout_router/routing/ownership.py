# SPDX-License-Identifier: Apache-2.0
"""The rollouts that this worker owns: the set in memory, kept equal to the files on disk.

C1  a grant in memory is re-checked against the disk before it is used (:meth:`Ownership.held`).
C6  a grant and its history entry come and go together; who evicts an entry releases its claim.
H3  eviction comes before release: bytes are freed at once, the file follows in a thread.

At most one acquisition or release runs per rollout, and every request waits for it. An acquisition
whose caller went away is finished and kept as an empty entry. A release that failed leaves the
claim held, with an empty entry, and is tried again when that entry is evicted.

All methods run on the event loop; every call that takes a lock runs in this module's threads.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never

from rollout_router.claims import (
    Claim,
    ClaimsError,
    ClaimStore,
    Grant,
    Moved,
    Owner,
    ProofOfDeath,
    StoreUnavailable,
    stripe_of,
)
from rollout_router.history import CallHandle, History, Key
from rollout_router.routing.tasks import Tasks

__all__ = ["Held", "Ownership"]

THREADS_MAX: Final = 16
"""Threads that take stripe locks. One stuck stripe holds one of them for its bounded wait."""

TURN_S_MAX: Final = 5.0
"""How long one call waits for its turn at a stripe before it gives up, with 503. As long as the
store itself waits for the lock of a stripe."""

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that this worker holds, with a call counted in: the caller must end the call."""

    grant: Grant
    call: CallHandle


class Ownership:
    """The grants of one worker.

    Args:
        store: the durable claims.
        owner: this worker, by nonce and life lock.
        history: the entries; this class alone opens, drops and evicts them.
        tasks: owner of the acquisitions and releases.
    """

    def __init__(self, store: ClaimStore, owner: Owner, *, history: History, tasks: Tasks) -> None:
        self._store = store
        self._owner = owner
        self._history = history
        self._tasks = tasks
        self._grants: dict[str, Grant] = {}
        self._busy: dict[str, asyncio.Task[Any]] = {}
        self._turns: dict[str, asyncio.Lock] = {}  # by stripe, 256 at most
        self._leaving = False
        self._unsure = False  # a change of a claim ended in a way that leaves the disk unknown
        self._changed = asyncio.Event()  # set whenever a grant or a task of _busy went away
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="claims")

    @property
    def grants(self) -> Mapping[str, Grant]:
        """What memory holds now, by rollout."""
        return self._grants

    @property
    def leaving(self) -> bool:
        """True once this worker gives its rollouts back as their calls end."""
        return self._leaving

    @property
    def is_clear(self) -> bool:
        """True where no claim on disk can name this worker any more."""
        return not (self._grants or self._busy or self._unsure)

    async def wait_settled(self, rollout_id: str) -> None:
        """Wait until no acquisition or release of *rollout_id* runs."""
        while (task := self._busy.get(rollout_id)) is not None:
            await asyncio.wait([task])

    def begin_held(self, rollout_id: str) -> Held | None:
        """Count a call in under the claim that memory holds and disk confirms, or None (C1).

        Costs one stat. A claim that was forced away is dropped from memory here.

        Raises:
            StoreUnavailable: the disk did not answer; memory is unchanged.
        """
        grant = self._grants.get(rollout_id)
        if grant is None or not self.stands(grant):
            return None
        return Held(grant, self._history.begin(_key(grant)))

    def stands(self, grant: Grant) -> bool:
        """The owner's re-check: whether *grant* is still ours, in memory and on disk (C1)."""
        if self._grants.get(grant.claim.rollout_id) is not grant:
            return False
        if self._store.stands(grant):
            return True
        _logger.warning(
            "rollout %s: claim epoch %d was taken away from this worker",
            grant.claim.rollout_id,
            grant.claim.claim_epoch,
        )
        self._forget(grant)
        return False

    async def acquire(
        self, rollout_id: str, *, dead: tuple[Claim, ProofOfDeath] | None = None
    ) -> Held | Moved:
        """Take a free claim, or take over *dead*; the winner gets a call counted in (C4).

        Waits for whatever runs for this rollout. When the caller is cancelled the acquisition is
        finished all the same and kept as an empty entry.

        Raises:
            ClaimsError: the store refused or could not; nothing is held.
        """
        await self.wait_settled(rollout_id)
        if (held := self.begin_held(rollout_id)) is not None:
            return held
        task = self._run(rollout_id, self._acquire(rollout_id, dead))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._end_abandoned)
            raise

    def keep(self, held: Held, digest: str, body: bytes) -> bool:
        """Hold *body* as a base; whatever had to go for it gives its claim back at once (C6)."""
        kept = held.call.keep(digest, body)
        self.release_overdue()
        return kept

    def end(self, held: Held) -> None:
        """The call is over: evict what is over a bound, and give back what a leaver still has."""
        held.call.end()
        if self._leaving:
            self._release_if_idle(held.grant)
        self.release_overdue()

    def release_overdue(self) -> None:
        """Release the claim of every entry that history evicted (C6)."""
        for key in self._history.evict_overdue():
            grant = self._grants.get(key.rollout_id)
            if grant is not None and _key(grant) == key:
                self._release(grant)

    def leave(self) -> None:
        """Give every rollout back: the idle ones now, the others as their last call ends."""
        self._leaving = True
        for grant in list(self._grants.values()):
            self._release_if_idle(grant)

    async def wait_released(self) -> None:
        """Wait until nothing is held and nothing runs. Bounded by the caller."""
        while self._grants or self._busy:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Let the threads end. Claims still held stay on disk until this worker is proven dead."""
        self._threads.shutdown(wait=False)

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run a call of the store in one of this module's threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _acquire(
        self, rollout_id: str, dead: tuple[Claim, ProofOfDeath] | None
    ) -> Held | Moved:
        if dead is None:
            taken = await self._in_stripe(
                rollout_id, lambda: self._store.take(rollout_id, self._owner)
            )
        else:
            claim, proof = dead
            taken = await self._in_stripe(
                rollout_id, lambda: self._store.take_over(claim, self._owner, proof)
            )
        match taken:
            case Moved():
                return taken
            case Grant():
                self._grants[rollout_id] = taken
                self._history.open(_key(taken))
                return Held(taken, self._history.begin(_key(taken)))
            case _:
                assert_never(taken)

    async def _in_stripe(self, rollout_id: str, work: Callable[[], _Result]) -> _Result:
        """Run a call that takes the rollout's stripe lock; one thread a stripe waits for it."""
        turn = self._turns.setdefault(stripe_of(rollout_id), asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_S_MAX):
                await turn.acquire()
        except TimeoutError as error:
            what = f"waiting behind others for the stripe of rollout {rollout_id}"
            raise StoreUnavailable(what, errno.ETIMEDOUT) from error
        try:
            return await self.in_thread(work)
        finally:
            turn.release()

    def _release_if_idle(self, grant: Grant) -> None:
        if self._grants.get(grant.claim.rollout_id) is grant and self._history.is_idle(_key(grant)):
            self._history.drop(_key(grant))
            self._release(grant)

    def _release(self, grant: Grant) -> None:
        """Give back the claim of an entry that is gone already (H3)."""
        del self._grants[grant.claim.rollout_id]
        self._run(grant.claim.rollout_id, self._give_back(grant))

    async def _give_back(self, grant: Grant) -> None:
        try:
            await self._in_stripe(grant.claim.rollout_id, lambda: self._store.release(grant))
        except ClaimsError:
            _logger.exception(
                "rollout %s: releasing claim epoch %d failed; it stays held and is tried again",
                grant.claim.rollout_id,
                grant.claim.claim_epoch,
            )
            self._grants[grant.claim.rollout_id] = grant
            self._history.open(_key(grant))

    def _run(self, rollout_id: str, work: Coroutine[None, None, _Result]) -> asyncio.Task[_Result]:
        async def run() -> _Result:
            try:
                return await work
            finally:
                self._settled(rollout_id)

        def ended(task: asyncio.Task[_Result]) -> None:
            if self._busy.get(rollout_id) is task:  # it was cancelled before it began
                self._settled(rollout_id)
                work.close()
            if task.cancelled() or task.exception() is not None:
                self._unsure = True

        if rollout_id in self._busy:
            raise RuntimeError(f"rollout {rollout_id}: an acquisition or release already runs")
        task = self._tasks.spawn(run(), name=f"claim of {rollout_id}")
        self._busy[rollout_id] = task
        task.add_done_callback(ended)
        return task

    def _settled(self, rollout_id: str) -> None:
        del self._busy[rollout_id]
        self._changed.set()

    def _forget(self, grant: Grant) -> None:
        del self._grants[grant.claim.rollout_id]
        self._history.drop(_key(grant))
        self._changed.set()

    def _end_abandoned(self, task: asyncio.Task[Held | Moved]) -> None:
        if not task.cancelled() and task.exception() is None:
            result = task.result()
            if isinstance(result, Held):
                self.end(result)


def _key(grant: Grant) -> Key:
    return Key(grant.claim.rollout_id, grant.claim.claim_epoch)
