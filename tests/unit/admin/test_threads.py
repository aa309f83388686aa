# SPDX-License-Identifier: Apache-2.0
"""Work that blocks runs in threads that keep nobody waiting."""

import asyncio
import threading

import pytest

from rollout_router.admin.threads import Threads
from rollout_router.errors import Refusal


def test_results_and_errors_come_back() -> None:
    def fail() -> None:
        raise ValueError("x")

    async def act() -> None:
        threads = Threads("t", 1)
        assert await threads.run(lambda: 7) == 7
        with pytest.raises(ValueError, match="x"):
            await threads.run(fail)
        assert await threads.run(lambda: threading.current_thread().daemon)

    asyncio.run(act())


def test_beyond_the_bound_nothing_is_begun_and_a_hung_one_delays_nobody() -> None:
    hung = threading.Event()

    async def act() -> None:
        threads = Threads("t", 2)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(threads.run(hung.wait))
            await asyncio.sleep(0)
            assert await threads.run(lambda: 7) == 7
            second = group.create_task(threads.run(hung.wait))
            await asyncio.sleep(0)
            with pytest.raises(Refusal, match="2 requests") as refused:
                await threads.run(lambda: 7)
            assert refused.value.code == "overloaded"
            hung.set()
        assert (task.result(), second.result()) == (True, True)

    asyncio.run(act())


def test_who_went_away_is_not_told_and_the_place_is_free_again() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()

    async def act() -> None:
        threads = Threads("t", 1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(threads.run(work))
            await asyncio.to_thread(begun.wait)
            task.cancel()
            await asyncio.wait([task])
            with pytest.raises(Refusal):
                await threads.run(lambda: 7)
            before = set(threading.enumerate())
            go_on.set()
            for thread in before:
                if thread.name == "t":
                    await asyncio.to_thread(thread.join)
        assert await threads.run(lambda: 7) == 7

    asyncio.run(act())
