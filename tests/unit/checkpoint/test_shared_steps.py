# SPDX-License-Identifier: Apache-2.0
"""One loop is in hand, or not, for every call that waits for it (R6)."""

import asyncio

import pytest

from rollout_router.checkpoint.shared_steps import SharedSteps


class FakeSteps:
    """The steps of one call, and its gate."""

    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate
        self.running = 0
        self.stepped = False

    def begin(self) -> bool:
        self.stepped = True
        self.running += self.gate.is_set()
        return self.gate.is_set()

    def end(self) -> None:
        assert self.running
        self.running -= 1

    async def wait_open(self) -> None:
        await self.gate.wait()


@pytest.fixture
def gate() -> asyncio.Event:
    """An open gate."""
    gate = asyncio.Event()
    gate.set()
    return gate


def test_r6_every_call_that_waits_is_in_hand_while_a_step_runs(gate: asyncio.Event) -> None:
    shared, first, second = SharedSteps(), FakeSteps(gate), FakeSteps(gate)
    shared.join(first)
    shared.join(second)
    assert (first.running, second.running) == (0, 0)
    assert shared.begin()
    assert (first.running, second.running) == (1, 1)
    shared.leave(first)
    assert (first.running, second.running) == (0, 1)
    shared.end()
    assert second.running == 0


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed"])
def test_r6_one_that_joins_a_running_step_is_in_hand_as_a_whole_until_its_end(
    gate: asyncio.Event, *, closes: bool
) -> None:
    shared, first, second = SharedSteps(), FakeSteps(gate), FakeSteps(gate)
    shared.join(first)
    assert shared.begin()
    if closes:
        gate.clear()
    shared.join(second)
    shared.leave(first)
    assert not second.stepped  # so that it keeps the gate from being quiet for the step that runs
    shared.end()
    assert (second.stepped, second.running) == (True, 0)
    assert shared.begin() is not closes


def test_r6_a_loop_that_waits_goes_on_although_the_call_that_it_waits_by_has_left(
    gate: asyncio.Event,
) -> None:
    async def scenario() -> None:
        shared, first, second = SharedSteps(), FakeSteps(gate), FakeSteps(gate)
        shared.join(first)
        shared.join(second)
        gate.clear()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(shared.wait_open())
            await asyncio.sleep(0)
            shared.leave(first)
            assert not waiting.done()
            gate.set()
        assert shared.begin()
        assert (first.running, second.running) == (0, 1)

    asyncio.run(scenario())


def test_r6_with_nobody_left_nothing_runs(gate: asyncio.Event) -> None:
    async def scenario() -> None:
        shared, only = SharedSteps(), FakeSteps(gate)
        shared.join(only)
        shared.leave(only)
        assert not shared.begin()
        waiting = asyncio.ensure_future(shared.wait_open())  # noqa: TID251 - cancelled below
        await asyncio.sleep(0)
        assert waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scenario())
