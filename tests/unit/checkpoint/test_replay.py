# SPDX-License-Identifier: Apache-2.0
"""A process that dies anywhere leaves what the next one goes on from: nothing twice or lost."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.folders import private_folder
from support.recording import (
    TASK,
    Deaths,
    Died,
    DyingJournal,
    World,
    call,
    dump,
    on_a_loop,
)

from rollout_router.checkpoint.journal import Completed
from rollout_router.checkpoint.sessions import Sessions

OPERATIONS = 9  # seed, a turn of two calls, one of text, one of nothing, close, verify
POINTS = 4 * OPERATIONS + 2
"""Before and after each is sent, before and after it is recorded, before and after completion."""


async def played(folder: Path, *deaths: int) -> tuple[World, Completed, list[int]]:
    """The world and the result after a process for each of *deaths* and one that lives."""
    world, epochs = World(Deaths(*deaths)), []
    for epoch in (1, 7, 1 << 40, (1 << 40) + 1)[: len(deaths) + 1]:
        journal = DyingJournal(folder, world.deaths)
        epochs.append(epoch)
        try:
            async with Sessions(journal, world.loop, loop_digest="l") as sessions:
                return world, await sessions.run(call(epoch), TASK), epochs
        except Died:
            continue
        finally:
            journal.close()
    raise AssertionError("it never came to an end")


def recorded(folder: Path) -> list[Any]:
    """What the chain is made of: not the epochs, and not the orphans."""
    return [(row[1], row[3:9], row[10]) for row in dump(folder)["operation"]]


async def check(folder: Path, *deaths: int) -> None:
    with private_folder() as calm:
        _, expected, _ = await played(calm)
        world, result, epochs = await played(folder, *deaths)
        assert result == expected
        assert recorded(folder) == recorded(calm)
    assert not world.deaths.left
    assert set(world.applied.values()) == {1}
    assert sum(world.applied.values()) == OPERATIONS - 3
    assert {one.id for one in world.received} == {f"r/{1 + at}" for at in range(OPERATIONS)}
    assert all(one.claim_epoch in epochs for one in world.received)
    # A sample whose answer was recorded is never asked for again, and one that was lost shows.
    assert 3 <= world.samples <= 3 + len(deaths)
    assert world.samples == 3 or any(row[9] for row in dump(folder)["operation"])
    (rollout,) = dump(folder)["rollout"]
    assert (rollout[1], rollout[2], rollout[3]) == (epochs[-1], len(epochs), 0)


@on_a_loop
async def test_a_session_is_what_its_operations_say(folder: Path) -> None:
    world, result, _ = await played(folder)
    value = json.loads(result.payload)
    assert world.deaths.passed == POINTS
    assert value["usage"] == {"input_tokens": 30, "output_tokens": 6}
    assert value["cookies"] == {f"call-{turn}": "x" for turn in range(3)}
    assert value["model_call_ids"] == ["call-0", "call-1", "call-2"]
    assert (value["reward"], value["stopped"]) == (0.5, "model_said_nothing")
    assert [item["type"] for item in value["output"]] == [
        "turn", "function_call", "function_call", "seen", "seen", "turn", "message", "seen", "turn",
    ]  # fmt: skip


@pytest.mark.parametrize("point", range(1, POINTS + 1))
@on_a_loop
async def test_f1_a_death_at_any_point_changes_nothing_of_the_result(
    folder: Path, point: int
) -> None:
    await check(folder, point)


@pytest.mark.parametrize("points", [*pairwise((1, 2, 3, 4, 1)), (4, 3, 2), (38 - 4, 3, 2)])
@on_a_loop
async def test_f1_a_chain_of_deaths_changes_nothing_of_the_result(
    folder: Path, points: tuple[int, ...]
) -> None:
    await check(folder, *points)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1, POINTS + 1))
@on_a_loop
async def test_f1_every_pair_of_deaths_changes_nothing_of_the_result(first: int) -> None:
    left = 0 if first == POINTS else POINTS - 4 * (first // 4)  # what the second one passes
    for second in range(1, left + 1):
        with private_folder() as folder:
            await check(folder, first, second)
