# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import recording
from support.recording import (
    STORE,
    TASK,
    World,
    act,
    call,
    dump,
    on_a_loop,
    refused,
    sessions_of,
)

from rollout_router.call import Call
from rollout_router.checkpoint import run as run_module
from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.sessions import source_digest


class Held:
    """A loop that waits after its first operation until a test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.go, self.number = asyncio.Event(), asyncio.Event(), 0
        self.cancelled, self.left = 0, asyncio.Event()

    async def __call__(self, run: Run, task: Any) -> Any:
        self.number += 1
        await act(run)
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            self.left.set()
            raise
        await act(run, "again")
        return {"task": task}


@on_a_loop
async def test_calls_of_one_rollout_share_its_loop_and_its_result(journal: Journal) -> None:
    held = Held()
    async with sessions_of(journal, held) as sessions, asyncio.TaskGroup() as tasks:
        calls = [tasks.create_task(sessions.run(call(), TASK)) for _ in range(3)]
        await held.begun.wait()
        await refused("task_changed", sessions.run(call(), {"another": 1}))
        calls[0].cancel()  # the others still wait
        held.go.set()
        assert await calls[1] == await calls[2]
        assert await sessions.run(call(), TASK) == await calls[1]
    assert (held.number, held.cancelled, sessions._sessions) == (1, 0, {})


@on_a_loop
async def test_a_loop_goes_with_its_last_caller_and_the_next_goes_on(
    folder: Path, journal: Journal
) -> None:
    held = Held()
    async with sessions_of(journal, held) as sessions:
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(sessions.run(call(), TASK)) for _ in range(2)]
            await held.begun.wait()
            for left in calls:
                left.cancel()
        await held.left.wait()
        held.go.set()
        assert (await sessions.run(call(), TASK)).receipt
    assert (held.cancelled, held.number) == (1, 2)
    assert [row[1] for row in dump(folder)["operation"]] == [1, 2]


@pytest.mark.parametrize("started", [False, True])
@on_a_loop
async def test_f1_a_call_of_a_higher_epoch_ends_the_loop_of_a_lower_one(
    journal: Journal, *, started: bool
) -> None:
    held = Held()
    async with sessions_of(journal, held) as sessions, asyncio.TaskGroup() as tasks:
        older = tasks.create_task(refused("operation_unavailable", sessions.run(call(1), TASK)))
        if started:
            await held.begun.wait()
        newer = tasks.create_task(sessions.run(call(2), TASK))
        await older
        held.go.set()
        await newer
        await refused("stale_attempt", sessions.run(call(1), TASK))
    assert held.cancelled == started


@pytest.mark.parametrize("started", [False, True])
@on_a_loop
async def test_the_end_of_the_context_ends_its_loops_and_tells_who_waits(
    journal: Journal, *, started: bool
) -> None:
    held = Held()
    sessions = sessions_of(journal, held)
    async with asyncio.TaskGroup() as tasks:
        async with sessions:
            waiting = sessions.run(call(), TASK)
            told = tasks.create_task(refused("operation_unavailable", waiting))
            await (held.begun.wait() if started else asyncio.sleep(0))
        assert (await told).retry_after
    await refused("operation_unavailable", sessions.run(call(), TASK))
    assert sessions._sessions == {}


@on_a_loop
async def test_an_error_in_the_context_is_the_caller_s_own(journal: Journal) -> None:
    with pytest.raises(KeyError):
        async with sessions_of(journal, Held()):
            raise KeyError


@on_a_loop
async def test_one_loop_s_error_is_no_matter_to_another(journal: Journal) -> None:
    held = Held()

    async def loop(run: Run, task: Any) -> Any:
        if run.rollout_id == "bad":
            raise KeyError
        return await held(run, task)

    async with sessions_of(journal, loop) as sessions, asyncio.TaskGroup() as tasks:
        good = tasks.create_task(sessions.run(call(), TASK))
        await held.begun.wait()
        for _ in range(2):
            with pytest.raises(KeyError):
                await sessions.run(call(rollout_id="bad"), TASK)
        held.go.set()
        assert (await good).receipt


@pytest.mark.parametrize("named", [{"claim_epoch": None}, {"store_id": "another"}])
@on_a_loop
async def test_f1_a_call_that_no_claim_of_this_store_fences_is_refused(
    folder: Path, journal: Journal, named: dict[str, Any]
) -> None:
    before = dump(folder)
    whose = {"rollout_id": "r", "worker_id": "w", "claim_epoch": 1, "store_id": STORE}
    asked = Call(**{**whose, **named})
    async with sessions_of(journal, Held()) as sessions:
        await refused("rollout_unclaimed", sessions.run(asked, TASK))
        await refused("rollout_unclaimed", sessions.acknowledge(asked, "x"))
    assert dump(folder) == before


@on_a_loop
async def test_a_loop_is_given_its_task_as_it_is_recorded(journal: Journal) -> None:
    async def loop(run: Run, task: Any) -> Any:
        seen = canonical(task)
        assert type(task["pair"]) is list
        task["pair"].clear()  # what it does to it is no matter to the next attempt
        if run.rollout.restarts == 0:
            raise run.refused("divergence", "for once")
        return seen

    task = {"pair": (1, 2)}
    async with sessions_of(journal, loop) as sessions:
        result = await sessions.run(call(), task)
    assert json.loads(result.payload) == '{"pair":[1,2]}'
    assert task == {"pair": (1, 2)}


# Results that are taken.


@on_a_loop
async def test_an_acknowledged_result_frees_everything_but_its_receipt(
    folder: Path, journal: Journal
) -> None:
    world, failing = World(), [True]

    async def release(environment_ids: Any) -> None:
        assert dump(folder)["operation"]  # the journal has not forgotten them
        if failing:
            raise CheckpointRefusal("environment_unreachable", "no")
        await world.release(environment_ids)

    async with sessions_of(journal, world.loop, release=release) as sessions:
        await refused("rollout_unknown", sessions.acknowledge(call(), "x"))
        result = await sessions.run(call(), TASK)
        before = dump(folder)
        await refused("receipt_mismatch", sessions.acknowledge(call(), "x"))
        await refused("environment_unreachable", sessions.acknowledge(call(), result.receipt))
        assert dump(folder) == before
        assert await sessions.run(call(), TASK) == result
        failing.clear()
        await sessions.acknowledge(call(), result.receipt)
        assert world.forgotten == sorted(world.environments)
    # The environments are forgotten with the rows: a repeat has none to name.
    async with sessions_of(journal, world.loop, release=world.release) as sessions:
        await sessions.acknowledge(call(2), result.receipt)
        await refused("receipt_mismatch", sessions.acknowledge(call(2), "x"))
        await refused("result_acknowledged", sessions.run(call(2), TASK))
    after = dump(folder)
    assert (after["operation"], after["outbox"]) == ([], [("r", result.receipt, None)])


@on_a_loop
async def test_a_rollout_that_is_at_work_has_no_result_to_take(journal: Journal) -> None:
    held = Held()
    async with sessions_of(journal, held) as sessions, asyncio.TaskGroup() as tasks:
        work = tasks.create_task(sessions.run(call(), TASK))
        await held.begun.wait()
        await refused("rollout_open", sessions.acknowledge(call(), "x"))
        held.go.set()
        await work


@on_a_loop
async def test_nothing_is_kept_of_rollouts_that_are_over(journal: Journal) -> None:
    async def loop(run: Run, task: Any) -> Any:  # noqa: ARG001 - the form of a loop
        if int(run.rollout_id[1:]) % 3 == 0:
            raise KeyError
        return run.rollout_id

    async with sessions_of(journal, loop) as sessions:
        calls = [sessions.run(call(rollout_id=f"r{number}"), TASK) for number in range(60)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, KeyError) for one in done) == 20
        assert (sessions._sessions, sessions._tasks._tasks) == ({}, set())


def test_the_digest_of_a_loop_is_that_of_its_sources() -> None:
    assert source_digest(recording) == source_digest(recording)
    assert source_digest(recording) != source_digest(run_module)
    assert source_digest(recording, run_module) != source_digest(run_module, recording)
