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
        # Those that wait, and whether a step of each runs; None: it is in hand as a whole.
        self._calls: dict[Steps, bool | None] = {}
        self._running = False

    def join(self, call: Steps) -> None:
        """A call waits for the loop from now on."""
        if self._running:
            # No step of it could begin behind a closed gate, and this one may outlive the others.
            self._calls[call] = None
        else:
            self._settle(call)

    def leave(self, call: Steps) -> None:
        """The call waits no more."""
        if self._calls.pop(call):
            call.end()

    def _settle(self, call: Steps) -> None:
        """It works in steps from now on, and none runs."""
        self._calls[call] = False
        if call.begin():
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
            if began is None:
                self._settle(call)
            elif began:
                self._calls[call] = False
                call.end()

    async def wait_open(self) -> None:
        """See the protocol. With nobody left it waits to be cancelled, as the loop then is."""
        for call in self._calls:
            await call.wait_open()
            return
        await asyncio.get_running_loop().create_future()
