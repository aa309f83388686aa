# SPDX-License-Identifier: Apache-2.0
"""What becomes of an answer and of the state: one table. Pure.

S1: no row delivers a resync, and one full body follows it at most. S3, S4: what else is sent again
was a frame of which the answer says that nothing ran.
"""

import enum
from typing import Dict, Tuple

__all__ = ["FRAMES", "TRANSITIONS", "Decision", "Effect", "Sent", "Signal"]


class Sent(enum.Enum):
    """How a request went out."""

    FULL = "full"  # the whole body, with keep
    FRAME = "frame"
    PACKED = "packed"  # the whole body, in place of a frame: another one, on the empty base
    RESENT = "resent"  # the whole body with keep, in place of a frame
    PLAIN = "plain"  # the whole body, and no word about history


class Signal(enum.Enum):
    """What an answer says about history."""

    KEPT = "kept="  # with the digest of what was sent; another digest is no mark
    RESYNC = "resync"  # with status 409; with another status it is no mark
    NONE = "none"
    MALFORMED = "400 delta_malformed"
    OK = "unmarked 2xx"
    REFUSED = "unmarked 400, 404, 415, 422"
    OTHER = "unmarked, another status"


class Decision(enum.Enum):
    """What becomes of an answer."""

    DELIVER = "deliver"
    PACK = "resend in full, packed"  # as a frame on the empty base, where that is shorter
    RESEND = "resend in full"
    ABORT = "abort"


class Effect(enum.Enum):
    """What becomes of the state."""

    NOTHING = "nothing"
    LEARN = "on, base usable"
    PROVE = "on, base usable, counters start again"
    FORGET = "if its base is held: bases of the rollout dropped, off at the third in a row"
    OFF = "off"


TRANSITIONS: Dict[Tuple[Sent, Signal], Tuple[Decision, Effect]] = {
    (Sent.FULL, Signal.KEPT): (Decision.DELIVER, Effect.LEARN),
    (Sent.FULL, Signal.RESYNC): (Decision.RESEND, Effect.OFF),
    (Sent.FULL, Signal.NONE): (Decision.DELIVER, Effect.NOTHING),
    (Sent.FULL, Signal.OK): (Decision.DELIVER, Effect.NOTHING),
    (Sent.FULL, Signal.REFUSED): (Decision.DELIVER, Effect.NOTHING),
    (Sent.FULL, Signal.OTHER): (Decision.DELIVER, Effect.NOTHING),
    (Sent.FRAME, Signal.KEPT): (Decision.DELIVER, Effect.PROVE),
    (Sent.FRAME, Signal.RESYNC): (Decision.PACK, Effect.FORGET),
    (Sent.FRAME, Signal.NONE): (Decision.DELIVER, Effect.NOTHING),
    (Sent.FRAME, Signal.MALFORMED): (Decision.RESEND, Effect.OFF),
    (Sent.FRAME, Signal.OK): (Decision.ABORT, Effect.OFF),
    (Sent.FRAME, Signal.REFUSED): (Decision.RESEND, Effect.OFF),
    (Sent.FRAME, Signal.OTHER): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PACKED, Signal.KEPT): (Decision.DELIVER, Effect.LEARN),
    (Sent.PACKED, Signal.RESYNC): (Decision.ABORT, Effect.OFF),
    (Sent.PACKED, Signal.NONE): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PACKED, Signal.MALFORMED): (Decision.RESEND, Effect.OFF),
    (Sent.PACKED, Signal.OK): (Decision.ABORT, Effect.OFF),
    (Sent.PACKED, Signal.REFUSED): (Decision.RESEND, Effect.OFF),
    (Sent.PACKED, Signal.OTHER): (Decision.DELIVER, Effect.NOTHING),
    (Sent.RESENT, Signal.KEPT): (Decision.DELIVER, Effect.LEARN),
    (Sent.RESENT, Signal.RESYNC): (Decision.ABORT, Effect.OFF),
    (Sent.RESENT, Signal.NONE): (Decision.DELIVER, Effect.NOTHING),
    (Sent.RESENT, Signal.OK): (Decision.DELIVER, Effect.NOTHING),
    (Sent.RESENT, Signal.REFUSED): (Decision.DELIVER, Effect.NOTHING),
    (Sent.RESENT, Signal.OTHER): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PLAIN, Signal.KEPT): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PLAIN, Signal.RESYNC): (Decision.ABORT, Effect.OFF),
    (Sent.PLAIN, Signal.NONE): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PLAIN, Signal.OK): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PLAIN, Signal.REFUSED): (Decision.DELIVER, Effect.NOTHING),
    (Sent.PLAIN, Signal.OTHER): (Decision.DELIVER, Effect.NOTHING),
}
"""Every pair but MALFORMED without a frame, which cannot be signalled. docs/wire.md shows it.

Of one request of the harness at most three go out: a frame, a packed one after a resync, and a
plain one after a packed one of which nothing ran. RESENT and PLAIN are followed by nothing. RESEND
of a frame, packed or not, turns the origin off first, so that PLAIN follows.
"""

FRAMES = frozenset({Sent.FRAME, Sent.PACKED})
"""What is no body."""
