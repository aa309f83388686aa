# SPDX-License-Identifier: Apache-2.0
"""Before and after dispatch: what was sent to an owner, and what may be done about its loss (R2).

Pure. Only where nothing can have run, or where the owner itself says so by a 421, may another route
follow. An answer that has begun is cut where its owner is lost (R4). :data:`AFTER` is the whole
table; a pair that it does not name cannot be.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

__all__ = ["AFTER", "Event", "Sent", "Then"]


class Sent(Enum):
    """How far a request got."""

    NOTHING = "nothing: not one byte was written"
    HEAD = "the head, which asks for 100 Continue"
    NEW_NOTHING = "nothing of a new rollout, which is placed"
    NEW_HEAD = "the head of a new rollout, which asks for 100 Continue"
    REQUEST = "the body, or a request in one piece: dispatch may have begun"
    ANSWER = "the request, and its client has a part of the answer"


class Event(Enum):
    """What came instead of a whole answer."""

    LOST = "no connection, it broke, or what came is no answer"
    DEAD = "the owner's life lock is free"
    MOVED = "421 from the owner"
    TIMED_OUT = "no answer within the limit"
    UNCLAIMED = "its claim was not taken within 10 s"


class Then(Enum):
    """What is done about it."""

    JUDGE = "ask the life lock; take over from a dead owner, or 503 owner_unreachable"
    REREAD = "read the claim again and route anew, at most twice; then 503 claim_moved"
    HERE = "take the claim here: nothing ran"
    UNREACHABLE = "503 owner_unreachable: nothing ran"
    LOST_IN_FLIGHT = "502 owner_lost_in_flight: it may have run"
    TIMEOUT = "504 owner_timeout: it may have run"
    CUT = "abort the client's connection"


AFTER: Final[Mapping[tuple[Sent, Event], Then]] = {
    (Sent.NOTHING, Event.LOST): Then.JUDGE,
    (Sent.NOTHING, Event.DEAD): Then.JUDGE,
    # An owner begins on a body alone (R6), so that its loss costs nothing until it had some of it.
    (Sent.HEAD, Event.LOST): Then.JUDGE,
    (Sent.HEAD, Event.DEAD): Then.JUDGE,
    (Sent.HEAD, Event.MOVED): Then.REREAD,
    (Sent.HEAD, Event.TIMED_OUT): Then.UNREACHABLE,
    # Nobody is judged: no claim names the worker that a new rollout was placed at.
    (Sent.NEW_NOTHING, Event.LOST): Then.HERE,
    (Sent.NEW_NOTHING, Event.DEAD): Then.HERE,
    (Sent.NEW_HEAD, Event.LOST): Then.HERE,
    (Sent.NEW_HEAD, Event.DEAD): Then.HERE,
    (Sent.NEW_HEAD, Event.MOVED): Then.REREAD,
    (Sent.NEW_HEAD, Event.UNCLAIMED): Then.HERE,
    # A kept connection that its owner closed under the first byte is here as well: whether that
    # byte arrived cannot be known.
    (Sent.REQUEST, Event.LOST): Then.LOST_IN_FLIGHT,
    (Sent.REQUEST, Event.DEAD): Then.LOST_IN_FLIGHT,
    (Sent.REQUEST, Event.MOVED): Then.REREAD,
    (Sent.REQUEST, Event.TIMED_OUT): Then.TIMEOUT,
    (Sent.ANSWER, Event.LOST): Then.CUT,
    (Sent.ANSWER, Event.DEAD): Then.CUT,
}
