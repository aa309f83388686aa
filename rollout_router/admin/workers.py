# SPDX-License-Identifier: Apache-2.0
"""One worker as the admin process knows it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rollout_router.claims import OwnerIdentity

__all__ = ["KnownWorker", "SeenWorker"]

_STATUS: Final[Mapping[str, Any]] = {
    "leaving": False,
    "claims": None,
    "sessions": None,
    "in_flight": None,
    "parked": None,
    "bases": None,
    "base_bytes": None,
    "lag_ms": None,
}

_LAG_MS_MIN: Final = 1.0  # a smaller change would have every page sent anew for nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorker:
    """A worker that has an owner file, and what its life lock says: alive, dead or unknown."""

    identity: OwnerIdentity
    verdict: str


@dataclass(slots=True, kw_only=True)
class KnownWorker:
    """What is known of one worker.

    Attributes:
        identity: as its owner file says.
        verdict: alive, dead or unknown.
        has_file: whether its owner file is there: it goes when the worker leaves, or a sweep
            clears it away.
        answers: whether it answered when it was asked last.
        status: what it said of itself last.
        rollouts: those that it owns, as far as is known; the order means nothing.
        told_until: the time of the newest event that it told.
        unconfirmed: while it tells everything anew, what it has not told again yet.
        replayed_until: while it does, the time up to which its events were told before.
    """

    identity: OwnerIdentity
    verdict: str
    has_file: bool = True
    answers: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)
    rollouts: dict[str, None] = field(default_factory=dict)
    told_until: str = ""
    unconfirmed: dict[str, None] | None = None
    replayed_until: str = ""

    @property
    def speaks(self) -> bool:
        """Whether what it says is newer than what the store says of its claims."""
        return self.answers and self.verdict != "dead"

    def told(self, status: Mapping[str, Any]) -> bool:
        """It answered, with *status*; whether that is news. A lag that trembles is none."""
        before, answered = self.status, self.answers
        lag_ms, lagged_ms = status.get("lag_ms"), before.get("lag_ms")
        if lag_ms is not None and lagged_ms is not None and abs(lag_ms - lagged_ms) < _LAG_MS_MIN:
            status = {**status, "lag_ms": lagged_ms}
        self.status, self.answers = status, True
        return not answered or before != status

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        identity = self.identity
        return {
            "id": identity.nonce,
            "pid": identity.pid,
            "socket": identity.socket,
            "verdict": self.verdict,
            "answers": self.answers,
            **{name: self.status.get(name, default) for name, default in _STATUS.items()},
            "started_at": self.status.get("started_at") or identity.at,
        }
