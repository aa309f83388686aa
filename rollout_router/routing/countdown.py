# SPDX-License-Identifier: Apache-2.0
"""A bounded wait on the event loop that never blames a peer for the loop's own pause."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from typing import Final

__all__ = ["LATE_S", "Countdown"]

LATE_S: Final = 1.0
"""A timer that comes later than this was held up: the process was stopped, or its loop did not
turn. What the peer sent meanwhile may wait unread, so the wait begins anew."""


class Countdown:
    """One wait at a time: begun, and ended by :meth:`cancel` or by its call."""

    __slots__ = ("_due", "_loop", "_seconds", "_then", "_timer")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: TimerHandle | None = None

    def start(self, seconds: float, then: Callable[[], object]) -> None:
        """Call *then* after so many seconds in which the loop turned. Ends an earlier wait."""
        self.cancel()
        self._seconds, self._then = seconds, then
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._end)

    def cancel(self) -> None:
        """Wait no longer. Without a wait it does nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def running(self) -> bool:
        """Whether a wait has begun and not ended."""
        return self._timer is not None

    def _end(self) -> None:
        self._timer = None
        if self._loop.time() - self._due > LATE_S:
            self.start(self._seconds, self._then)
        else:
            self._then()
