# SPDX-License-Identifier: Apache-2.0
"""End a block of work when something outside it says so: the client left, or the owner died.

The block is cancelled from within its own task, so clean-up runs as for any cancellation, and a
cancellation that comes from elsewhere still goes through untouched.
"""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from rollout_router.routing.tasks import Tasks

__all__ = ["Stop", "Watcher", "guarded"]

Stop = Callable[[], object]
"""Ends the watch of somebody who tells of an event; again is harmless."""

Watcher = Callable[[Callable[[], None]], Coroutine[Any, Any, None] | Stop]
"""Calls what it was given when its event comes: a coroutine, which becomes a task, or somebody who
knows of the event anyway, and costs a call nothing that waits."""


class guarded:  # noqa: N801 - reads as the context that it is
    """Run the block while *watchers* watch; the first that calls ends it with its exception.

    As ``asyncio.timeout`` it cancels its own task, and knows by the task's count of cancellations
    whether one came from elsewhere too; it has no time, and so costs less.

    Raises:
        Exception: the one that stands beside the watcher that called.
    """

    __slots__ = (
        "_cancelling",
        "_ending",
        "_expired",
        "_reason",
        "_stops",
        "_task",
        "_tasks",
        "_watchers",
    )

    def __init__(self, tasks: Tasks, watchers: dict[Watcher, Exception]) -> None:
        self._tasks = tasks
        self._watchers = watchers
        self._reason: Exception | None = None
        self._ending: asyncio.Handle | None = None
        self._expired = False  # our own cancellation was asked for

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a block is guarded within a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._stops = [self._begun(watch, error) for watch, error in self._watchers.items()]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stop in self._stops:
            stop()
        if self._ending is not None:
            self._ending.cancel()
        if (
            self._expired
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
            and self._reason is not None
        ):
            raise self._reason from error

    def _begun(self, watch: Watcher, error: Exception) -> Stop:
        def end() -> None:
            if self._reason is None:
                self._reason = error
                # Not in this turn: whoever calls may be this very task.
                self._ending = asyncio.get_running_loop().call_soon(self._expire)

        watching = watch(end)
        if callable(watching):
            return watching
        return self._tasks.spawn(watching, name=f"watch for {type(error).__name__}").cancel

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
