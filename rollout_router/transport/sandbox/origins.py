# SPDX-License-Identifier: Apache-2.0
"""What is known of an origin: whether it gets frames, and since when it does not. Pure.

S4: off lasts 30 s, twice as long each time, at most 10 min. Resyncs are counted in a row for each
rollout, because an owner's death is one event for each rollout that it had; off is the origin's.
Nothing here locks: the client does.
"""

import enum
from collections import OrderedDict

__all__ = ["OFF_S_FIRST", "OFF_S_MAX", "RESYNCS_MAX", "Link", "Origin"]

OFF_S_FIRST = 30.0
OFF_S_MAX = 600.0
RESYNCS_MAX = 3
_ROWS_MAX = 1_024  # rollouts with a row that has begun; a sandbox has one rollout


class Link(enum.Enum):
    """Whether an origin gets frames."""

    UNKNOWN = "unknown"  # send in full, and ask to keep
    ON = "on"  # it said kept=: frames are understood
    OFF = "off"  # send as if the sandbox side were not there, until the time is over


class Origin:
    """One origin; ``link`` holds from the last :meth:`pass_time` on."""

    def __init__(self) -> None:
        self.link = Link.UNKNOWN
        self._off_until_s = 0.0
        self._off_s = OFF_S_FIRST  # how long the next one lasts
        self._rows: OrderedDict[str, int] = OrderedDict()

    def pass_time(self, now_s: float) -> None:
        """End *off* where its time is over, in monotonic seconds."""
        if self.link is Link.OFF and now_s >= self._off_until_s:
            self.link = Link.UNKNOWN

    def turn_on(self) -> None:
        """It said ``kept=``."""
        self.link = Link.ON

    def prove(self, rollout: str) -> None:
        """It understood a frame: the rollout's row ends, and the next *off* is a first one."""
        self._rows.pop(rollout, None)
        self._off_s = OFF_S_FIRST

    def count_resync(self, rollout: str) -> bool:
        """One more resync; whether it is the rollout's third in a row."""
        row = self._rows.pop(rollout, 0) + 1
        self._rows[rollout] = row
        if len(self._rows) > _ROWS_MAX:
            self._rows.popitem(last=False)
        return row >= RESYNCS_MAX

    def turn_off(self, now_s: float) -> None:
        """No frames from now on, until the time is over; all rows end."""
        self.link = Link.OFF
        self._off_until_s = now_s + self._off_s
        self._off_s = min(2 * self._off_s, OFF_S_MAX)
        self._rows.clear()
