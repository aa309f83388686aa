# SPDX-License-Identifier: Apache-2.0
"""The operations on claims do what they are named after; one that does not ends the benchmark."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rollout_router.bench.claim_stages import PLAIN_READS, ClaimBench
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.measure import Stage, run_rounds
from rollout_router.claims import FileClaimStore, LifeLock, new_nonce

HELD = 3
STAGES = [
    PLAIN_READS,
    "claim_recheck",
    "claim_recheck_in_turn",
    "claim_recheck_touched",
    "claim_recheck_moved",
    "claim_recheck_gone",
    "claim_recheck_admission",
    "claim_lookup",
    "claim_take",
    "claim_take_over",
    "claim_release",
]


@pytest.fixture
def bench(directory: Path) -> Iterator[ClaimBench]:
    with closing(ClaimBench(directory)) as bench:
        bench.fill(HELD)
        yield bench


@pytest.fixture
def stages(bench: ClaimBench) -> dict[str, Stage]:
    return {stage.name: stage for stage in bench.stages()}


def test_every_operation_is_compared_with_the_plain_reads(stages: dict[str, Stage]) -> None:
    assert list(stages) == STAGES
    assert {name: stage.reference for name, stage in stages.items()} == {
        name: None if name == PLAIN_READS else PLAIN_READS for name in STAGES
    }


def test_an_owner_with_more_claims_goes_on_where_one_with_fewer_stopped(bench: ClaimBench) -> None:
    ticks = iter(range(10_000))
    for count in (HELD, HELD + 4):
        bench.fill(count)
        found = run_rounds(
            bench.stages(), rounds=2 * count, warm_ups=1, clock_s=lambda: float(next(ticks))
        )
        assert [each.stage for each in found] == STAGES
        assert bench.count() == count + 4  # touched, moved, and what the last round took


def test_claims_in_turn_are_all_that_the_owner_holds(stages: dict[str, Stage]) -> None:
    asked = []
    stands = FileClaimStore.stands

    def spy(store: FileClaimStore, grant: Any) -> bool:
        asked.append(grant.claim.rollout_id)
        return stands(store, grant)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileClaimStore, "stands", spy)
        for _ in range(2 * HELD):
            stages["claim_recheck_in_turn"].prepare()()
    assert asked == 2 * sorted(set(asked))
    assert len(set(asked)) == HELD


def test_a_touched_claim_has_another_signature_each_time(
    bench: ClaimBench, stages: dict[str, Stage]
) -> None:
    path = bench.store.path_of("bench-touched")
    for _ in range(2):
        timed = stages["claim_recheck_touched"].prepare()
        status = os.stat(path)  # noqa: PTH116 - a string, as the store has it
        assert status.st_ctime_ns != bench._touched.signature.changed_ns
        timed()


def test_c3_what_is_taken_over_belonged_to_a_worker_that_is_dead(
    bench: ClaimBench, stages: dict[str, Stage]
) -> None:
    timed = stages["claim_take_over"].prepare()
    seen = bench.store.read("bench-take-over")
    assert seen
    assert bench.store.proof_of_death(seen.owner)
    timed()
    taken = bench.store.read("bench-take-over")
    assert taken
    assert taken.claim_epoch > seen.claim_epoch
    assert bench.store.proof_of_death(taken.owner) is None


def test_a_claim_is_taken_where_none_was_and_released_again(
    bench: ClaimBench, stages: dict[str, Stage]
) -> None:
    for _ in range(2):
        timed = stages["claim_take"].prepare()
        assert bench.store.read("bench-take") is None
        timed()
        assert bench.store.read("bench-take") is not None
    timed = stages["claim_release"].prepare()
    assert bench.store.read("bench-release") is not None
    timed()
    assert bench.store.read("bench-release") is None


def remove(rollout_id: str) -> Callable[[ClaimBench], None]:
    return lambda bench: os.unlink(bench.store.path_of(rollout_id))  # noqa: PTH108 - a string


def remove_held(bench: ClaimBench) -> None:
    for grant in bench._held:
        remove(grant.claim.rollout_id)(bench)


def take_away(rollout_id: str) -> Callable[[ClaimBench], None]:
    """Another worker is faster; it need not live for that."""

    def sabotage(bench: ClaimBench) -> None:
        bench._take(rollout_id, by=bench._dead)

    return sabotage


def bring_back(name: str) -> Callable[[ClaimBench], None]:
    """The grant that should be over is one that stands."""
    return lambda bench: setattr(bench, name, bench._held[0])


def cut(bench: ClaimBench) -> None:
    os.truncate(bench._folder / "plain" / "reads" / "00" / "file", 299)


SABOTAGE = {
    PLAIN_READS: (cut, "holds what was written"),
    "claim_recheck": (remove_held, "stands"),
    "claim_recheck_in_turn": (remove_held, "stands"),
    "claim_recheck_moved": (bring_back("_moved"), "stands no longer"),
    "claim_recheck_gone": (bring_back("_gone"), "stands no longer"),
    "claim_lookup": (remove_held, "finds the claim"),
    "claim_take": (take_away("bench-take"), "was granted"),
    "claim_take_over": (remove("bench-take-over"), "was granted"),
    "claim_release": (remove("bench-release"), "was released"),
}
"""By stage: what goes wrong before it is prepared, or once it is where that comes too early."""
LATE = {"claim_take", "claim_take_over", "claim_release"}


@pytest.mark.parametrize("name", SABOTAGE)
def test_an_operation_that_fails_ends_the_benchmark(
    bench: ClaimBench, stages: dict[str, Stage], name: str
) -> None:
    sabotage, complaint = SABOTAGE[name]
    stages[name].prepare()()
    if name not in LATE:
        sabotage(bench)
    timed = stages[name].prepare()
    if name in LATE:
        sabotage(bench)
    with pytest.raises(BenchFailed, match=f"^not so: .*{complaint}"):
        timed()


def test_a_touched_claim_that_was_replaced_ends_the_benchmark(
    bench: ClaimBench, stages: dict[str, Stage]
) -> None:
    timed = stages["claim_recheck_touched"].prepare()
    bench._take("bench-touched")
    with pytest.raises(BenchFailed, match="bench-touched stands"):
        timed()


def test_c3_a_worker_whose_death_is_not_proven_ends_the_benchmark(
    bench: ClaimBench, stages: dict[str, Stage], directory: Path
) -> None:
    socket = str(directory / "none.sock")
    with closing(LifeLock.acquire(bench.store, nonce=new_nonce(), socket=socket)) as life:
        bench._dead = life.owner
        timed = stages["claim_take_over"].prepare()
        with pytest.raises(BenchFailed, match="is proven"):
            timed()


def test_a_damaged_claim_ends_the_count(bench: ClaimBench) -> None:
    Path(bench.store.path_of("bench-touched")).write_bytes(b"{}")
    with pytest.raises(BenchFailed, match="every claim is readable"):
        bench.count()
