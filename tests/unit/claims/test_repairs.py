# SPDX-License-Identifier: Apache-2.0
"""Mending the fixed parts of a store (C1, C2)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    Moved,
    StoreRefused,
    inspect_store,
    repair,
)
from rollout_router.claims.epochs import encode_highest, floor_of, generation_of
from rollout_router.claims.layout import read_format
from rollout_router.claims.repairs import UNRECORDED_GENERATIONS, highest_of

Live = Callable[[], LifeLock]


def wrong(store: FileClaimStore) -> list[tuple[str, str]]:
    """What is wrong with the fixed parts of a store."""
    found = inspect_store(store, step=lambda: None).findings
    return [(Path(bad.path).name, bad.code) for bad in found]


def claimed(taken: Grant | Moved) -> Claim:
    assert isinstance(taken, Grant)
    return taken.claim


def test_c2_a_whole_store_needs_no_repair(store: FileClaimStore) -> None:
    before = (store.state_dir / "FORMAT").read_bytes()

    assert wrong(store) == []
    assert repair(store) == ()
    assert (store.state_dir / "FORMAT").read_bytes() == before


def test_c2_a_repair_raises_the_generation_and_damaged_epoch_files_above_it(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    (store.state_dir / "epochs" / "00").write_bytes(b"x")
    (store.state_dir / "epochs" / "01").unlink()

    damage = [("00", "checksum"), ("01", "missing")]
    assert wrong(store) == damage
    assert [(Path(bad.path).name, bad.code) for bad in repair(store)] == damage
    assert wrong(store) == []
    assert claimed(store.take("r1", owner)).claim_epoch > floor_of(2)
    assert read_format(store.state_dir).generation == 2 + UNRECORDED_GENERATIONS


def test_c1_a_repair_makes_missing_parts_anew(store: FileClaimStore, live: Live) -> None:
    (store.state_dir / "locks" / "00").unlink()
    (store.state_dir / "claims" / "7f").rmdir()

    mended = repair(store)

    assert {Path(bad.path).name for bad in mended} == {"00", "7f"}
    assert wrong(store) == []
    owner = live().owner
    stripes = {Path(store.path_of(f"r{n}")).parent.name: f"r{n}" for n in range(4000)}
    for stripe in ("00", "7f"):
        claimed(store.take(stripes[stripe], owner))


def test_c2_a_repair_never_lowers_an_epoch_file(store: FileClaimStore) -> None:
    """A stripe that looked behind, and where a grant came in between."""
    path = store.state_dir / "epochs" / "07"
    path.write_bytes(encode_highest(floor_of(1) + 9))

    assert repair(store, behind={"07": floor_of(1) + 9}) == ()
    assert highest_of(str(path)) == floor_of(1) + 9

    far = floor_of(7) + 1  # a claim of a later generation: FORMAT was put back too
    mended = repair(store, behind={"07": far})
    assert [(Path(bad.path).name, bad.code) for bad in mended] == [
        ("FORMAT", "behind"),
        ("07", "behind"),
    ]
    assert highest_of(str(path)) == floor_of(8 + UNRECORDED_GENERATIONS) > far


def test_c1_no_lock_file_is_made_anew_while_a_worker_lives(
    store: FileClaimStore, live: Live
) -> None:
    """It may hold the old one, and would not exclude a writer that holds the new."""
    worker, dead = live(), live()
    dead.close()
    lock = store.state_dir / "locks" / "00"
    lock.unlink()

    with pytest.raises(StoreRefused, match=rf"{worker.owner.nonce}.*Stop all workers"):
        repair(store)
    assert not lock.exists()
    worker.close()
    assert [bad.path for bad in repair(store)] == [str(lock)]


def booted(state_dir: Path, boot_id: str) -> FileClaimStore:
    host = replace(Host.here(), boot_id=boot_id)
    return FileClaimStore.open(state_dir, service="model", host=host)


@pytest.mark.parametrize("damaged", [False, True])
def test_c2_no_epoch_repeats_though_an_old_format_was_put_back(
    state_dir: Path, live: Live, store: FileClaimStore, *, damaged: bool
) -> None:
    old = (state_dir / "FORMAT").read_bytes()
    booted(state_dir, "second")
    highest = claimed(booted(state_dir, "third").take("r1", live().owner)).claim_epoch
    Path(store.path_of("r1")).unlink()
    (state_dir / "FORMAT").write_bytes(old)
    back = FileClaimStore.open(state_dir, service="model")  # of the boot that FORMAT names

    if damaged:  # what alone saw the later generation
        for stripe in (state_dir / "epochs").iterdir():
            stripe.unlink()
        repair(back)
    else:
        assert [Path(bad.path).name for bad in repair(back)] == ["FORMAT"]

    assert claimed(back.take("r1", live().owner)).claim_epoch > highest


def test_c2_the_generation_of_a_boot_is_above_every_epoch_on_record(
    state_dir: Path, live: Live
) -> None:
    live()  # makes the store
    old = (state_dir / "FORMAT").read_bytes()
    booted(state_dir, "second")
    highest = claimed(booted(state_dir, "third").take("r1", live().owner)).claim_epoch
    (state_dir / "FORMAT").write_bytes(old)

    next_boot = booted(state_dir, "fourth")

    assert read_format(state_dir).generation > generation_of(highest)
    assert repair(next_boot) == ()
