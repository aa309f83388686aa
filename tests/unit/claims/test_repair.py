# SPDX-License-Identifier: Apache-2.0
"""Mending the fixed parts of a store (C1, C2)."""

from collections.abc import Callable
from pathlib import Path

from rollout_router.claims import Claim, FileClaimStore, Grant, LifeLock, Moved, damage, repair
from rollout_router.claims.epochs import floor_of

Live = Callable[[], LifeLock]


def claimed(taken: Grant | Moved) -> Claim:
    assert isinstance(taken, Grant)
    return taken.claim


def test_c2_a_whole_store_needs_no_repair(store: FileClaimStore) -> None:
    before = (store.state_dir / "FORMAT").read_bytes()

    assert list(damage(store)) == []
    assert repair(store) == ()
    assert (store.state_dir / "FORMAT").read_bytes() == before


def test_c2_a_repair_raises_the_generation_and_damaged_epoch_files_above_it(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    (store.state_dir / "epochs" / "00").write_bytes(b"x")
    (store.state_dir / "epochs" / "01").unlink()

    found = list(damage(store))
    assert [(Path(bad.path).name, bad.code) for bad in found] == [
        ("00", "checksum"),
        ("01", "missing"),
    ]
    assert repair(store) == tuple(found)
    assert list(damage(store)) == []
    assert claimed(store.take("r1", owner)).claim_epoch > floor_of(2)


def test_c1_a_repair_makes_missing_parts_anew(store: FileClaimStore, live: Live) -> None:
    (store.state_dir / "locks" / "00").unlink()
    (store.state_dir / "claims" / "7f").rmdir()

    mended = repair(store)

    assert {Path(bad.path).name for bad in mended} == {"00", "7f"}
    assert list(damage(store)) == []
    owner = live().owner
    stripes = {Path(store.path_of(f"r{n}")).parent.name: f"r{n}" for n in range(4000)}
    for stripe in ("00", "7f"):
        claimed(store.take(stripes[stripe], owner))
