# SPDX-License-Identifier: Apache-2.0
"""End a block of work when something outside it says so: the client left, or the owner died.

The block is cancelled from within its own task, so clean-up runs as for any cancellation, and a
cancellation that comes from elsewhere still goes through untouched.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from rollout_router.routing.tasks import Tasks

__all__ = ["Watcher", "guarded"]

Watcher = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
"""Waits for its event, then calls what it was given."""


@asynccontextmanager
async def guarded(tasks: Tasks, watchers: dict[Watcher, Exception]) -> AsyncIterator[None]:
    """Run the block while *watchers* watch; the first that calls ends it with its exception.

    Raises:
        Exception: the one that stands beside the watcher that called.
    """
    loop = asyncio.get_running_loop()
    reason: list[Exception] = []

    def ender(error: Exception) -> Callable[[], None]:
        def end() -> None:
            if not reason:
                reason.append(error)
                limit.reschedule(loop.time())

        return end

    try:
        async with asyncio.timeout(None) as limit:
            watching = [
                tasks.spawn(watch(ender(error)), name=f"watch for {type(error).__name__}")
                for watch, error in watchers.items()
            ]
            try:
                yield
            finally:
                for task in watching:
                    task.cancel()
    except TimeoutError:
        if limit.expired() and reason:
            raise reason[0] from None
        raise
