# SPDX-License-Identifier: Apache-2.0
"""The owner of background tasks."""

import asyncio
import logging

import pytest

from rollout_router.routing.tasks import Tasks


async def test_cancel_ends_tasks_that_are_spawned_meanwhile_too() -> None:
    tasks = Tasks()
    ended: list[str] = []

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")

    async def first() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.spawn(last(), name="last")
            await asyncio.sleep(0)
            ended.append("first")

    tasks.spawn(first(), name="first")
    await asyncio.sleep(0)
    await tasks.cancel()

    assert ended == ["first", "last"]


async def test_an_error_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    async def fail() -> None:
        raise LookupError("lost")

    with caplog.at_level(logging.ERROR):
        task = tasks.spawn(fail(), name="the one that fails")
        await asyncio.wait([task])
        await asyncio.sleep(0)

    assert "the one that fails" in caplog.text
    assert "LookupError: lost" in caplog.text


async def test_the_failure_of_one_task_leaves_the_others_alone() -> None:
    tasks = Tasks()
    go = asyncio.Event()

    async def fail() -> None:
        raise LookupError

    async def work() -> str:
        await go.wait()
        return "done"

    failing = tasks.spawn(fail(), name="failing")
    working = tasks.spawn(work(), name="working")
    await asyncio.wait([failing])
    go.set()

    assert await working == "done"
