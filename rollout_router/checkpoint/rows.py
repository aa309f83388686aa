# SPDX-License-Identifier: Apache-2.0
"""What a journal holds of one rollout, and whether it is whole. Pure.

The rows of a rollout are a chain: each link is a digest of the one before and of everything that
was recorded, and the rollout keeps the last link and the next sequence number. A row that was
changed, moved or removed shows, also the last one. The chain says nothing of claim epochs and
attempts: a rollout that was interrupted ends with the same links as one that was not.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, get_args

from rollout_router.checkpoint.digests import canonical, chained, digest, link
from rollout_router.checkpoint.errors import CheckpointRefusal

__all__ = [
    "DISCARDED",
    "EFFECTS",
    "Effect",
    "Recorded",
    "Rollout",
    "Status",
    "check_whole",
    "receipt_of",
]

Effect = Literal["keyed", "resample", "once"]
EFFECTS: Final = frozenset(get_args(Effect))
DISCARDED: Final = "operator"
"""The reason of a restart that somebody asked for."""
Status = Literal["open", "completed", "acknowledged", "quarantined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout, as its journal has it."""

    rollout_id: str
    claim_epoch: int  # the highest that was seen; 0: none yet, it was restored
    attempt: int  # 1 and up without a gap: how often another owner opened it
    restarts: int
    status: Status
    reason: str  # the code of the last restart, or why it is quarantined
    task: str  # canonical JSON: what it starts from, also when it starts again
    loop_digest: str
    configuration_digest: str
    first: int  # the sequence of the first operation since the last restart
    next: int  # of the operation that will be recorded next
    head: str  # the chain up to there
    reopened: int  # how often since it recorded last: each may have left a sample that was lost
    changed_at: str  # UTC, to print

    @property
    def genesis(self) -> str:
        """The link before the first operation."""
        parts = (self.rollout_id, self.loop_digest, self.configuration_digest)
        return chained(*parts, digest(self.task), self.restarts, self.first)

    @classmethod
    def begun(
        cls,
        rollout_id: str,
        claim_epoch: int,
        *,
        task: str,
        loop_digest: str,
        configuration_digest: str,
        at: str,
    ) -> Self:
        """A rollout that recorded nothing."""
        new = cls(
            rollout_id=rollout_id,
            claim_epoch=claim_epoch,
            attempt=1,
            restarts=0,
            status="open",
            reason="",
            task=task,
            loop_digest=loop_digest,
            configuration_digest=configuration_digest,
            first=1,
            next=1,
            head="",
            reopened=0,
            changed_at=at,
        )
        return replace(new, head=new.genesis)

    def refused(self, code: str, why: str) -> CheckpointRefusal:
        """A refusal that is about it."""
        return CheckpointRefusal(
            code,
            f"rollout {self.rollout_id}: {why}",
            rollout_id=self.rollout_id,
            claim_epoch=self.claim_epoch,
        )

    def begun_anew(self, reason: str) -> "Rollout":
        """It, at its beginning again: what was recorded is given up.

        The number of the operation that would have come next is not used again: it may have been
        sent, and then its receiver knows it.
        """
        first = self.next + 1
        anew = replace(
            self,
            status="open",
            reason=reason,
            restarts=self.restarts + 1,
            first=first,
            next=first,
            reopened=0,
        )
        return replace(anew, head=anew.genesis)

    def set_aside(self, reason: str, last: int) -> "Rollout":
        """It, set aside without what it recorded; no number up to *last* is used again."""
        first = max(self.next, last + 1)
        aside = replace(self, status="quarantined", reason=reason, first=first, next=first)
        return replace(aside, head=aside.genesis)

    @property
    def discarded(self) -> bool:
        """An operator gave up what it had recorded, and nothing was recorded since."""
        return self.reason == DISCARDED and self.first == self.next


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One operation. Without a result it is an intent: it may have been performed, or not."""

    sequence: int
    claim_epoch: int  # under which it was recorded
    kind: str
    effect: Effect
    environment_id: str | None
    request_digest: str
    result: str | None  # canonical JSON
    revision: int | None  # of the environment, after it
    orphans: int  # samples that were lost, or may have been, before this one
    chain: str | None

    def same_as(self, kind: str, effect: Effect, environment_id: str | None, digest: str) -> bool:
        """Whether a loop that asks for this asks for what was recorded."""
        asked = (kind, effect, environment_id, digest)
        return (self.kind, self.effect, self.environment_id, self.request_digest) == asked

    def linked(self, previous: str) -> str:
        """The chain up to this operation."""
        if self.result is None:
            raise ValueError(f"operation {self.sequence} has no result")
        return link(
            previous,
            self.sequence,
            self.kind,
            self.effect,
            self.environment_id,
            self.request_digest,
            self.revision,
            digest(self.result),
        )

    @property
    def value(self) -> Any:
        """The result, as every attempt sees it."""
        if self.result is None:
            raise ValueError(f"operation {self.sequence} has no result")
        return json.loads(self.result)


def check_whole(rollout: Rollout, rows: Sequence[Recorded]) -> None:
    """Check that *rows*, in order, are all that *rollout* recorded, as it was recorded.

    An intent may follow them. Rows are checked up to the first that is wrong.

    Raises:
        CheckpointRefusal: ``gap`` or ``chain_broken``.
    """

    def refused(code: str, what: str) -> CheckpointRefusal:
        return rollout.refused(
            code,
            f"{what} in its journal; it is set aside, and `rollout-router sessions restart` starts"
            " it again from its input",
        )

    done = [row for row in rows if row.result is not None]
    found = [row.sequence for row in rows]
    expected = list(range(rollout.first, rollout.next))
    pending = len(rows) == len(done) + 1 and rows[-1].result is None
    if found != expected + [rollout.next] * pending or len(rows) - len(done) > 1:
        raise refused("gap", f"operations {rollout.first} to {rollout.next - 1} are not all there")
    chain = rollout.genesis
    for row in done:
        chain = row.linked(chain)
        if row.chain != chain:
            raise refused("chain_broken", f"operation {row.sequence} is not what was recorded")
    if chain != rollout.head:
        raise refused("chain_broken", "the end of the chain is not what was recorded")


def receipt_of(rollout: Rollout, payload: str) -> str:
    """The name of one result: of this rollout, with this history, and of these bytes."""
    return digest(canonical([rollout.rollout_id, rollout.head, digest(payload)]))
