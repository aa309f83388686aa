# SPDX-License-Identifier: Apache-2.0
"""The stages within one process do what they are named after, round after round."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_router.bench.bodies import Conversation
from rollout_router.bench.measure import run_rounds
from rollout_router.bench.rooms import (
    DECODE_ENCODE,
    DELTA,
    JSON_REFERENCE,
    REBUILD,
    claim_stages,
    history_stages,
)
from rollout_router.claims import FileClaimStore, LifeLock, new_nonce

ROUNDS = 12  # more than a conversation has turns


@pytest.fixture
def store(directory: Path) -> FileClaimStore:
    return FileClaimStore.open(directory / "state", service="bench")


@pytest.fixture
def life(store: FileClaimStore, folder: Path) -> Iterator[LifeLock]:
    life = LifeLock.acquire(store, nonce=new_nonce(), socket=str(folder / "none.sock"))
    yield life
    life.close()


def ticks() -> Iterator[float]:
    number = 0.0
    while True:
        number += 1
        yield number


def test_every_room_is_measured_against_the_json_reference(
    store: FileClaimStore, life: LifeLock, folder: Path
) -> None:
    stages = [*history_stages(Conversation(20_000), folder / "r"), *claim_stages(store, life)]
    clock = ticks()
    found = run_rounds(stages, rounds=ROUNDS, warm_ups=1, clock_s=lambda: next(clock))
    assert {each.stage: each.reference for each in found} == {
        JSON_REFERENCE: None,
        DECODE_ENCODE: None,
        DELTA: JSON_REFERENCE,
        REBUILD: DECODE_ENCODE,
        "capture_append": JSON_REFERENCE,
        "claim_take": JSON_REFERENCE,
        "claim_recheck": JSON_REFERENCE,
        "claim_release": JSON_REFERENCE,
    }


def test_claims_are_taken_in_the_store_and_released(store: FileClaimStore, life: LifeLock) -> None:
    take, recheck, release = claim_stages(store, life)
    take.prepare()()
    assert store.read("bench-take") is not None
    assert recheck.prepare()() is True
    timed = release.prepare()
    assert store.read("bench-release") is not None
    assert timed() is True
    assert store.read("bench-release") is None


def test_records_of_one_round_do_not_stay_for_the_next(folder: Path) -> None:
    capture = history_stages(Conversation(20_000), folder / "records")[-1]
    for _ in range(3):
        capture.prepare()()
        assert len((folder / "records" / "bench.jsonl").read_bytes().splitlines()) == 1
