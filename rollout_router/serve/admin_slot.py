# SPDX-License-Identifier: Apache-2.0
"""The supervisor's admin process: replaced when it dies, ended last, and never worth the service.

One that cannot start is given up after a few tries, and said; the workers serve on.
"""

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

from rollout_router.admin.config import AdminConfig
from rollout_router.serve.child import BACKOFF_S, EARLY_EXITS_MAX, Child

__all__ = ["ADMIN_END_S", "AdminSlot"]

ADMIN_END_S: Final = 5.0
"""How long an admin process has for its end; it takes about one second, and is killed then."""


class AdminSlot:
    """The place of one admin process.

    Args:
        config: what each process is told.
        listener: listens at the admin address; this slot closes it.
        shown: where it is, for people.
        say: takes one line for people.
    """

    def __init__(
        self,
        config: AdminConfig,
        listener: socket.socket,
        *,
        shown: str,
        say: Callable[[str], None],
    ) -> None:
        self.url: Final = config.url
        self.shown: Final = shown
        self._config = config
        self._listener = listener
        self._say = say
        self._child: Child | None = None
        self._stopping = asyncio.Event()

    async def keep(self, on_ready: Callable[[], None]) -> None:
        """Run a process, and another where one ended, until stopped or given up.

        *on_ready* is called whenever one answers.
        """
        early_exits = 0
        while not self._stopping.is_set():
            was_ready = await self._run(on_ready)
            early_exits = 0 if was_ready else early_exits + 1
            if early_exits >= EARLY_EXITS_MAX:
                self._say(
                    f"{early_exits} admin processes in a row exited before they answered: the"
                    " service goes on without one"
                )
                break
            pause_s = BACKOFF_S[min(early_exits, len(BACKOFF_S) - 1)]
            await _within(self._stopping, pause_s)
        self._listener.close()

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()
        if self._child is not None:
            self._child.tell(signal.SIGTERM)

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        if self._child is not None:
            self._child.tell(signal.SIGKILL)

    async def _run(self, on_ready: Callable[[], None]) -> bool:
        """Run one process to its end; True where it ever answered."""
        try:
            child = await Child.start(_work, self._config, self._listener)
        except (OSError, EOFError) as error:
            self._say(f"the admin process cannot be started: {error!r}")
            return False
        self._child = child
        if self._stopping.is_set():
            child.tell(signal.SIGTERM)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(self._end_in_time(child))
            ready = await child.wait_ready()
            if ready is not None and not self._stopping.is_set():
                on_ready()
            await child.wait_end()
            ending.cancel()
        self._child = None
        if not self._stopping.is_set():
            self._say(f"admin process {child.pid} {child.ending()}")
        return ready is not None

    async def _end_in_time(self, child: Child) -> None:
        await self._stopping.wait()
        await asyncio.sleep(ADMIN_END_S)
        child.tell(signal.SIGKILL)


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _work(config: AdminConfig, listener: socket.socket, link: socket.socket) -> None:
    """What a forked process does."""
    gc.freeze()  # what it was forked with stays
    gc.enable()  # see rollout_router.serve.uncollected
    from rollout_router.admin.process import main  # noqa: PLC0415 - not in the supervisor

    sys.exit(main(config, listener, link))
