# SPDX-License-Identifier: Apache-2.0
"""What waits for a lock stops nothing that takes none (C7)."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from rollout_router.claims import StoreUnavailable, stripe_of
from rollout_router.routing import threads as module
from rollout_router.routing.threads import LOCKING_THREADS_MAX, StoreThreads


@pytest.fixture
def threads() -> Iterator[StoreThreads]:
    threads = StoreThreads()
    yield threads
    threads.close()


def in_stripes(count: int, *, each: int = 1) -> list[str]:
    """Rollout ids in so many different stripes, *each* in every one of them."""
    found: dict[str, list[str]] = {}
    number = 0
    while sum(len(ids) >= each for ids in found.values()) < count:
        found.setdefault(stripe_of(f"r{number}"), []).append(f"r{number}")
        number += 1
    whole = [ids[:each] for ids in found.values() if len(ids) >= each][:count]
    return [name for ids in whole for name in ids]


async def test_c7_as_many_stuck_stripes_as_threads_stop_no_quick_call(
    threads: StoreThreads,
) -> None:
    release = threading.Event()
    stuck = threading.Barrier(LOCKING_THREADS_MAX + 1)

    def hold() -> None:
        stuck.wait()
        release.wait()

    async with asyncio.TaskGroup() as group:
        for name in in_stripes(LOCKING_THREADS_MAX):
            group.create_task(threads.locking(name, hold))
        await threads.quick(stuck.wait)
        assert await threads.quick(lambda: "answered") == "answered"
        release.set()


async def test_c7_one_thread_waits_for_a_stripe_however_many_calls_it_has(
    threads: StoreThreads,
) -> None:
    release, entered = threading.Event(), threading.Event()
    running = 0
    most = 0

    def hold() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        entered.set()
        release.wait()
        running -= 1

    async with asyncio.TaskGroup() as group:
        for name in in_stripes(1, each=8):
            group.create_task(threads.locking(name, hold))
        await threads.quick(entered.wait)
        free = next(name for name in in_stripes(2) if stripe_of(name) != stripe_of("r0"))
        assert await threads.locking(free, lambda: "answered") == "answered"
        release.set()
    assert most == 1


async def test_c7_a_call_whose_turn_does_not_come_is_not_made(
    threads: StoreThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_S_MAX", 0.01)
    release, entered = threading.Event(), threading.Event()
    made: list[str] = []

    def hold() -> None:
        entered.set()
        release.wait()

    first, second = in_stripes(1, each=2)
    async with asyncio.TaskGroup() as group:
        group.create_task(threads.locking(first, hold))
        await threads.quick(entered.wait)
        with pytest.raises(StoreUnavailable, match=second):
            await threads.locking(second, lambda: made.append(second))
        release.set()
    assert made == []
