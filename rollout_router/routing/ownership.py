# SPDX-License-Identifier: Apache-2.0
"""The rollouts and sessions that this worker owns: memory, kept equal to the files on disk.

C1  a grant in memory is re-checked against the disk before it is used (``begin_held``).
C6  a grant and its history entry come and go together; who evicts an entry releases its claim.
R3  a session stays until it is closed, whatever history evicts; a leaver marks it lost.
H3  eviction comes before release: bytes are freed at once, the file follows in a thread.

At most one acquisition or release runs per rollout, and every request waits for it. An acquisition
whose caller went away is finished and kept as an empty entry. A release that failed leaves the
claim held, with an empty entry, and is tried again when that entry is evicted.

All methods run on the event loop; every call that takes a lock runs in a thread.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar, assert_never

from rollout_router.claims import Claim, ClaimsError, ClaimStore, Grant, Moved, Owner, ProofOfDeath
from rollout_router.claims.record import Kind
from rollout_router.errors import Refusal
from rollout_router.history import CallHandle, History, Key, Origin
from rollout_router.routing.observed import Observed
from rollout_router.routing.session_bounds import SessionBounds
from rollout_router.routing.tasks import Tasks
from rollout_router.routing.threads import StoreThreads

__all__ = ["Held", "Ownership"]

RELEASES_AT_ONCE: Final = 8
"""Claims that a leaving worker gives back at one time; requests for the others go on meanwhile."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that this worker holds, with a call counted in: the caller must end the call."""

    grant: Grant
    call: CallHandle


class _Session(Enum):
    """What is known of a session that this worker holds."""

    OFFERED = "offered"  # a client named it; unless the application does too, it goes with the call
    MADE = "made"  # the application named it in an answer
    CLOSED = "closed"  # the application is done with it


class Ownership:
    """The grants of one worker.

    Args:
        store: the durable claims.
        owner: this worker, by nonce and life lock.
        history: the entries; this class alone opens, drops and evicts them.
        tasks: owner of the acquisitions and releases.
        session_bounds: how many sessions may be held.
        observed: is told what becomes of claims.
    """

    def __init__(
        self,
        store: ClaimStore,
        owner: Owner,
        *,
        history: History,
        tasks: Tasks,
        session_bounds: SessionBounds | None = None,
        observed: Observed | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._history = history
        self._tasks = tasks
        self._session_bounds = session_bounds or SessionBounds()
        self._observed = observed or Observed(owner.nonce)
        self._grants: dict[str, Grant] = {}
        self._sessions: dict[str, _Session] = {}  # those of _grants, and those being taken
        self._overdue: set[str] = set()  # what could not be given back yet
        self._busy: dict[str, asyncio.Task[Any]] = {}
        self._leaving = False
        self._giving_back = False
        self._unsure = False  # a change of a claim ended in a way that leaves the disk unknown
        self.changed = asyncio.Event()  # set whenever a grant, a call or a task of _busy is over
        self._threads = StoreThreads()

    @property
    def grants(self) -> Mapping[str, Grant]:
        """What memory holds now, by rollout."""
        return self._grants

    @property
    def sessions(self) -> int:
        """How many sessions are held or being taken."""
        return len(self._sessions)

    @property
    def busy(self) -> Collection[str]:
        """The rollouts whose claim is being taken or given back now."""
        return self._busy

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
            ClaimsError: the record cannot be read; memory is unchanged.
        """
        grant = self._grants.get(rollout_id)
        if grant is None or not self.stands(grant):
            return None
        return Held(grant, self._begin(grant))

    def stands(self, grant: Grant) -> bool:
        """The owner's re-check: whether *grant* is still ours, in memory and on disk (C1)."""
        if self._grants.get(grant.claim.rollout_id) is not grant:
            return False
        if self._store.stands(grant):
            return True
        self._forget(grant)
        self._observed.taken_away(grant)
        return False

    async def acquire(
        self,
        rollout_id: str,
        *,
        dead: tuple[Claim, ProofOfDeath] | None = None,
        kind: Kind = "rollout",
        ran: bool = False,
    ) -> Held | Moved:
        """Take a free claim, or take over *dead*; the winner gets a call counted in (C4).

        A session is *offered*: without :meth:`made` it goes with its last call. A leaver takes one
        only where a call that *ran* names it, and marks it lost with its last call.

        Waits for whatever runs for this rollout. When the caller is cancelled the acquisition is
        finished all the same and kept as an empty entry.

        Raises:
            ClaimsError: the store refused or could not; nothing is held.
            Refusal: this worker takes no more sessions.
        """
        await self.wait_settled(rollout_id)
        if (held := self.begin_held(rollout_id)) is not None:
            return held
        if kind == "session":
            self._admit_session(rollout_id, ran=ran)
        task = self._run(rollout_id, self._acquire(rollout_id, dead, kind))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._end_abandoned)
            raise

    def made(self, held: Held) -> None:
        """The application names this session in an answer: it stays, unless it is closed (R3)."""
        name = held.grant.claim.rollout_id
        if self._grants.get(name) is held.grant and self._sessions[name] is _Session.OFFERED:
            self._sessions[name] = _Session.MADE

    def close_session(self, held: Held) -> None:
        """The application is done with this session: its claim goes with its last call."""
        if self._grants.get(held.grant.claim.rollout_id) is held.grant:
            self._sessions[held.grant.claim.rollout_id] = _Session.CLOSED

    async def bury(self, seen: Claim, proof: ProofOfDeath) -> None:
        """Leave the tombstone of a session whose owner is dead, if *seen* still stands (R3).

        Raises:
            ClaimsError: the claim stays as it is.
        """
        await self._threads.locking(seen.rollout_id, lambda: self._store.reap(seen, proof))

    async def forget(self, tombstone: Claim) -> None:
        """Remove a tombstone that has lasted long enough, if it still stands.

        Raises:
            ClaimsError: it stays.
        """
        await self._threads.locking(tombstone.rollout_id, lambda: self._store.forget(tombstone))

    def keep(self, held: Held, digest: str, body: bytes, origin: Origin | None = None) -> bool:
        """Hold *body* as a base; whatever had to go for it gives its claim back at once (C6)."""
        kept = held.call.keep(digest, body, origin)
        self.release_overdue()
        return kept

    def end(self, held: Held) -> None:
        """The call is over: evict what is over a bound, and give back what a leaver still has."""
        held.call.end()
        self.changed.set()
        session = self._sessions.get(held.grant.claim.rollout_id)
        if self._leaving or session in {_Session.OFFERED, _Session.CLOSED}:
            self._release_if_idle(held.grant)
        self.release_overdue()

    def release_overdue(self) -> None:
        """Release the claim of every entry that history evicted (C6), but not of a session."""
        for key in self._history.evict_overdue():
            grant = self._grants.get(key.rollout_id)
            if grant is not None and _key(grant) == key and grant.claim.kind == "rollout":
                self._release(grant)
        while self._overdue:
            if (grant := self._grants.get(self._overdue.pop())) is not None:
                self._release_if_idle(grant)

    def leave(self) -> None:
        """Give all back, or mark it lost: the idle now, the others as their last call ends."""
        self._leaving = True
        if not self._giving_back:
            self._giving_back = True
            self._tasks.spawn(self._give_all_back(), name="giving everything back")

    async def wait_released(self) -> None:
        """Wait until nothing is held and nothing runs. Bounded by the caller."""
        while self._grants or self._busy:
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        """Let the threads end. Claims still held stay on disk until this worker is proven dead."""
        self._threads.close()

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run a call of the store that takes no lock."""
        return await self._threads.quick(work)

    async def _give_all_back(self) -> None:
        """Some at a time: what waits its turn is still held, and its requests are still served."""
        try:
            for grant in list(self._grants.values()):
                self._release_if_idle(grant)
                if len(self._busy) >= RELEASES_AT_ONCE:
                    await asyncio.wait(
                        list(self._busy.values()), return_when=asyncio.FIRST_COMPLETED
                    )
        finally:
            self._giving_back = False

    async def _acquire(
        self, rollout_id: str, dead: tuple[Claim, ProofOfDeath] | None, kind: Kind
    ) -> Held | Moved:
        try:
            return await self._take(rollout_id, dead, kind)
        finally:
            if rollout_id not in self._grants:
                self._sessions.pop(rollout_id, None)

    async def _take(
        self, rollout_id: str, dead: tuple[Claim, ProofOfDeath] | None, kind: Kind
    ) -> Held | Moved:
        if dead is None:
            taken = await self._threads.locking(
                rollout_id, lambda: self._store.take(rollout_id, self._owner, kind=kind)
            )
        else:
            claim, proof = dead
            taken = await self._threads.locking(
                rollout_id, lambda: self._store.take_over(claim, self._owner, proof)
            )
        match taken:
            case Moved():
                return taken
            case Grant():
                self._grants[rollout_id] = taken
                self._history.open(_key(taken))
                self._observed.taken(taken, evidence=None if dead is None else dead[1].evidence)
                return Held(taken, self._history.begin(_key(taken)))
            case _:
                assert_never(taken)

    def _admit_session(self, name: str, *, ran: bool) -> None:
        if self._leaving and not ran:
            why = f"{name}: this worker leaves and takes no new one; send again"
            raise Refusal("draining", why, rollout_id=name)
        self._session_bounds.check(name, own=self.sessions)
        self._sessions[name] = _Session.OFFERED

    def _begin(self, grant: Grant) -> CallHandle:
        try:
            return self._history.begin(_key(grant))
        except KeyError:
            if grant.claim.kind == "rollout":
                raise
        # Its bases were evicted; the session itself is the application's and stays (R3).
        self._history.open(_key(grant))
        return self._history.begin(_key(grant))

    def _release_if_idle(self, grant: Grant) -> None:
        if self._grants.get(grant.claim.rollout_id) is not grant:
            return
        if grant.claim.kind == "session":
            self._begin(grant).end()  # an entry that was evicted had no call in flight
        if self._history.is_idle(_key(grant)):
            self._history.drop(_key(grant))
            self._release(grant)

    def _release(self, grant: Grant) -> None:
        """Give back the claim of an entry that is gone already (H3)."""
        reason = self._why_released(self._sessions.get(grant.claim.rollout_id))
        del self._grants[grant.claim.rollout_id]
        self._run(grant.claim.rollout_id, self._give_back(grant, reason))

    async def _give_back(self, grant: Grant, reason: str) -> None:
        session = self._sessions.pop(grant.claim.rollout_id, None)
        try:
            stood = await self._threads.locking(
                grant.claim.rollout_id, lambda: self._end(grant, session)
            )
        except ClaimsError as error:
            self._grants[grant.claim.rollout_id] = grant
            self._history.open(_key(grant))
            self._overdue.add(grant.claim.rollout_id)
            if session is not None:
                self._sessions[grant.claim.rollout_id] = session
            self._observed.release_failed(grant, error)
        else:
            if stood:
                self._observed.released(grant, reason=reason)
            else:
                self._observed.taken_away(grant)

    def _why_released(self, session: _Session | None) -> str:
        if session is _Session.MADE:
            return "session_lost"
        if self._leaving:
            return "leaving"
        return "evicted" if session is None else "session_ended"

    def _end(self, grant: Grant, session: _Session | None) -> bool:
        """Whether it still stood. Runs in a thread."""
        if session is _Session.MADE:
            return self._store.lose(grant, reason="the worker that owned it left")
        return self._store.release(grant)

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
        task = self._tasks.spawn(run(), name=f"claim of {rollout_id}", heard=True)
        self._busy[rollout_id] = task
        task.add_done_callback(ended)
        return task

    def _settled(self, rollout_id: str) -> None:
        del self._busy[rollout_id]
        self.changed.set()

    def _forget(self, grant: Grant) -> None:
        del self._grants[grant.claim.rollout_id]
        self._sessions.pop(grant.claim.rollout_id, None)
        self._history.drop(_key(grant))
        self.changed.set()

    def _end_abandoned(self, task: asyncio.Task[Held | Moved]) -> None:
        if not task.cancelled() and task.exception() is None:
            result = task.result()
            if isinstance(result, Held):
                self.end(result)


def _key(grant: Grant) -> Key:
    return Key(grant.claim.rollout_id, grant.claim.claim_epoch)
