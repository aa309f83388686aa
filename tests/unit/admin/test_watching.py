# SPDX-License-Identifier: Apache-2.0
"""Workers, life locks and the store are asked, and what they say is known soon."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.told import row

from rollout_router.admin import watching
from rollout_router.claims import Gate, write_gate
from rollout_router.routing import sweeping

Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not waited for here comes at once."""
    monkeypatch.setattr(watching, "ASK_S", 0.01)
    monkeypatch.setattr(watching, "LOOK_S", 0.01)
    monkeypatch.setattr(watching, "SURVEY_AGAIN_S", 0.01)


def run(rig: Any, act: Callable[[Until], Awaitable[None]]) -> None:
    async def watched() -> None:
        async with rig.watching() as until:
            await act(until)

    asyncio.run(watched())


def test_c3_a_take_over_is_seen_from_the_kill_to_the_new_owner(rig: Any) -> None:
    known = rig.address.known
    first, second = rig.worker(), rig.worker()
    claim = first.take("r")
    first.says = {"rollouts": [row("r", claim.claim_epoch)]}

    async def act(until: Until) -> None:
        await until(lambda: known.rollout("r") is not None)
        first.die()
        await until(lambda: (known.rollout("r") or {}).get("state") == "owner_dead")
        proof = rig.store.proof_of_death(first.life.owner)
        taken = rig.store.take_over(claim, second.life.owner, proof)
        epoch = taken.claim.claim_epoch
        second.says = {"rollouts": [row("r", epoch, how="takeover")]}
        await until(lambda: (known.rollout("r") or {}).get("worker_id") == second.id)
        assert known.rollout("r")["state"] == "owned"

    run(rig, act)


def test_c3_what_a_sweep_freed_is_known_no_more(rig: Any) -> None:
    known = rig.address.known
    worker = rig.worker()
    claim = worker.take("r")
    worker.die()

    async def act(until: Until) -> None:
        await until(lambda: (known.rollout("r") or {}).get("state") == "owner_dead")
        rig.store.reap(claim, rig.store.proof_of_death(worker.life.owner))
        (rig.store.state_dir / "owners" / worker.id).unlink()
        await until(lambda: known.rollout("r") is None and not known.workers())

    run(rig, act)


def test_a_silent_worker_delays_no_other(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollout_router.operate.CHANGES_S", 60.0)
    known = rig.address.known
    silent, other = rig.worker(), rig.worker()
    silent.says = None
    claim = silent.take("r")

    async def act(until: Until) -> None:
        for turns in range(3):
            other.says = {"rollouts": [row("s", 1, turns=turns)]}
            await until(lambda: (known.rollout("s") or {}).get("turns") == turns)  # noqa: B023 - awaited at once
        await until(lambda: known.rollout("r") is not None)

    run(rig, act)
    found = known.rollout("r")
    assert (found["claim_epoch"], found["verdict"], found["turns"]) == (
        claim.claim_epoch,
        "alive",
        None,
    )


def test_a_worker_is_asked_behind_its_cursor_at_once_while_it_has_more(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ASK_S", 60.0)
    worker = rig.worker()
    worker.says = {"cursor": 7, "more": True}

    async def act(until: Until) -> None:
        await until(lambda: rig.address.known.answering() == [worker.id])
        worker.says = {"cursor": 8, "rollouts": [row("last", 5)]}
        await until(lambda: rig.address.known.rollout("last") is not None)

    run(rig, act)
    assert worker.asked[:2] == ["/changes?after=0", "/changes?after=7"]


def test_an_answer_that_cannot_be_understood_is_none(rig: Any) -> None:
    worker = rig.worker()

    async def act(until: Until) -> None:
        await until(lambda: rig.address.known.answering() == [worker.id])
        worker.says = {"cursor": "seven"}
        await until(lambda: rig.address.known.answering() == [])
        worker.says = {}
        await until(lambda: rig.address.known.answering() == [worker.id])

    run(rig, act)


def test_r6_the_gate_is_seen_and_a_store_that_is_gone_is_said(rig: Any) -> None:
    known = rig.address.known
    rig.worker()

    async def act(until: Until) -> None:
        await until(lambda: known.not_ready() == [])
        write_gate(rig.store.state_dir, Gate(open=False, by="ada", why="lunch"))
        await until(lambda: known.gate.why == "lunch")
        (rig.store.state_dir / "owners").rename(rig.store.state_dir / "elsewhere")
        await until(lambda: known.store_error is not None)
        assert "owners" in known.not_ready()[0]
        (rig.store.state_dir / "elsewhere").rename(rig.store.state_dir / "owners")
        await until(lambda: known.store_error is None)

    run(rig, act)


def test_a_survey_pauses_between_its_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    pace = sweeping.Pace(clock=lambda: now[0])
    waited: list[float] = []
    monkeypatch.setattr(pace._stopped, "wait", waited.append)

    for seconds in (0.0, 0.001, 0.0021, 0.0022, 0.005):
        now[0] = seconds
        assert pace()
    assert waited == [sweeping.PAUSE_S] * 2
