# SPDX-License-Identifier: Apache-2.0
"""What the calls of one worker have in hand: the whole call, or a step of it (R6).

Whoever closes the gate waits until nothing is in hand. A call that works in steps is in hand only
while one runs, so that it can stand still for a checkpoint without coming to its end.

Synchronous but for the wait, for one thread (the event loop's): between a look at the gate and a
count nothing else happens, so what was quiet behind a closed gate stays so.
"""

import asyncio
from dataclasses import dataclass, field

from rollout_router.history import CallHandle, History
from rollout_router.routing.admission import Admission

__all__ = ["CallSteps", "Stepping"]


@dataclass(frozen=True, slots=True, eq=False)
class Stepping:
    """The calls of one worker, and which of them work in steps.

    Attributes:
        history: counts the calls.
        admission: the gate.
        changed: set whenever a call may no longer be in hand.
    """

    history: History
    admission: Admission
    changed: asyncio.Event
    _steps: "dict[CallHandle, CallSteps]" = field(default_factory=dict)

    def of(self, call: CallHandle) -> "CallSteps":
        """The steps of *call*, which must :meth:`forget` them when it ends."""
        steps = self._steps[call] = CallSteps(self)
        return steps

    def forget(self, call: CallHandle) -> None:
        """The call ends, and with it its steps."""
        self._steps.pop(call).over = True

    def in_hand(self) -> list[CallHandle]:
        """The calls that keep a closed gate from being quiet."""
        steps = self._steps
        return [call for call in self.history.calls if call not in steps or steps[call].in_hand]

    def parked(self) -> list[tuple[CallHandle, float]]:
        """The calls that wait for the gate and have nothing in hand, and since when each does."""
        found = [(call, steps) for call, steps in self._steps.items() if not steps.in_hand]
        return [(call, since) for call, steps in found if (since := steps.parked_at) is not None]


class CallSteps:
    """See :class:`rollout_router.call.Steps`."""

    __slots__ = ("_running", "_stepping", "_used", "_waits", "over")

    def __init__(self, stepping: Stepping) -> None:
        self.over = False
        self._stepping = stepping
        self._used = False
        self._running = 0
        self._waits: list[float] = []  # when each that waits now began to

    @property
    def in_hand(self) -> bool:
        """Whether a step runs, or the call is one that neither steps nor waits."""
        return self._running > 0 or not (self._used or self._waits)

    @property
    def parked_at(self) -> float | None:
        """Since when the call waits for the gate, by history's clock."""
        return min(self._waits, default=None)

    def begin(self) -> bool:
        """See the protocol."""
        self._check()
        self._used = True
        if self._stepping.admission.gate.open:
            self._running += 1
            return True
        self._stepping.changed.set()
        return False

    def end(self) -> None:
        """See the protocol."""
        if self.over:  # and its steps with it
            return
        if not self._running:
            raise RuntimeError("no step of this call runs: begin one before it ends")
        self._running -= 1
        self._stepping.changed.set()

    async def wait_open(self) -> None:
        """See the protocol."""
        self._check()
        since = self._stepping.history.clock()
        self._waits.append(since)
        self._stepping.changed.set()
        try:
            await self._stepping.admission.wait_open()
        finally:
            self._waits.remove(since)

    def _check(self) -> None:
        if self.over:
            raise RuntimeError("this call is over: it has no more steps")
