# SPDX-License-Identifier: Apache-2.0
"""The steps of one loop that several calls wait for (R6).

Each call that waits stands for the loop: in hand while a step runs, and no longer. Callers come
and go meanwhile; the loop goes on for whoever is left.
"""

import asyncio

from rollout_router.call import Steps

__all__ = ["SharedSteps"]


class SharedSteps:
    """See :class:`rollout_router.call.Steps`: for calls of one worker, and one step at a time."""

    def __init__(self) -> None:
        self._calls: dict[Steps, bool] = {}  # those that wait, and whether a step of each runs
        self._running = False

    def join(self, call: Steps) -> None:
        """A call waits for the loop from now on."""
        # Behind a closed gate nothing is counted: what runs then was counted for another call.
        began = call.begin()
        self._calls[call] = began and self._running
        if began and not self._running:
            call.end()

    def leave(self, call: Steps) -> None:
        """The call waits no more."""
        if self._calls.pop(call):
            call.end()

    def begin(self) -> bool:
        """See the protocol."""
        for call in self._calls:
            self._calls[call] = call.begin()
        self._running = any(self._calls.values())
        return self._running

    def end(self) -> None:
        """See the protocol."""
        self._running = False
        for call, began in self._calls.items():
            self._calls[call] = False
            if began:
                call.end()

    async def wait_open(self) -> None:
        """See the protocol. With nobody left it waits to be cancelled, as the loop then is."""
        for call in self._calls:
            await call.wait_open()
            return
        await asyncio.get_running_loop().create_future()
