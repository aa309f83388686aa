# SPDX-License-Identifier: Apache-2.0
"""The threads in which a worker calls its claim store, so that nothing blocks the event loop (C7).

What takes the lock of a stripe may wait for seconds, and then at most one thread waits for that
stripe. What takes no lock has threads of its own, so that stuck stripes never stop a forward.
"""

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from rollout_router.claims import StoreUnavailable, stripe_of

__all__ = ["StoreThreads"]

LOCKING_THREADS_MAX: Final = 16
"""Threads that take stripe locks: so many stuck stripes stop acquisitions, and nothing else."""

QUICK_THREADS_MAX: Final = 4
"""Threads that read, judge and prove: each such call takes microseconds to milliseconds."""

TURN_S_MAX: Final = 5.0
"""How long one call waits for its turn at a stripe before it gives up, with 503. As long as the
store itself waits for the lock of a stripe."""

_Result = TypeVar("_Result")


class StoreThreads:
    """Two pools, and an order of turns at each stripe. For one event loop."""

    def __init__(self) -> None:
        self._turns: dict[str, asyncio.Lock] = {}  # by stripe, 256 at most
        self._free = asyncio.Semaphore(LOCKING_THREADS_MAX)
        self._locking = ThreadPoolExecutor(LOCKING_THREADS_MAX, thread_name_prefix="claim locks")
        self._quick = ThreadPoolExecutor(QUICK_THREADS_MAX, thread_name_prefix="claims")

    async def quick(self, work: Callable[[], _Result]) -> _Result:
        """Run a call that takes no lock."""
        return await asyncio.get_running_loop().run_in_executor(self._quick, work)

    async def locking(self, rollout_id: str, work: Callable[[], _Result]) -> _Result:
        """Run a call that takes the lock of the rollout's stripe; one thread a stripe waits.

        Raises:
            StoreUnavailable: others kept the stripe for too long; the call was not made.
        """
        turn = self._turns.setdefault(stripe_of(rollout_id), asyncio.Lock())
        try:
            async with asyncio.timeout(TURN_S_MAX):
                await turn.acquire()
        except TimeoutError as error:
            what = f"waiting behind others for the stripe of rollout {rollout_id}"
            raise StoreUnavailable(what, errno.ETIMEDOUT) from error
        try:
            async with self._free:
                return await asyncio.get_running_loop().run_in_executor(self._locking, work)
        finally:
            turn.release()

    def close(self) -> None:
        """Let the threads end by themselves."""
        self._locking.shutdown(wait=False)
        self._quick.shutdown(wait=False)
