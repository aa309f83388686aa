# SPDX-License-Identifier: Apache-2.0
"""One rollout at its loop: each effect is performed once and has one result, in every attempt.

A loop is an ordinary coroutine function whose effects go through :meth:`Run.op`. To continue after
a death is to call it again: operations that were recorded return their results, and the first that
was not is performed. So a loop must depend on nothing but its task and the results; where it asks
for something else than what was recorded, that is a ``divergence``.

Where the gate is closed an operation waits inside ``op``, before anything was sent or written: the
loop never sees it, so no handler of its own can take it for the end of the rollout.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Self

from rollout_router.call import Steps
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.effects import Lost, NotPerformed, Performed, Send
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Completed, Journal
from rollout_router.checkpoint.rows import EFFECTS, Effect, Recorded, Rollout
from rollout_router.checkpoint.wire import Operation

__all__ = ["LOST_MAX", "PATIENCE_S", "Run", "Step"]

PATIENCE_S: Final = 600.0
"""How long one operation is tried again while its server refuses it or its answers are lost: long
enough for a server to be replaced. Only the pauses in between count, so that a closed gate takes
nothing of it. Then the call ends, and the next one goes on from there."""

LOST_MAX: Final = 10
"""So many answers of one operation may be lost: a request that its server cannot answer is not sent
for as long as the patience lasts."""

_PAUSE_S_MIN: Final = 0.05
_PAUSE_S_MAX: Final = 2.0


class Run:
    """What a loop is given.

    Args:
        journal: where it is recorded.
        rollout: as it was opened.
        rows: what it recorded, checked.
        steps: the gate of this worker; None where there is none.
        patience_s: see :data:`PATIENCE_S`.
    """

    def __init__(
        self,
        journal: Journal,
        rollout: Rollout,
        rows: Sequence[Recorded],
        *,
        steps: Steps | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.rollout = rollout
        self._journal = journal
        self._rows = [row for row in rows if row.result is not None]
        self._intent = next((row for row in rows if row.result is None), None)
        self._replayed = 0
        self._revisions: dict[str, int] = {}
        self._environments = {one for row in rows if (one := row.environment_id) is not None}
        self._steps = steps
        self._patience_s = patience_s
        self._busy = False
        self._ended_by: BaseException | None = None  # the operation that failed

    @property
    def rollout_id(self) -> str:
        """Whose run it is."""
        return self.rollout.rollout_id

    @property
    def replaying(self) -> bool:
        """Whether the next operation was recorded by an earlier attempt."""
        return self._replayed < len(self._rows)

    @property
    def environment_id(self) -> str:
        """A name for the environment of this rollout, the same in every attempt.

        After a restart it is another one, and it never is that of a rollout of the same id in
        another server or run.
        """
        return self._journal.environment_name(self.rollout_id, self.rollout.restarts)

    @property
    def environment_ids(self) -> set[str]:
        """Every environment that this run may have made."""
        return {self.environment_id, *self._environments}

    @property
    def refusal(self) -> CheckpointRefusal | None:
        """The one that ended it, whatever its loop made of that."""
        return self._ended_by if isinstance(self._ended_by, CheckpointRefusal) else None

    async def op(
        self,
        kind: str,
        request: Any,
        send: Send,
        *,
        effect: Effect,
        environment_id: str | None = None,
    ) -> Any:
        """The result of the next operation: the recorded one, or that of performing it.

        Args:
            kind: what it is called in the journal.
            request: everything that decides what it does; JSON.
            send: performs it.
            effect: ``keyed``: sent again until its receiver, who tells repeats by the operation's
                id, has answered; ``resample``: done again where its answer was lost, and the orphan
                is counted; ``once``: announced first, and never done again.
            environment_id: the environment that it acts on; its revision must rise by one.

        Raises:
            CheckpointRefusal: with the outcome that its code has; what is recorded is whole.
            RuntimeError: another operation of this run is not over.
        """
        if effect not in EFFECTS:
            raise ValueError(f"an effect is one of {sorted(EFFECTS)}, not {effect!r}")
        self._check_going_on()
        self._busy = True
        try:
            asked = digest(canonical(request))
            if environment_id is not None:
                self._environments.add(environment_id)
            if self.replaying:
                return self._recorded(kind, effect, environment_id, asked)
            fresh = Recorded(
                sequence=self.rollout.next,
                claim_epoch=self.rollout.claim_epoch,
                kind=kind,
                effect=effect,
                environment_id=environment_id,
                request_digest=asked,
                result=None,
                revision=None,
                orphans=self.rollout.reopened if effect == "resample" else 0,
                chain=None,
            )
            return await self._perform(fresh, send)
        except BaseException as error:
            self._ended_by = error
            raise
        finally:
            self._busy = False

    async def complete(self, payload: Any) -> Completed:
        """Make *payload* the result, once the gate is open.

        Raises:
            CheckpointRefusal: ``divergence``: operations were recorded that the loop no longer
                asks for; or as :meth:`Journal.complete`.
            RuntimeError: an operation of this run is not over.
        """
        self._check_going_on()
        if self.replaying or self._intent is not None:
            raise self.refused("divergence", "the loop ends before what was recorded does")
        async with Step(self._steps):
            return await self._journal.complete(self.rollout, payload)

    def _check_going_on(self) -> None:
        """A loop cannot go on from an operation that failed: no other attempt would meet it.

        So a loop that takes a refusal for an answer cannot make a result of it.
        """
        if self._busy:
            self._ended_by = RuntimeError(f"rollout {self.rollout_id}: one operation at a time")
            raise self._ended_by
        if self.refusal is not None:
            raise self.refusal
        if self._ended_by is not None:
            raise self.refused(
                "operation_unavailable",
                f"an operation was given up ({self._ended_by!r}); the next call goes on from it",
            ) from self._ended_by

    def _recorded(self, kind: str, effect: Effect, environment_id: str | None, asked: str) -> Any:
        row = self._rows[self._replayed]
        if not row.same_as(kind, effect, environment_id, asked):
            raise self.refused(
                "divergence",
                f"operation {row.sequence} was {row.kind} ({row.effect}), and the loop now asks for"
                f" {kind} ({effect}) or with another request",
            )
        self._replayed += 1
        self._note_revision(row)
        return row.value

    async def _perform(self, fresh: Recorded, send: Send) -> Any:
        if self._intent is not None:
            raise self.refused(
                "ambiguous_outcome",
                f"operation {self._intent.sequence} ({self._intent.kind}) was begun and may have"
                " been performed",
            )
        async with Step(self._steps) as step:
            row = await self._until_performed(fresh, send, step)
            self.rollout = await self._journal.append(self.rollout, row)
        self._note_revision(row)
        return row.value

    async def _until_performed(self, fresh: Recorded, send: Send, step: "Step") -> Recorded:
        """Send the operation until its result is known; the step is in hand from then on."""
        patience_s, pause_s, row = self._patience_s, _PAUSE_S_MIN, fresh
        operation = Operation(
            rollout_id=self.rollout_id,
            sequence=fresh.sequence,
            store_id=self._journal.store_id,
            claim_epoch=fresh.claim_epoch,
            environment_id=fresh.environment_id,
        )
        lost_number = 0
        while True:
            await step.enter()
            if row.effect == "once":
                await self._journal.intend(self.rollout, row)
            try:
                return self._performed(row, await send(operation))
            except NotPerformed as refusal:
                failure: Exception = refusal
                lost_number += refusal.tried
                wait_s = max(pause_s, refusal.retry_after_s)
                if row.effect == "once":
                    await self._journal.withdraw(self.rollout, row)
                step.leave_unless_held()
            except Lost as lost:
                failure, wait_s, lost_number = lost, pause_s, lost_number + 1
                if row.effect == "once":
                    raise self.refused("ambiguous_outcome", f"{row.kind}: {lost}") from lost
                if row.effect == "keyed":
                    step.hold()
                else:
                    row = replace(row, orphans=row.orphans + 1)
                    step.leave_unless_held()
            patience_s -= wait_s
            if patience_s < 0 or lost_number >= LOST_MAX:
                raise self.refused(
                    "operation_unavailable",
                    f"operation {row.sequence} ({row.kind}) got no answer ({failure}); the next"
                    " call goes on from it",
                ) from failure
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _performed(self, row: Recorded, performed: Performed) -> Recorded:
        """*row* with its result, linked to those before."""
        environment_id, revision = row.environment_id, performed.revision
        if environment_id is not None:
            expected = self._revisions.get(environment_id, 0) + 1
            if revision != expected:
                raise self.refused(
                    "revision_mismatch",
                    f"environment {environment_id} is at revision {revision} after operation"
                    f" {row.sequence}, not at {expected}: something else acted on it",
                )
        try:
            result = canonical(performed.value)
        except (TypeError, ValueError, RecursionError) as error:
            raise Lost(f"its result cannot be recorded: {error}") from error
        done = replace(row, result=result, revision=revision)
        return replace(done, chain=done.linked(self.rollout.head))

    def _note_revision(self, row: Recorded) -> None:
        if row.environment_id is not None and row.revision is not None:
            self._revisions[row.environment_id] = row.revision

    def refused(self, code: str, why: str) -> CheckpointRefusal:
        """A refusal of this run."""
        return self.rollout.refused(code, why)


class Step:
    """Whether an operation is in hand: what a checkpoint waits for.

    Entered as a context, and then again after each :meth:`leave_unless_held`, once the gate is
    open; over at the end of the context at the latest.
    """

    def __init__(self, steps: Steps | None) -> None:
        self._steps = steps
        self._entered = False
        self._held = False

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    async def enter(self) -> None:
        """Count it in, once the gate is open."""
        if self._steps is None or self._entered:
            return
        while not self._steps.begin():
            await self._steps.wait_open()
        self._entered = True

    def hold(self) -> None:
        """Its receiver may have performed it: it stays in hand until its result is known."""
        self._held = True

    def leave_unless_held(self) -> None:
        """Nothing is out that could still come to pass, or matter."""
        if not self._held:
            self._leave()

    def _leave(self) -> None:
        if self._steps is not None and self._entered:
            self._entered = False
            self._steps.end()
