# SPDX-License-Identifier: Apache-2.0
"""Ending a block from outside, and letting every other cancellation through."""

import asyncio
from collections.abc import Callable

import pytest

from rollout_router.routing.guard import Watcher, guarded
from rollout_router.routing.tasks import Tasks


class Ended(Exception):  # noqa: N818 - a signal of these tests
    pass


class OtherEnd(Exception):  # noqa: N818 - a signal of these tests
    pass


def when(event: asyncio.Event) -> Watcher:
    async def watch(end: Callable[[], None]) -> None:
        await event.wait()
        end()

    return watch


async def test_a_watcher_ends_the_block_with_its_exception() -> None:
    tasks, event, cleaned = Tasks(), asyncio.Event(), asyncio.Event()

    async def block() -> None:
        async with guarded(tasks, {when(event): Ended(), when(asyncio.Event()): OtherEnd()}):
            try:
                event.set()
                await asyncio.Event().wait()
            finally:
                cleaned.set()

    with pytest.raises(Ended):
        await block()

    assert cleaned.is_set()
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr] # within a task
    await tasks.cancel()


async def test_the_first_of_two_watchers_names_the_end() -> None:
    tasks, event = Tasks(), asyncio.Event()

    async def block() -> None:
        async with guarded(tasks, {when(event): Ended(), when(event): OtherEnd()}):
            event.set()
            await asyncio.Event().wait()

    with pytest.raises(Ended):
        await block()
    await tasks.cancel()


async def test_a_block_that_ends_by_itself_leaves_no_watcher() -> None:
    tasks, event = Tasks(), asyncio.Event()

    async with guarded(tasks, {when(event): Ended()}):
        await asyncio.sleep(0)

    watchers = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(watchers)
    event.set()
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr] # within a task


async def test_a_cancellation_from_outside_is_never_swallowed() -> None:
    tasks, inside = Tasks(), asyncio.Event()

    async def work() -> None:
        async with guarded(tasks, {when(asyncio.Event()): Ended()}):
            inside.set()
            await asyncio.Event().wait()

    task = tasks.spawn(work(), name="work")
    await inside.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await tasks.cancel()


async def test_a_cancellation_that_comes_together_with_an_end_goes_through() -> None:
    tasks, inside, event = Tasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with guarded(tasks, {when(event): Ended()}):
            inside.set()
            await asyncio.Event().wait()

    task = tasks.spawn(work(), name="work")
    await inside.wait()
    event.set()
    await asyncio.sleep(0)  # the watcher runs and asks for the end
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await tasks.cancel()


async def test_a_time_out_of_the_block_itself_stays_one() -> None:
    tasks = Tasks()

    with pytest.raises(TimeoutError, match="of the block"):
        async with guarded(tasks, {when(asyncio.Event()): Ended()}):
            raise TimeoutError("of the block")
    await tasks.cancel()


async def test_an_error_of_the_block_stands_before_an_end_that_came_late() -> None:
    tasks, event = Tasks(), asyncio.Event()

    async def block() -> None:
        async with guarded(tasks, {when(event): Ended()}):
            event.set()
            try:
                await asyncio.Event().wait()
            finally:
                raise LookupError

    with pytest.raises(LookupError):
        await block()
    await tasks.cancel()
