# SPDX-License-Identifier: Apache-2.0
"""What one worker did, for people: counted, said in its log, and kept for who watches.

Each decision that matters is one method here, called by whoever made it. Nothing is decided by what
is noted, and nothing of it outlives the worker but its counts and its log.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rollout_router import metrics
from rollout_router.claims import Claim, Grant, Swept
from rollout_router.errors import Refusal
from rollout_router.logs import told
from rollout_router.routing.changes import Changes, Row, utc
from rollout_router.routing.sweeping import counts_of

__all__ = ["LAG_KEPT_S", "REAPED_SAID_MAX", "REFUSALS_SAID_PER_S_MAX", "Observed"]

REFUSALS_SAID_PER_S_MAX: Final = 20
"""So many refusals of one code are said each second; the others are counted, and said as a number.
An overloaded worker refuses thousands."""

REAPED_SAID_MAX: Final = 1000
"""Rollouts of one sweep that are told one by one: some 8 ms of the event loop."""

LAG_KEPT_S: Final = 2.0
"""The lag that a worker tells is the longest of so long: who watches asks twice a second."""

_logger = logging.getLogger("rollout_router.events")


class Observed:
    """The notes of one worker.

    Args:
        worker_id: whose.
        now: seconds since 1970, to tell people.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        worker_id: str,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.changes: Final = Changes()
        self.started_at: Final = utc(now())
        self._worker_id = worker_id
        self._now = now
        self._clock = clock
        self._lags: list[tuple[float, float]] = []  # when, and how long
        self._refused: Counter[str] = Counter()  # by code, within the second of _refused_s
        self._refused_s = 0

    # Claims.

    def taken(self, grant: Grant, *, evidence: str | None = None) -> None:
        """A claim was granted to this worker.

        Args:
            grant: what the store wrote.
            evidence: what proved the death of the owner before, where it was taken over.
        """
        claim = grant.claim
        before = claim.previous.nonce if claim.previous else None
        if evidence is not None:
            how, event = "takeover", "claim_taken_over"
            metrics.TAKEOVERS[evidence].inc()
            text = f"taken over from worker {before}, which is dead"
        elif before == self._worker_id:
            how, event, text = "again", "claim_taken_again", "taken again"
        else:
            how, event, text = "new", "claim_taken", "taken"
        metrics.CLAIMS_TAKEN[how].inc()
        row = Row(
            rollout_id=claim.rollout_id,
            kind=claim.kind,
            claim_epoch=claim.claim_epoch,
            claimed_at=claim.at,
            how=how,
        )
        self.changes.opened(row)
        self._tell(
            event,
            f"{_named(claim)} {text}",
            claim=claim,
            reason=evidence,
            from_worker=before if how == "takeover" else None,
        )

    def released(self, grant: Grant, *, reason: str) -> None:
        """A claim was given back, or a session marked lost as the worker leaves."""
        claim, lost = grant.claim, reason == "session_lost"
        metrics.RELEASES[reason].inc()
        self._closed(
            "session_lost" if lost else "claim_released",
            f"{_named(claim)} {'lost' if lost else 'given back'}: {reason}",
            claim=claim,
            reason=reason,
        )

    def taken_away(self, grant: Grant) -> None:
        """A claim was found to be another's, or nobody's."""
        text = f"{_named(grant.claim)} was taken away from this worker"
        self._closed("claim_lost", text, claim=grant.claim, level=logging.WARNING)

    def release_failed(self, grant: Grant, error: Exception) -> None:
        """A claim stays held: its release is tried again."""
        text = f"{_named(grant.claim)} stays held, its release is tried again: {error}"
        self._tell("release_failed", text, claim=grant.claim, level=logging.WARNING)

    # Calls.

    def began(self, claim: Claim) -> None:
        """A call is served under *claim*."""
        row = self._row(claim)
        if row is not None:
            row.in_flight += 1
            self.changes.touched(row)

    def ended(self, claim: Claim, *, outcome: str, body_bytes: int, sent_bytes: int) -> None:
        """It is over; the bytes are those of its body, and of what came for it."""
        row = self._row(claim)
        if row is not None:
            row.in_flight -= 1
            row.turns += 1
            row.body_bytes += body_bytes
            row.sent_bytes += sent_bytes
            row.last_outcome, row.last_at = outcome, self._now()
            self.changes.touched(row)

    def resync(self, claim: Claim, *, reason: str) -> None:
        """A delta came whose base is not held."""
        metrics.RESYNCS[reason].inc()
        row = self._row(claim)
        if row is not None:
            row.resyncs += 1
            self.changes.touched(row)
        text = f"{_named(claim)}: the base of a delta is not held"
        self._tell("resync", text, claim=claim, reason=reason)

    def refused(self, refusal: Refusal) -> None:
        """A request was answered in our name. A resync has said so itself."""
        if refusal.code == "gym_history_resync":
            return
        self._say_unsaid()
        self._refused[refusal.code] += 1
        if self._refused[refusal.code] <= REFUSALS_SAID_PER_S_MAX:
            self._keep(
                told(
                    _logger,
                    "refused",
                    f"{refusal.status} {refusal.code}: {refusal.message}",
                    worker_id=self._worker_id,
                    rollout_id=refusal.rollout_id,
                    claim_epoch=refusal.claim_epoch,
                    code=refusal.code,
                    reason=refusal.code,
                )
            )

    def _say_unsaid(self) -> None:
        """Once a second is over, say how many refusals of it were not said one by one."""
        second = int(self._clock())
        if second == self._refused_s:
            return
        before, self._refused, self._refused_s = self._refused, Counter(), second
        for code, number in before.items():
            if (unsaid := number - REFUSALS_SAID_PER_S_MAX) > 0:
                text = f"{unsaid} more requests were refused within a second: {code}"
                told(_logger, "refused", text, worker_id=self._worker_id, code=code)

    # The worker.

    def draining(self) -> None:
        """This worker gives its rollouts back and leaves."""
        self._tell("draining", f"worker {self._worker_id} drains: it gives its rollouts back")

    def swept(self, swept: Swept) -> None:
        """A sweep went over what dead workers left; each rollout that it freed is an event.

        Of more than ``REAPED_SAID_MAX`` only the first are: the others are in the number of all.
        """
        freed = [("claim_reaped", claim) for claim in swept.freed]
        freed += (("session_lost", claim) for claim in swept.lost)
        for event, claim in freed[:REAPED_SAID_MAX]:
            self._keep(
                {
                    "event": event,
                    "worker_id": self._worker_id,
                    "rollout_id": claim.rollout_id,
                    "claim_epoch": claim.claim_epoch,
                    "reason": "its owner is dead",
                    "from_worker": claim.owner.nonce,
                }
            )
        if cleared := ", ".join(f"{number} {what}" for what, number in counts_of(swept).items()):
            self._tell("swept", f"swept {cleared}", reason=cleared)

    def lagged(self, lag_s: float) -> None:
        """The event loop woke so much later than asked."""
        now = self._clock()
        self._say_unsaid()
        metrics.LOOP_LAG_SECONDS.observe(max(lag_s, 0.0))
        self._lags = [(at, lag) for at, lag in self._lags if at > now - LAG_KEPT_S]
        self._lags.append((now, lag_s))

    def lag_s(self) -> float:
        """The longest lag of the last seconds."""
        return max((lag for _, lag in self._lags), default=0.0)

    def _row(self, claim: Claim) -> Row | None:
        row = self.changes.row(claim.rollout_id)
        return row if row is not None and row.claim_epoch == claim.claim_epoch else None

    def _closed(self, event: str, text: str, *, claim: Claim, **more: Any) -> None:
        self.changes.closed(claim.rollout_id, claim.claim_epoch)
        self._tell(event, text, claim=claim, **more)

    def _tell(self, event: str, text: str, *, claim: Claim | None = None, **more: Any) -> None:
        fields = {"worker_id": self._worker_id, **more}
        if claim is not None:
            fields |= {"rollout_id": claim.rollout_id, "claim_epoch": claim.claim_epoch}
        self._keep(told(_logger, event, text, **fields))

    def _keep(self, said: dict[str, Any]) -> None:
        self.changes.happened({"at": utc(self._now()), **said})


def _named(claim: Claim) -> str:
    return f"{claim.kind} {claim.rollout_id}: claim epoch {claim.claim_epoch}"
