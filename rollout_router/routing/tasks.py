# SPDX-License-Identifier: Apache-2.0
"""The owner of a worker's background tasks: none is lost, none dies unheard."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Tasks"]

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


class Tasks:
    """A set of tasks that live as long as their worker.

    A TaskGroup would end all of them when one fails; these belong to different rollouts.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(
        self, work: Coroutine[Any, Any, _Result], *, name: str, heard: bool = False
    ) -> asyncio.Task[_Result]:
        """Run *work* as a task of this owner.

        An exception is logged, unless somebody awaits the task and answers it (*heard*).
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._discard if heard else self._done)
        return task

    async def cancel(self) -> None:
        """Cancel every task, those spawned meanwhile too, and wait until all have ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("task %s failed", task.get_name(), exc_info=error)
