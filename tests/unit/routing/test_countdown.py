# SPDX-License-Identifier: Apache-2.0
"""A wait on the loop, its clock in the hands of the test."""

import math

from support.wire import TurnedLoop

from rollout_router.routing.countdown import LATE_S, Countdown


async def test_a_wait_ends_with_its_call_once() -> None:
    loop, called = TurnedLoop(), []
    wait = Countdown(loop)  # type: ignore[arg-type]
    wait.start(60, lambda: called.append(loop.time()))
    began = loop.time()
    await loop.turn(59)
    assert (called, wait.running) == ([], True)
    await loop.turn(100)
    assert (called, wait.running) == ([began + 60], False)


async def test_a_wait_that_is_paused_and_begun_anew_costs_no_other_timer_and_is_as_long() -> None:
    loop, called = TurnedLoop(), []
    wait = Countdown(loop)  # type: ignore[arg-type]
    for _ in range(50):
        wait.start(60, lambda: called.append(loop.time()))
        assert len(loop._standing()) == 1
        await loop.turn(1)
        wait.pause()
        assert not wait.running
    await loop.turn(200)
    assert (called, loop._standing()) == ([], [])
    wait.start(60, lambda: called.append(loop.time()))
    began = loop.time()
    await loop.turn(61)
    assert called == [began + 60]


async def test_a_shorter_wait_is_not_held_up_by_the_timer_of_a_longer_one() -> None:
    loop, called = TurnedLoop(), []
    wait = Countdown(loop)  # type: ignore[arg-type]
    wait.start(600, lambda: called.append("long"))
    wait.pause()
    wait.start(2, lambda: called.append("short"))
    await loop.turn(2)
    assert (called, loop._standing()) == (["short"], [])


async def test_an_infinite_wait_never_ends_whatever_timer_stood() -> None:
    loop, called = TurnedLoop(), []
    wait = Countdown(loop)  # type: ignore[arg-type]
    wait.start(3, lambda: called.append("short"))
    wait.start(math.inf, lambda: called.append("never"))
    await loop.turn(1000)
    assert (called, loop._standing(), wait.running) == ([], [], True)


async def test_a_pause_of_the_loop_is_not_the_peers() -> None:
    loop, called = TurnedLoop(), []
    wait = Countdown(loop)  # type: ignore[arg-type]
    wait.start(60, lambda: called.append(loop.time()))
    began = loop.time()
    await loop.turn(10)
    await loop.stop_and_go_on(500 + LATE_S)
    assert called == []
    await loop.turn(60)
    assert len(called) == 1
    assert 60 + 500 <= called[0] - began <= 60 + 500 + LATE_S + 4
