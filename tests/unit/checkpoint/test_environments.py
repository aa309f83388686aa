# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollout_router.checkpoint.environments import Environment, Environments, Forgotten, Last
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.replies import Reply

REPLY = Reply(status=200, headers=(("a", "é"),), body=b"\x00\xff")
FIRST = Environment(
    environment_id="e1",
    rollout_id="r1",
    store_id="store",
    claim_epoch=3,
    revision=1,
    last=Last(sequence=1, request_digest="0" * 64, reply=REPLY),
    state=b"\x00state",
)


@pytest.fixture
def environments(tmp_path: Path) -> Iterator[Environments]:
    store = Environments(tmp_path / "environments.sqlite", forgotten_max=3)
    yield store
    store.close()


def test_what_was_recorded_is_read_as_it_was(environments: Environments) -> None:
    async def run() -> None:
        recorded = await environments.record(None, FIRST)
        assert recorded == replace(FIRST, number=recorded.number)
        assert await environments.look("e1") == recorded
        assert await environments.look("e1", held=recorded.held) == replace(recorded, state=None)
        assert await environments.look("e2") is None

    asyncio.run(run())


Change = Callable[[Environments, Environment], Awaitable[object]]
CHANGES: dict[str, Change] = {
    "record": lambda store, before: store.record(before, replace(before, revision=9)),
    "raise the fence": lambda store, before: store.raise_fence(before, 9),
    "lose": lambda store, before: store.lose(before),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    "old",
    [{"revision": 2}, {"claim_epoch": 2}, {"store_id": "other"}, {"number": 99}],
    ids=["revision", "claim epoch", "store", "number"],
)
def test_f1_a_change_that_was_decided_on_another_row_changes_nothing(
    environments: Environments, old: dict[str, str | int], change: Change
) -> None:
    async def run() -> None:
        recorded = await environments.record(None, FIRST)
        before = Environment(**{**{n: getattr(recorded, n) for n in FIRST.__slots__}, **old})
        with pytest.raises(CheckpointRefusal) as refused:
            await change(environments, before)
        assert refused.value.code == "environment_unavailable"
        assert await environments.look("e1") == recorded
        await change(environments, recorded)
        assert await environments.look("e1") != recorded

    asyncio.run(run())


def test_a_lost_environment_is_changed_no_more(environments: Environments) -> None:
    async def run() -> None:
        recorded = await environments.record(None, FIRST)
        await environments.lose(recorded)
        with pytest.raises(CheckpointRefusal, match="another process"):
            await environments.raise_fence(recorded, 9)

    asyncio.run(run())


def test_a_second_first_record_is_refused(environments: Environments) -> None:
    async def run() -> None:
        await environments.record(None, FIRST)
        for _ in range(2):
            with pytest.raises(CheckpointRefusal) as refused:
                await environments.record(None, FIRST)
            assert refused.value.code == "environment_unavailable"
            await environments.forget("e1")

    asyncio.run(run())


def test_the_oldest_of_the_removed_are_forgotten_at_the_bound(environments: Environments) -> None:
    async def run() -> None:
        for number in range(1, 6):
            await environments.record(None, replace(FIRST, environment_id=f"e{number}"))
            await environments.forget(f"e{number}")
            await environments.forget(f"e{number}")
        left = [await environments.look(f"e{number}") for number in range(1, 6)]
        assert left[:2] == [None, None]
        assert left[2:] == [
            Forgotten(
                environment_id=f"e{number}",
                rollout_id="r1",
                store_id="store",
                claim_epoch=3,
                sequence=1,
            )
            for number in (3, 4, 5)
        ]

    asyncio.run(run())
