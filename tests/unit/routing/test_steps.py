# SPDX-License-Identifier: Apache-2.0
"""The steps of a call, and what a worker has in hand (R6)."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from rollout_router.call import Call
from rollout_router.claims import Gate, write_gate
from rollout_router.history import Bounds, CallHandle, History, Key
from rollout_router.routing.admission import Admission
from rollout_router.routing.steps import CallSteps, Stepping

KEY = Key("r1", 7)


class Bench:
    """A gate, and one call behind it."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.now = 100.0
        self.history = History(Bounds(), clock=lambda: self.now)
        self.admission = Admission(state_dir)
        self.changed = asyncio.Event()
        self.stepping = Stepping(self.history, self.admission, self.changed)
        self.history.open(KEY)
        self.call, self.steps = self.another()

    def another(self) -> tuple[CallHandle, CallSteps]:
        call = self.history.begin(KEY)
        return call, self.stepping.of(call)

    def see(self, *, is_open: bool) -> None:
        """The gate is changed and read."""
        write_gate(self.state_dir, Gate(open=is_open, by="ada", why="a checkpoint"))
        self.admission.refresh()

    async def park(self, group: asyncio.TaskGroup) -> asyncio.Task[None]:
        """The call waits for the gate to be open."""
        self.changed.clear()
        task = group.create_task(self.steps.wait_open())
        await self.changed.wait()
        return task


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("done", "in_hand"),
    [
        ("", True),
        ("begin", True),
        ("begin end", False),
        ("begin begin end", True),
        ("begin begin end end", False),
        ("begin end begin", True),
        ("close", True),
        ("close begin", False),
        ("begin close begin", True),
        ("begin close begin end", False),
        ("close begin open begin", True),
    ],
)
def test_r6_a_call_is_in_hand_whole_until_its_first_step_and_then_within_steps(
    bench: Bench, done: str, *, in_hand: bool
) -> None:
    whole, _ = bench.another()
    for what in done.split():
        match what:
            case "begin":
                assert bench.steps.begin() is bench.admission.gate.open
            case "end":
                bench.steps.end()
            case _:
                bench.see(is_open=what == "open")

    assert set(bench.stepping.in_hand()) == ({bench.call, whole} if in_hand else {whole})
    assert bench.changed.is_set() or in_hand, "whoever waits for the end must be told"


def test_r6_behind_a_closed_gate_nothing_is_counted(bench: Bench) -> None:
    bench.see(is_open=False)

    assert not bench.steps.begin()
    with pytest.raises(RuntimeError, match="begin one"):
        bench.steps.end()


async def test_r6_a_parked_call_is_woken_by_who_reads_that_the_gate_is_open(bench: Bench) -> None:
    bench.see(is_open=False)
    async with asyncio.TaskGroup() as group:
        waiting = await bench.park(group)
        parked = bench.stepping.parked()
        again = await bench.park(group)
        bench.see(is_open=False)
        assert (bench.stepping.parked(), bench.stepping.in_hand()) == (parked, [])
        await asyncio.to_thread(bench.see, is_open=True)  # as housekeeping reads it

    assert parked == [(bench.call, 100.0)]
    assert waiting.done()
    assert again.done()
    assert bench.stepping.parked() == []
    assert bench.steps.begin()


async def test_r6_a_gate_that_is_closed_again_keeps_a_parked_call(bench: Bench) -> None:
    bench.see(is_open=False)
    async with asyncio.TaskGroup() as group:
        waiting = await bench.park(group)
        bench.see(is_open=True)
        bench.see(is_open=False)
        woken = asyncio.Event()
        asyncio.get_running_loop().call_soon(woken.set)  # behind what woke it
        await woken.wait()
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
        bench.see(is_open=True)


async def test_r6_an_open_gate_is_not_waited_for(bench: Bench) -> None:
    async with asyncio.timeout(0):
        await bench.steps.wait_open()

    assert bench.stepping.in_hand() == [bench.call]


async def test_r6_a_wait_that_was_cancelled_is_over(bench: Bench) -> None:
    bench.see(is_open=False)
    async with asyncio.TaskGroup() as group:
        (await bench.park(group)).cancel()

    assert bench.stepping.parked() == []
    assert bench.admission._waking == set()


async def test_r6_a_worker_that_closed_its_own_gate_lets_no_step_begin(bench: Bench) -> None:
    bench.admission.close_own(by="worker", why="it leaves")
    async with asyncio.TaskGroup() as group:
        waiting = await bench.park(group)
        bench.see(is_open=True)
        assert not bench.steps.begin()
        await asyncio.wait([waiting], timeout=0.01)
        assert not waiting.done()
        waiting.cancel()


async def test_r6_the_end_of_a_call_ends_its_steps(bench: Bench) -> None:
    assert bench.steps.begin()

    bench.stepping.forget(bench.call)
    bench.call.end()

    assert (bench.stepping.in_hand(), bench.stepping.parked()) == ([], [])
    bench.steps.end()  # of one that outlives its call: nothing is left to end
    with pytest.raises(RuntimeError, match="over"):
        bench.steps.begin()
    with pytest.raises(RuntimeError, match="over"):
        await bench.steps.wait_open()


def test_r6_steps_are_no_part_of_what_a_call_is(bench: Bench) -> None:
    plain = Call(rollout_id="r1", claim_epoch=7, worker_id="w1", store_id="s1")
    stepping = replace(plain, steps=bench.steps)

    assert (plain, hash(plain), repr(plain)) == (stepping, hash(stepping), repr(stepping))
