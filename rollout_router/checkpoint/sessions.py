# SPDX-License-Identifier: Apache-2.0
"""The agent sessions of one worker: one loop a rollout, for as long as somebody waits for it.

A call that comes while its rollout runs waits for the same result. The loop goes with the last of
its callers: the claim on the rollout may go then (C6), and what was recorded is where the next call
goes on, here or at another worker. What a refusal does to the rollout is decided by its code.
"""

import asyncio
import hashlib
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final, Self

from rollout_router.call import Call, Steps
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Completed, Journal, Opened
from rollout_router.checkpoint.rows import Rollout, check_whole
from rollout_router.checkpoint.run import PATIENCE_S, Run, Step
from rollout_router.checkpoint.shared_steps import SharedSteps

__all__ = ["RESTARTS_MAX", "Loop", "Release", "Sessions", "source_digest"]

RESTARTS_MAX: Final = 3
"""So often a rollout starts again from its input by itself; then it is set aside for somebody to
look at. A cause that comes back at every attempt would take model calls for ever."""

Loop = Callable[[Run, Any], Awaitable[Any]]
"""Called with the run and its task as it is recorded; returns the result of the rollout, which JSON
can hold."""

Release = Callable[[Collection[str]], Awaitable[None]]
"""Called with ids of environments."""

_logger = logging.getLogger(__name__)


def source_digest(*modules: ModuleType) -> str:
    """What names the code of a loop: where it changes, a recorded run may take another way."""
    return hashlib.sha256("\0".join(inspect.getsource(one) for one in modules).encode()).hexdigest()


def _ended(call: Call, epoch: int) -> CheckpointRefusal:
    return CheckpointRefusal(
        "operation_unavailable",
        f"rollout {call.rollout_id}: its session was ended at this worker; the next call goes on"
        " from what was recorded",
        rollout_id=call.rollout_id,
        claim_epoch=epoch,
    )


async def _nothing_to_release(environment_ids: Collection[str]) -> None:
    """For loops without environments."""


@dataclass(slots=True, eq=False)
class _Session:
    """A loop at work, and how many wait for it."""

    claim_epoch: int
    task_digest: str
    result: "asyncio.Future[Completed]"
    work: "asyncio.Task[Completed | Exception]"
    steps: SharedSteps
    waiting: int = 0


class Sessions:
    """Runs *loop* for the calls of one worker; an asynchronous context manager.

    Args:
        journal: of this agent server, shared by its workers.
        loop: see :data:`Loop`.
        loop_digest: of its code, as :func:`source_digest` makes it.
        configuration: what the loop depends on besides its task; JSON.
        release: tells the environments' server that they are no longer needed; idempotent. After
            a restart, and before the journal forgets them when a result is acknowledged.
        patience_s: see :class:`Run`.
    """

    def __init__(
        self,
        journal: Journal,
        loop: Loop,
        *,
        loop_digest: str,
        configuration: Any = None,
        release: Release = _nothing_to_release,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._digests = {
            "loop_digest": loop_digest,
            "configuration_digest": digest(canonical(configuration)),
        }
        self._release = release
        self._patience_s = patience_s
        self._sessions: dict[str, _Session] = {}
        self._tasks = asyncio.TaskGroup()
        self._closing = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        for session in self._sessions.values():
            session.work.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error of the caller's stays its own

    async def run(self, call: Call, task: Any) -> Completed:
        """The result of a rollout: recorded, or that of its loop, begun or continued.

        Raises:
            CheckpointRefusal: what its code says; the rollout is as it was, begins anew with the
                next call, or is set aside.
        """
        epoch = self._epoch_of(call)
        while session := self._sessions.get(call.rollout_id):
            if session.claim_epoch >= epoch and session.waiting:
                break
            # Of a claim that was lost in between, or nobody waited for it: it is on its way out.
            await self._end(session)
        task_digest = digest(canonical(task))
        if session is None:
            session = self._begin(call, epoch, task, task_digest)
        elif session.task_digest != task_digest:
            raise CheckpointRefusal(
                "task_changed",
                f"rollout {call.rollout_id}: it is at work on another task",
                rollout_id=call.rollout_id,
                claim_epoch=epoch,
            )
        session.waiting += 1
        if call.steps is not None:
            session.steps.join(call.steps)
        try:
            return await asyncio.shield(session.result)
        finally:
            session.waiting -= 1
            if call.steps is not None:
                session.steps.leave(call.steps)
            if not session.waiting:
                session.work.cancel()

    def _begin(self, call: Call, epoch: int, task: Any, task_digest: str) -> _Session:
        if self._closing:
            raise _ended(call, epoch)
        result: asyncio.Future[Completed] = asyncio.get_running_loop().create_future()
        shared = SharedSteps()
        steps = None if call.steps is None else shared
        work = self._tasks.create_task(
            self._work(call, epoch, task, steps), name=f"session {call.rollout_id}"
        )
        session = _Session(epoch, task_digest, result, work, shared)
        self._sessions[call.rollout_id] = session
        # Not a matter of the task's own: one that is cancelled before its first step never runs.
        work.add_done_callback(partial(self._tell, session, call))
        return session

    async def _end(self, session: _Session) -> None:
        session.work.cancel()
        await asyncio.wait([session.work])

    async def _work(
        self, call: Call, epoch: int, task: Any, steps: Steps | None
    ) -> Completed | Exception:
        try:
            return await self._open_and_play(call.rollout_id, epoch, task, steps)
        except Exception as error:  # noqa: BLE001 - of those who wait for it, and of no other loop
            return error

    def _tell(
        self, session: _Session, call: Call, work: "asyncio.Task[Completed | Exception]"
    ) -> None:
        """Forget a session that is over, and tell those who wait for it."""
        if self._sessions.get(call.rollout_id) is session:
            del self._sessions[call.rollout_id]
        ended = work.cancelled() or work.exception() is not None
        done = _ended(call, session.claim_epoch) if ended else work.result()
        if isinstance(done, Exception):
            session.result.set_exception(done)
            session.result.exception()  # nobody may be left to take it
        else:
            session.result.set_result(done)

    async def _open_and_play(
        self, rollout_id: str, epoch: int, task: Any, steps: Steps | None
    ) -> Completed:
        async with Step(steps):
            opened = await self._journal.open_rollout(rollout_id, epoch, task=task, **self._digests)
        while isinstance(opened, Opened):
            run = Run(
                self._journal,
                opened.rollout,
                opened.rows,
                steps=steps,
                patience_s=self._patience_s,
            )
            try:
                check_whole(opened.rollout, opened.rows)
                return await run.complete(await self._loop(run, json.loads(opened.rollout.task)))
            except Exception as error:
                # A loop may have made something else of it, a group of errors for one.
                refusal = run.refusal or error
                if not isinstance(refusal, CheckpointRefusal):
                    raise
                rollout = await self._begin_anew(run, refusal, steps)
                opened = Opened(rollout=rollout, rows=())
        return opened

    async def _begin_anew(
        self, run: Run, refusal: CheckpointRefusal, steps: Steps | None
    ) -> Rollout:
        """The rollout at its beginning again, where its refusal asks for that.

        Raises:
            CheckpointRefusal: *refusal*, or that it was set aside.
        """
        if refusal.outcome == "refused":
            raise refusal
        async with Step(steps):
            if refusal.outcome == "quarantined":
                _logger.error("%s", refusal)
                await self._journal.quarantine(run.rollout, refusal.code)
                raise refusal
            if run.rollout.restarts >= RESTARTS_MAX:
                exhausted = run.refused(
                    "restarts_exhausted",
                    f"it began {run.rollout.restarts + 1} times and is set aside; last: {refusal}",
                )
                _logger.error("%s", exhausted)
                await self._journal.quarantine(run.rollout, exhausted.code)
                raise exhausted from refusal
            anew = await self._journal.restart(run.rollout, refusal.code)
            _logger.warning("%s; it starts again from its input", refusal)
            # Not before: an owner that was overtaken must not take its successor's away (F1).
            try:
                await self._release(run.environment_ids)
            except CheckpointRefusal as kept:
                _logger.warning("%s; it is given up with the acknowledgement of the result", kept)
            return anew

    async def acknowledge(self, call: Call, receipt: str) -> None:
        """Free the result of a rollout whose taker has it, and its environments. Again is fine.

        Raises:
            CheckpointRefusal: see :meth:`Journal.acknowledge`; everything is kept. Also what
                *release* raises: the result is kept, and the same call may be made again.
        """
        epoch = self._epoch_of(call)
        async with Step(call.steps):
            await self._journal.check_receipt(call.rollout_id, epoch, receipt)
            await self._release(await self._journal.environments_of(call.rollout_id))
            await self._journal.acknowledge(call.rollout_id, epoch, receipt)

    def _epoch_of(self, call: Call) -> int:
        """The epoch that fences it, of the store that the journal is bound to (F1)."""
        if call.claim_epoch is not None and call.store_id == self._journal.store_id:
            return call.claim_epoch
        raise CheckpointRefusal(
            "rollout_unclaimed",
            f"rollout {call.rollout_id}: no claim of store {self._journal.store_id} fences it:"
            " serve the agent with that --state-dir, and with its routing on (--route-always)",
            rollout_id=call.rollout_id,
        )
