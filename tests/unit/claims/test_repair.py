# SPDX-License-Identifier: Apache-2.0
"""Mending the fixed parts of a store (C1, C2)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollout_router.claims import Claim, FileClaimStore, Grant, LifeLock, Moved, damage, repair
from rollout_router.claims.epochs import encode_highest, floor_of
from rollout_router.claims.repair import highest_of

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


def test_c2_a_repair_never_lowers_an_epoch_file(store: FileClaimStore) -> None:
    """A stripe that looked behind, and where a grant came in between."""
    path = store.state_dir / "epochs" / "07"
    path.write_bytes(encode_highest(floor_of(1) + 9))

    assert repair(store, behind={"07": floor_of(1) + 9}) == ()
    assert highest_of(str(path)) == floor_of(1) + 9

    far = floor_of(7) + 1  # a claim of a later generation: FORMAT was put back too
    assert [bad.code for bad in repair(store, behind={"07": far})] == ["behind"]
    assert highest_of(str(path)) == far


@pytest.mark.parametrize("part", ["locks", "epochs", "claims"])
def test_c1_damage_names_what_is_no_directory(store: FileClaimStore, part: str) -> None:
    (store.state_dir / part).rename(store.state_dir / "aside")
    (store.state_dir / part).touch()

    stripes = {bad.code for bad in damage(store) if Path(bad.path).parent.name == part}

    assert stripes == {"not_a_directory"}
