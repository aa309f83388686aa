# SPDX-License-Identifier: Apache-2.0
"""Where claims are measured, and what is said about the figures. No test looks at a time."""

from pathlib import Path

import pytest

from rollout_router.bench.claim_stages import PLAIN_READS
from rollout_router.bench.claims import (
    ClaimCosts,
    Place,
    StoreCosts,
    choose_places,
    run_claims,
)
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.measure import Measured
from rollout_router.claims import FileClaimStore, Host, StoreRefused


def host(**mounts: str) -> Host:
    """A machine with a file system of each type at the path below the root."""
    lines = ["1 0 1:1 / / rw - ext4 /dev/a rw"]
    lines += [f"2 1 1:2 / {path} rw - {kind} none rw" for kind, path in mounts.items()]
    return Host(boot_id="b", mountinfo="\n".join(lines))


@pytest.fixture
def disk(directory: Path) -> Path:
    (directory / "disk").mkdir()
    return directory / "disk"


@pytest.fixture
def memory(directory: Path) -> Path:
    (directory / "memory").mkdir()
    return directory / "memory"


def test_a_disk_and_a_tmpfs_are_both_measured(disk: Path, memory: Path) -> None:
    here = host(xfs=str(disk), tmpfs=str(memory))
    places, notes = choose_places(disk, host=here, memory=memory)
    assert places == [
        Place(directory=disk, file_system="xfs"),
        Place(directory=memory, file_system="tmpfs"),
    ]
    assert notes == []


def test_a_place_that_is_missing_is_named(disk: Path, memory: Path, directory: Path) -> None:
    alone = [Place(directory=disk, file_system="ext4")]
    nowhere = directory / "nowhere"
    places, notes = choose_places(disk, host=host(tmpfs=str(nowhere)), memory=nowhere)
    assert places == alone
    assert notes == [f"{nowhere} is missing or read-only: no claims on tmpfs are measured"]
    places, notes = choose_places(disk, host=host(), memory=memory)
    assert places == alone
    assert notes == [f"{memory} is ext4: no claims on tmpfs are measured"]


def test_two_places_of_one_kind_are_one_place(disk: Path, memory: Path, directory: Path) -> None:
    places, notes = choose_places(disk, host=host(tmpfs=str(directory)), memory=memory)
    assert places == [Place(directory=disk, file_system="tmpfs")]
    assert notes == [f"{disk} is tmpfs: no claims on disk are measured"]


def measured(stage: str, ratio: float | None) -> Measured:
    spread = None if ratio is None else (ratio, ratio)
    return Measured(
        stage=stage, median_ms=1, p99_ms=1, reference=PLAIN_READS, ratio=ratio, spread=spread
    )


def costs(*stages: Measured) -> ClaimCosts:
    store = StoreCosts(directory="/d", file_system="xfs", claims=5, stages=list(stages))
    return ClaimCosts(rounds=7, stores=[store], notes=[])


@pytest.mark.parametrize(
    ("ratio", "met"), [(0.2, True), (1.0, True), (1.000001, False), (3.7, False)]
)
@pytest.mark.parametrize("form", ["", "_in_turn", "_touched", "_gone", "_admission"])
def test_a_recheck_costs_at_most_the_plain_reads(form: str, ratio: float, met: bool) -> None:  # noqa: FBT001 - a column of the table
    stage = f"claim_recheck{form}"
    (target,) = costs(measured(PLAIN_READS, None), measured(stage, ratio)).targets()
    assert target.name == f"{stage}, 5 claims in /d (xfs), of three plain reads"
    assert (target.value, target.bound, target.met) == (ratio, 1.0, met)


@pytest.mark.parametrize("stage", ["claim_recheck_moved", "claim_lookup", "claim_take"])
def test_what_happens_once_a_grant_has_no_target(stage: str) -> None:
    assert costs(measured(stage, 50.0)).targets() == []


def test_each_place_is_measured_at_each_number_of_claims_and_left_empty(
    disk: Path, memory: Path
) -> None:
    places = [
        Place(directory=disk, file_system="xfs"),
        Place(directory=memory, file_system="tmpfs"),
    ]
    said: list[str] = []
    found = run_claims(places, counts=[1, 5], rounds=3, say=said.append, notes=["one is missing"])
    assert found.notes == ["one is missing"]
    assert [(each.directory, each.file_system, each.claims) for each in found.stores] == [
        (str(disk), "xfs", 3),
        (str(disk), "xfs", 9),  # and what the rounds before had taken
        (str(memory), "tmpfs", 3),
        (str(memory), "tmpfs", 9),
    ]
    assert len(found.targets()) == 5 * len(found.stores)
    assert len(said) == len(found.tables()) == len(found.stores)
    assert len(found.measured()) == sum(len(store.stages) for store in found.stores)
    assert said[1] == f"measuring claims in {disk} (xfs): 3 rounds, claims held: 5"
    assert [*disk.iterdir(), *memory.iterdir()] == []


def test_an_operation_that_fails_ends_the_benchmark_and_leaves_nothing(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileClaimStore, "release", lambda _store, _grant: False)
    with pytest.raises(BenchFailed, match="was released"):
        run_claims(
            [Place(directory=disk, file_system="ext4")],
            counts=[1],
            rounds=1,
            say=lambda _line: None,
        )
    assert list(disk.iterdir()) == []


def test_a_place_where_no_store_can_be_is_refused(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = host(nfs4=str(disk))
    monkeypatch.setattr(Host, "here", lambda: elsewhere)
    with pytest.raises(StoreRefused, match="network file system"):
        run_claims(
            [Place(directory=disk, file_system="nfs4")],
            counts=[1],
            rounds=1,
            say=lambda _line: None,
        )
    assert list(disk.iterdir()) == []
