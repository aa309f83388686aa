# SPDX-License-Identifier: Apache-2.0
"""Claims whose owner file is gone (C2, C3)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    ForceRefused,
    Grant,
    LifeLock,
    Moved,
    Orphans,
    free_orphans,
)

Live = Callable[[], LifeLock]


def claimed(taken: Grant | Moved) -> Claim:
    assert isinstance(taken, Grant)
    return taken.claim


def nothing() -> None:
    """No bar."""


@pytest.fixture
def lost_owner(store: FileClaimStore, live: Live) -> LifeLock:
    """A worker that lives, and whose owner file a cleaner removed."""
    lock = live()
    store.take("r1", lock.owner)
    store.take("s1", lock.owner, kind="session")
    store.take("other", live().owner)
    (store.state_dir / "owners" / lock.owner.nonce).unlink()
    return lock


def freed(store: FileClaimStore, nonce: str, *, dry_run: bool = False) -> Orphans:
    return free_orphans(store, nonce, dry_run=dry_run, step=nothing)


def test_c2_each_orphan_is_freed_and_its_living_owner_is_fenced(
    store: FileClaimStore, live: Live, lost_owner: LifeLock
) -> None:
    before = store.read("r1")
    assert before

    done = freed(store, lost_owner.owner.nonce)

    assert (done.freed, done.lost, done.moved) == (("r1",), ("s1",), ())
    assert store.read("r1") is None
    tombstone = store.read("s1")
    assert tombstone
    assert tombstone.state == "lost"
    assert lost_owner.owner.nonce in tombstone.reason
    other = store.read("other")
    assert other
    assert other.state == "owned"
    # The force itself took a number, so the next grant is two above.
    assert claimed(store.take("r1", live().owner)).claim_epoch >= before.claim_epoch + 2


def test_c3_a_dry_run_names_them_and_changes_nothing(
    store: FileClaimStore, lost_owner: LifeLock
) -> None:
    before = store.read("r1")
    done = freed(store, lost_owner.owner.nonce, dry_run=True)
    assert (done.freed, done.lost) == (("r1",), ("s1",))
    assert store.read("r1") == before


def test_c3_an_owner_file_that_is_there_is_refused(store: FileClaimStore, live: Live) -> None:
    owner = live().owner
    store.take("r1", owner)
    for dry_run in (True, False):
        with pytest.raises(ForceRefused, match="is there"):
            freed(store, owner.nonce, dry_run=dry_run)
    assert store.read("r1")


def test_c3_a_claim_that_moved_meanwhile_is_left_alone(
    store: FileClaimStore, live: Live, lost_owner: LifeLock
) -> None:
    """An operator forces one, and another worker takes it, between the look and the act."""
    other = live().owner
    steps: list[Claim] = []

    def move_once() -> None:
        # Steps come before their record: at the last one, r1 has been seen.
        seen = store.read("r1")
        if len(steps) == 2 and seen:
            store.force("r1", expect_epoch=seen.claim_epoch, reason="test")
            steps.append(claimed(store.take("r1", other)))
        elif seen:
            steps.append(seen)

    assert _order(store)[0] == "r1"
    done = free_orphans(store, lost_owner.owner.nonce, dry_run=False, step=move_once)

    assert (done.freed, done.moved) == ((), ("r1",))
    assert store.read("r1") == steps[-1]


def _order(store: FileClaimStore) -> list[str]:
    return [claim.rollout_id for claim in store.survey() if isinstance(claim, Claim)]


def test_c5_unreadable_records_are_named(store: FileClaimStore, lost_owner: LifeLock) -> None:
    Path(store.path_of("r1")).write_bytes(b"")
    done = freed(store, lost_owner.owner.nonce)
    assert [bad.code for bad in done.unreadable] == ["empty"]
    assert done.lost == ("s1",)
