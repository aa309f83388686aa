# SPDX-License-Identifier: Apache-2.0
"""One request that an agent sent, and what became of it. Pure.

An attempt has one of three outcomes, which say how many records of it there may be:

    answered    the whole answer came                      exactly one record
    lost        the owner died after it may have begun     one record or none
    refused     503, or a 502 that says nothing is kept    none
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Attempt", "Holder", "Outcome", "outcome_of"]

_NOT_KEPT: Final = frozenset({"gateway_unreachable", "record_refused"})
_UNAVAILABLE: Final = 503


class Outcome(StrEnum):
    """What became of an attempt; the module says what follows from it."""

    ANSWERED = "answered"
    LOST = "lost"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The owner of a rollout, and under which claim epoch."""

    worker_id: str
    claim_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request as the SDK wrote it, and what came back: the rest is None where nothing did."""

    turn: int  # from 0
    body_sha256: str
    body_bytes: int
    outcome: Outcome
    model_sha256: str | None = None  # of the bytes that the model was given, as the head says
    holder: Holder | None = None  # who answered, as the head says
    status: int | None = None
    answer_sha256: str | None = None  # of the body's raw bytes, as far as they came
    answer_bytes: int | None = None


def outcome_of(status: int | None, code: str | None) -> Outcome | None:
    """What an error answer says of its call; None where no new call can make it good."""
    if code == "owner_lost_in_flight":
        return Outcome.LOST
    if status == _UNAVAILABLE or code in _NOT_KEPT:
        return Outcome.REFUSED
    return None
