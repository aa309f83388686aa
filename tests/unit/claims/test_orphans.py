# SPDX-License-Identifier: Apache-2.0
"""Claims whose owner file is gone (C2, C3)."""

import errno
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    ForceRefused,
    Grant,
    LifeLock,
    Moved,
    Orphans,
    StoreUnavailable,
    free_orphans,
    stripe_of,
)
from rollout_router.claims.creation import write_format
from rollout_router.claims.layout import read_format
from rollout_router.claims.record import encode_claim, encode_identity

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


def copy_of(path: Path) -> Path:
    """A copy stands at *path* now, and the file itself elsewhere."""
    aside = path.parents[2] / "aside"
    path.rename(aside)
    path.write_bytes(aside.read_bytes())
    return aside


def test_c3_a_copy_of_the_owner_file_is_no_proof_and_does_not_keep_its_claims(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    before = claimed(store.take("r1", owner))
    copy_of(store.state_dir / "owners" / owner.nonce)
    assert freed(store, owner.nonce, dry_run=True).freed == ("r1",)
    assert freed(store, owner.nonce).freed == ("r1",)
    assert claimed(store.take("r1", live().owner)).claim_epoch >= before.claim_epoch + 2


def test_c3_claims_that_name_the_file_that_stands_are_left_alone(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    store.take("r1", lock.owner)
    second = claimed(store.take("r2", lock.owner))
    path = store.state_dir / "owners" / lock.owner.nonce
    copy_of(path)
    inode = path.stat().st_ino
    path.write_bytes(encode_identity(replace(lock.identity, inode=inode)))
    kept = replace(second, owner=replace(second.owner, inode=inode))
    Path(store.path_of("r2")).write_bytes(encode_claim(kept))

    assert freed(store, lock.owner.nonce).freed == ("r1",)
    assert store.read("r2") == kept
    with pytest.raises(ForceRefused, match="is there"):
        freed(store, lock.owner.nonce)


def test_c3_a_claim_whose_owner_file_came_back_is_named_and_kept(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    before = claimed(store.take("r1", owner))
    path = store.state_dir / "owners" / owner.nonce
    aside = copy_of(path)
    done = free_orphans(store, owner.nonce, dry_run=False, step=lambda: aside.replace(path))
    assert (done.freed, [bad.code for bad in done.failed]) == ((), ["owner_back"])
    assert store.read("r1") == before


def two_of_one_stripe() -> tuple[str, str]:
    seen: dict[str, str] = {}
    for n in itertools.count():
        name = f"r{n}"
        if (first := seen.setdefault(stripe_of(name), name)) != name:
            return first, name
    raise AssertionError


def orphaned(store: FileClaimStore, live: Live, *rollouts: str) -> str:
    owner = live().owner
    for rollout in rollouts:
        store.take(rollout, owner)
    (store.state_dir / "owners" / owner.nonce).unlink()
    return owner.nonce


def test_c7_a_stuck_stripe_is_waited_for_once_and_keeps_no_other(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = two_of_one_stripe()
    others = [name for n in range(4) if stripe_of(name := f"o{n}") != stripe_of(stuck[0])]
    nonce = orphaned(store, live, *stuck, *others)
    impatient = FileClaimStore.open(store.state_dir, service="model", lock_timeout_s=0.05)
    tried: list[str] = []
    force = impatient.force

    def spy(rollout: str, **options: Any) -> int:
        tried.append(rollout)
        return force(rollout, **options)

    monkeypatch.setattr(impatient, "force", spy)
    with store.holding_stripe(stripe_of(stuck[0])):
        done = freed(impatient, nonce)
    assert set(done.freed) == set(others)
    paths = {store.path_of(rollout) for rollout in stuck}
    assert {(bad.path, bad.code) for bad in done.failed} == {(path, "ETIMEDOUT") for path in paths}
    assert len([rollout for rollout in tried if rollout in stuck]) == 1
    assert done.ended_by is None
    assert set(freed(impatient, nonce).freed) == set(stuck)


@pytest.mark.parametrize(
    ("number", "ends"),
    [(errno.ENOSPC, False), (errno.EBADMSG, False), (errno.EMFILE, True), (errno.ESTALE, True)],
)
def test_c7_only_what_would_stop_every_other_one_too_ends_it(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch, *, number: int, ends: bool
) -> None:
    nonce = orphaned(store, live, "r1", "r2", "r3")
    first, second, third = _order(store)
    force = store.force

    def fail_once(rollout: str, **options: Any) -> int:
        if rollout == second:
            raise StoreUnavailable("writing", number)
        return force(rollout, **options)

    monkeypatch.setattr(store, "force", fail_once)
    done = freed(store, nonce)
    assert done.freed == ((first,) if ends else (first, third))
    assert [(bad.path, bad.code) for bad in done.failed] == [
        (store.path_of(second), errno.errorcode[number])
    ]
    assert (done.ended_by is not None) == ends


def test_c2_another_store_in_its_place_ends_it(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonce = orphaned(store, live, "r1", "r2")
    first, second = _order(store)
    force = store.force

    def replaced(rollout: str, **options: Any) -> int:
        epoch = force(rollout, **options)
        fields = read_format(store.state_dir)
        write_format(store.state_dir, replace(fields, store_id="another"))
        return epoch

    monkeypatch.setattr(store, "force", replaced)
    done = freed(store, nonce)
    assert (done.freed, [bad.code for bad in done.failed]) == ((first,), ["ESTALE"])
    assert "another store" in str(done.ended_by)
    assert store.read(second)


@pytest.mark.usefixtures("unprivileged")
def test_c7_owner_files_that_cannot_be_looked_at_are_not_missing(
    store: FileClaimStore, live: Live
) -> None:
    nonce = orphaned(store, live, "r1")
    owners = store.state_dir / "owners"
    owners.chmod(0)
    with pytest.raises(StoreUnavailable, match="owners"):
        freed(store, nonce)
    owners.chmod(0o700)
    assert store.read("r1")
