# SPDX-License-Identifier: Apache-2.0
"""A run at a gate that closes: parked it wrote nothing, and nothing tells of it afterwards."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.recording import (
    TASK,
    Gate,
    Server,
    World,
    call,
    dump,
    journal_in,
    on_a_loop,
    opened,
    sessions_of,
)

from rollout_router.checkpoint.effects import Lost, NotPerformed, Performed
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.rows import EFFECTS, Effect
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.wire import Operation


async def begun(journal: Journal, gate: Gate) -> Run:
    found = await opened(journal)
    return Run(journal, found.rollout, found.rows, steps=gate)


async def act_on(run: Run, server: Server, effect: Effect) -> Any:
    return await run.op("do", {"a": 1}, server, effect=effect)


@asynccontextmanager
async def parked(gate: Gate, folder: Path) -> AsyncIterator[None]:
    """While it lasts, whoever comes to *gate* writes nothing."""
    before = dump(folder)
    gate.opens.clear()
    gate.waits.clear()
    yield
    await gate.waits.wait()
    assert dump(folder) == before
    assert gate.in_hand == 0
    gate.opens.set()


@pytest.mark.parametrize("effect", sorted(EFFECTS))
@on_a_loop
async def test_a_parked_operation_wrote_nothing_and_sent_nothing(
    folder: Path, journal: Journal, effect: Effect
) -> None:
    gate, server = Gate(), Server(1)
    run = await begun(journal, gate)
    async with asyncio.TaskGroup() as tasks, parked(gate, folder):
        tasks.create_task(act_on(run, server, effect))
        await gate.waits.wait()
        assert not server.sent
        assert run.rollout.next == 1
    assert run.rollout.next == 2
    async with asyncio.TaskGroup() as tasks, parked(gate, folder):
        tasks.create_task(run.complete({}))
    assert (gate.in_hand, len(dump(folder)["outbox"])) == (0, 1)


@pytest.mark.parametrize(
    ("effect", "failure", "in_hand"),
    [
        ("keyed", NotPerformed("parked"), 0),
        ("keyed", Lost("cut"), 1),
        ("resample", NotPerformed("parked"), 0),
        ("resample", Lost("cut"), 0),
        ("once", NotPerformed("parked"), 0),
    ],
)
@on_a_loop
async def test_an_operation_stays_in_hand_while_it_may_have_been_performed(
    journal: Journal, effect: Effect, failure: Exception, in_hand: int
) -> None:
    gate = Gate()

    class Closing(Server):
        async def __call__(self, operation: Operation) -> Performed:
            assert gate.in_hand == 1
            if not self.sent:
                gate.opens.clear()
            return await super().__call__(operation)

    server, answer = Closing(failure, *[NotPerformed("parked")] * (in_hand * 3), "yes"), 0
    run = await begun(journal, gate)
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(act_on(run, server, effect))
        if not in_hand:  # it left, and comes again when the gate is open
            await gate.waits.wait()
            assert (gate.in_hand, len(server.sent)) == (0, 1)
            gate.opens.set()
        assert await work == "yes"
    answer = 1 + 3 * in_hand + 1
    assert (len(server.sent), gate.in_hand) == (answer, 0)
    assert not in_hand or not gate.waits.is_set()


def _parks(at: int, gate: Gate, loop: Callable[[Run, Any], Awaitable[Any]]) -> Any:
    """*loop*, before whose operation of that number the gate closes."""

    async def play(run: Run, task: Any) -> Any:
        operation = run.op

        async def op(*args: Any, **named: Any) -> Any:
            if run.rollout.next == at:
                gate.opens.clear()
            return await operation(*args, **named)

        run.op = op  # type: ignore[method-assign]
        done = await loop(run, task)
        if run.rollout.next == at:
            gate.opens.clear()
        return done

    return play


@pytest.mark.parametrize("at", range(1, 11))
@on_a_loop
async def test_a_session_that_was_parked_is_what_one_that_was_not_is(
    folder: Path, journal: Journal, at: int
) -> None:
    calm, gate, world = folder / "calm", Gate(), World()
    calm.mkdir(mode=0o700)
    other = journal_in(calm)
    async with sessions_of(other, World().loop) as sessions:
        expected = await sessions.run(call(), TASK)
    other.close()
    parked = sessions_of(journal, _parks(at, gate, world.loop))
    async with parked as sessions, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(sessions.run(call(steps=gate), TASK))
        await gate.waits.wait()
        before = dump(folder)
        assert (len(before["operation"]), before["rollout"][0][4]) == (at - 1, "open")
        assert (len(world.received), gate.in_hand) == (at - 1, 0)
        gate.opens.set()
        assert await work == expected
    assert dump(folder) == dump(calm)
    assert gate.in_hand == 0


@pytest.mark.parametrize("taken", [False, True])
@on_a_loop
async def test_a_closed_gate_holds_the_beginning_and_the_taking_too(
    folder: Path, journal: Journal, *, taken: bool
) -> None:
    gate, world = Gate(is_open=False), World()
    async with sessions_of(journal, world.loop, release=world.release) as sessions:
        receipt = (await sessions.run(call(), TASK)).receipt if taken else ""
        before, at = dump(folder), call(2, steps=gate)
        async with asyncio.TaskGroup() as tasks:
            work = sessions.acknowledge(at, receipt) if taken else sessions.run(at, TASK)
            waiting = tasks.create_task(work)
            await gate.waits.wait()
            assert dump(folder) == before
            assert not world.forgotten
            gate.opens.set()
            await waiting
    assert dump(folder) != before
    assert gate.in_hand == 0
