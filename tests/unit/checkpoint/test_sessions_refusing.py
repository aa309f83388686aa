# SPDX-License-Identifier: Apache-2.0
"""What a journal that is not whole, and what a refusal, does to its rollout."""

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from support.recording import (
    TASK,
    World,
    act,
    call,
    dump,
    on_a_loop,
    one,
    refused,
    sessions_of,
    sql,
)

from rollout_router.checkpoint.digests import digest
from rollout_router.checkpoint.effects import Lost, NotPerformed, Performed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.sessions import RESTARTS_MAX

# What a journal that is not whole does to its rollout.

DAMAGE = {
    "first": ("gap", "DELETE FROM operation WHERE sequence=1"),
    "middle": ("gap", "DELETE FROM operation WHERE sequence=2"),
    "last": ("gap", "DELETE FROM operation WHERE sequence=3"),
    "all": ("gap", "DELETE FROM operation"),
    "count": ("gap", "UPDATE rollout SET next=5"),
    "intents": (
        "gap",
        (
            "INSERT INTO operation SELECT 'r', sequence+3, 1, '', 'once', '', '', NULL, NULL, 0,"
            " NULL FROM operation"
        ),
    ),
    "result": ("chain_broken", "UPDATE operation SET result='2' WHERE sequence=3"),
    "kind": ("chain_broken", "UPDATE operation SET kind='x' WHERE sequence=1"),
    "digest": ("chain_broken", "UPDATE operation SET request_digest='x' WHERE sequence=2"),
    "revision": ("chain_broken", "UPDATE operation SET revision=9 WHERE sequence=2"),
    "swapped": (
        "chain_broken",
        (
            "UPDATE operation SET (kind, chain)=(SELECT kind, chain FROM operation AS other"
            " WHERE other.sequence=3-operation.sequence) WHERE sequence<3"
        ),
    ),
    "task": ("chain_broken", "UPDATE rollout SET task=replace(task, '7', '8')"),
    "loop": ("chain_broken", "UPDATE rollout SET loop_digest='m'"),
    "configuration": (
        "chain_broken",
        f"UPDATE rollout SET configuration_digest='{digest('1')}'",  # noqa: S608 - our digest
    ),
    "head": ("chain_broken", "UPDATE rollout SET head='x'"),
}
EDITED: dict[str, dict[str, Any]] = {
    "task": {"task": {**TASK, "seed": 8}},
    "loop": {"loop_digest": "m"},
    "configuration": {"configuration": 1},
}
"""What a call must bring for an edited rollout to be taken for its own."""


async def _three(run: Run, task: Any) -> Any:
    for number in range(3):
        await act(run, f"act-{number}")
    if task["seed"] >= 0:
        raise KeyError
    return {}


@pytest.mark.parametrize("what", DAMAGE)
@on_a_loop
async def test_what_is_not_whole_is_set_aside_until_somebody_begins_it_anew(
    folder: Path, journal: Journal, what: str
) -> None:
    code, damage = DAMAGE[what]
    brought = {"task": TASK, "loop_digest": "l", "configuration": None, **EDITED.get(what, {})}
    task = brought.pop("task")
    async with sessions_of(journal, _three) as sessions:
        with pytest.raises(KeyError):
            await sessions.run(call(), TASK)
    sql(folder, damage)
    if what in EDITED:
        async with sessions_of(journal, _three) as sessions:
            await refused(f"{what}_changed", sessions.run(call(2), TASK))
    async with sessions_of(journal, _three, **brought) as sessions:
        await refused(code, sessions.run(call(2), task))
        before = dump(folder)
        await refused("rollout_quarantined", sessions.run(call(2), task))
    assert dump(folder) == before
    assert (before["rollout"][0][4:6], before["outbox"]) == (("quarantined", code), [])
    journal.restart_now("r")
    async with sessions_of(journal, _three, loop_digest="new", configuration="new") as sessions:
        assert (await sessions.run(call(2), {"seed": -1})).receipt


# What a refusal does to its rollout.


@on_a_loop
async def test_a_loop_that_diverges_begins_anew_and_is_set_aside_in_the_end(
    folder: Path, journal: Journal
) -> None:
    world, sent = World(), []

    async def send(operation: Any) -> Performed:
        sent.append(operation)
        return Performed(value=len(sent), revision=1)

    async def loop(run: Run, task: Any) -> Any:  # noqa: ARG001 - the form of a loop
        assert await act(run, send=send, environment_id=run.environment_id) == len(sent)
        raise run.refused("divergence", "always")

    async with sessions_of(journal, loop, release=world.release) as sessions:
        refusal = await refused("restarts_exhausted", sessions.run(call(), TASK))
        assert "always" in refusal.message
        await refused("rollout_quarantined", sessions.run(call(2), TASK))
    assert len({one.id for one in sent}) == len(sent) == 1 + RESTARTS_MAX
    assert len({one.environment_id for one in sent}) == len(sent)
    assert world.forgotten == [one.environment_id for one in sent[:-1]]
    assert dump(folder)["outbox"] == []


@pytest.mark.parametrize("dies", [False, True])
@on_a_loop
async def test_what_may_have_been_done_once_begins_anew_and_is_not_sent_again(
    journal: Journal, *, dies: bool
) -> None:
    sent = []

    async def pay(operation: Any) -> Performed:
        sent.append(operation.id)
        if len(sent) == 1:
            raise KeyError if dies else Lost("cut")
        return Performed(value="paid")

    async def loop(run: Run, task: Any) -> Any:  # noqa: ARG001 - the form of a loop
        return [await act(run), await act(run, "pay", pay, effect="once"), run.rollout.restarts]

    async with sessions_of(journal, loop) as sessions:
        if dies:
            with pytest.raises(KeyError):
                await sessions.run(call(), TASK)
        result = await sessions.run(call(2), TASK)
    assert json.loads(result.payload) == [1, "paid", 1]
    assert sent == ["r/2", "r/4"]


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("operation_unavailable", NotPerformed("no", retry_after_s=900.0)),
        ("stale_attempt", CheckpointRefusal("stale_attempt", "no")),
        ("revision_mismatch", Performed(value=1, revision=2)),
        ("operation_conflict", CheckpointRefusal("operation_conflict", "no")),
        ("environment_unknown", CheckpointRefusal("environment_unknown", "no")),
    ],
)
@pytest.mark.parametrize("loop_makes_of_it", ["nothing", "a result", "an error", "a group"])
@on_a_loop
async def test_no_loop_makes_anything_else_of_a_refusal(
    folder: Path, journal: Journal, *, code: str, failure: Any, loop_makes_of_it: str
) -> None:
    async def send(operation: Any) -> Performed:
        if operation.sequence > 1:  # it began anew
            return await one(operation)
        if isinstance(failure, Exception):
            raise failure
        return failure  # type: ignore[no-any-return]

    async def loop(run: Run, task: Any) -> Any:  # noqa: ARG001 - the form of a loop
        work = act(run, send=send, environment_id=run.environment_id)
        if loop_makes_of_it == "nothing":
            await work
        elif loop_makes_of_it == "a group":
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(work)
        else:
            try:
                await work
            except Exception as error:
                if loop_makes_of_it == "an error":
                    raise KeyError from error
        return {"reward": 1.0}

    async with sessions_of(journal, loop) as sessions:
        work = sessions.run(call(), TASK)
        if code == "environment_unknown":
            assert (await work).receipt
        else:
            await refused(code, work)
    (rollout,) = dump(folder)["rollout"]
    status, reason, restarts = rollout[4], rollout[5], rollout[3]
    expected = {
        "operation_unavailable": ("open", "", 0),
        "stale_attempt": ("open", "", 0),
        "environment_unknown": ("completed", "", 1),
    }
    assert (status, reason, restarts) == expected.get(code, ("quarantined", code, 0))


@on_a_loop
async def test_an_environment_that_cannot_be_given_up_at_a_restart_is_with_the_acknowledgement(
    folder: Path, journal: Journal
) -> None:
    released: list[set[str]] = []

    async def release(environment_ids: Collection[str]) -> None:
        released.append(set(environment_ids))
        if len(released) == 1:
            raise CheckpointRefusal("environment_unreachable", "nobody is there")

    async def loop(run: Run, task: Any) -> Any:  # noqa: ARG001 - the form of a loop
        await act(run, environment_id=run.environment_id)
        if run.rollout.restarts == 0:
            raise run.refused("divergence", "once")
        return 1

    names = [journal.environment_name("r", restarts) for restarts in (0, 1)]
    async with sessions_of(journal, loop, release=release) as sessions:
        done = await sessions.run(call(), TASK)
        await sessions.acknowledge(call(), done.receipt)
    assert released == [{names[0]}, set(names)]
    assert sql(folder, "SELECT restarts, status FROM rollout") == [(1, "acknowledged")]


@on_a_loop
async def test_f1_an_owner_that_was_overtaken_gives_up_no_environment(journal: Journal) -> None:
    async def release(environment_ids: Collection[str]) -> None:
        raise AssertionError(f"{environment_ids} are its successor's")

    async def loop(run: Run, task: Any) -> Any:
        await act(run, environment_id=run.environment_id)
        found = run.rollout
        named = {
            "loop_digest": found.loop_digest,
            "configuration_digest": found.configuration_digest,
        }
        await journal.open_rollout("r", 2, task=task, **named)
        raise run.refused("divergence", "too late")

    async with sessions_of(journal, loop, release=release) as sessions:
        await refused("stale_attempt", sessions.run(call(), TASK))
