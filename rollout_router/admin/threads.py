# SPDX-License-Identifier: Apache-2.0
"""Work that blocks, in threads that never delay the end of the process.

Each piece has a thread of its own: one that hangs (a stopped worker, a disk) holds up nothing but
itself. The threads are daemons: a worker that does not answer, or an operator's wait of an hour,
does not keep the process. What is cut off so is a read, or a change of the store that holds its
laws through a kill at any moment.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from rollout_router.errors import Refusal

__all__ = ["Threads"]

_Result = TypeVar("_Result")


class Threads:
    """Up to so many at one time.

    Args:
        name: of the threads.
        threads_max: how many.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._max = threads_max
        self._running = 0

    async def run(self, work: Callable[[], _Result]) -> _Result:
        """What *work* returns or raises. Cancelled, it goes on unheard to its end.

        Raises:
            Refusal: ``overloaded``; nothing was begun.
        """
        if self._running >= self._max:
            said = f"{self._running} requests of this kind are under way: try again"
            raise Refusal("overloaded", said)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()

        def tell(result: _Result | None, error: BaseException | None) -> None:
            self._running -= 1
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type] # it is what work returned

        def act() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:  # noqa: BLE001 - raised again where it is awaited
                error = raised
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(tell, result, error)

        self._running += 1
        try:
            threading.Thread(target=act, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no thread left
            self._running -= 1
            raise
        return await done
