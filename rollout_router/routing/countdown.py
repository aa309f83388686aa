# SPDX-License-Identifier: Apache-2.0
"""A bounded wait on the event loop that never blames a peer for the loop's own pause."""

import math
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Final

__all__ = ["LATE_S", "Countdown"]

LATE_S: Final = 1.0
"""A timer that comes later than this was held up: the process was stopped, or its loop did not
turn. What the peer sent meanwhile may wait unread, so this part of the wait begins anew."""

_PARTS: Final = 30
"""Timers of one wait, and so the share of it that one pause of the loop may cost a peer. A second
of the shortest wait; timers of a second each would be 16,384 a second at the most connections."""


class Countdown:
    """One wait at a time: begun, and ended by :meth:`pause`, :meth:`cancel` or its call."""

    __slots__ = ("_armed", "_began", "_loop", "_parts", "_seconds", "_then", "_timer")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: TimerHandle | None = None
        self._then: Callable[[], object] | None = None

    def start(self, seconds: float, then: Callable[[], object]) -> None:
        """Call *then* after so many seconds in which the loop turned. Ends an earlier wait.

        Infinite seconds are waited for without a timer.
        """
        self._seconds, self._then = seconds, then
        self._began = self._loop.time()
        self._parts = 1  # gone, with the one under way
        if self._timer is not None and self._armed > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._wait()

    def pause(self) -> None:
        """Wait no longer, but leave the timer to the next wait, which costs less than another."""
        self._then = None

    def cancel(self) -> None:
        """Wait no longer. Without a wait it does nothing."""
        self._then = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def running(self) -> bool:
        """Whether a wait has begun and not ended."""
        return self._then is not None

    @property
    def waited_s(self) -> float:
        """How much of the latest wait is over, without the time in which the loop stood still."""
        return min(self._loop.time(), self._due) - self._began

    @property
    def _due(self) -> float:
        return self._began + self._seconds * self._parts / _PARTS

    def _wait(self) -> None:
        self._armed = self._due
        self._timer = None if math.isinf(self._due) else self._loop.call_at(self._due, self._turn)

    def _turn(self) -> None:
        self._timer = None
        if self._then is None:
            return
        if self._armed < self._due:  # of an earlier wait
            self._wait()
            return
        late_s = self._loop.time() - self._due
        if late_s > LATE_S:
            self._began += late_s + self._seconds / _PARTS
        elif self._parts == _PARTS:
            then, self._then = self._then, None
            then()
            return
        else:
            self._parts += 1
        self._wait()
