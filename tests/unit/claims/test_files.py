# SPDX-License-Identifier: Apache-2.0
"""The store on disk: one owner, rising epochs, whole records (C1, C2, C3, C5)."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import (
    Claim,
    ClaimStore,
    ClaimUnreadable,
    FileClaimStore,
    ForceRefused,
    Grant,
    Host,
    LifeLock,
    Moved,
    Owner,
    ProofOfDeath,
    StoreUnavailable,
    Unreadable,
    repair,
)
from rollout_router.claims.names import stripe_of
from rollout_router.claims.record import encode_claim, signature_of

ROLLOUT = "rollout-1"
Live = Callable[[], LifeLock]


def granted(taken: Grant | Moved) -> Grant:
    assert isinstance(taken, Grant)
    return taken


def dead(store: FileClaimStore, live: Live) -> tuple[Owner, ProofOfDeath]:
    lock = live()
    lock.close()
    proof = store.proof_of_death(lock.owner)
    assert proof
    return lock.owner, proof


def claim_file(store: FileClaimStore, rollout_id: str = ROLLOUT) -> Path:
    return Path(store.path_of(rollout_id))


def epoch_file(store: FileClaimStore, rollout_id: str = ROLLOUT) -> Path:
    return store.state_dir / "epochs" / stripe_of(rollout_id)


def entries(store: FileClaimStore) -> dict[str, bytes]:
    """Claims and epochs, and their bytes: what a refused change must leave as it was."""
    parts = (store.state_dir / "claims", store.state_dir / "epochs")
    return {
        str(path): path.read_bytes() for part in parts for path in part.rglob("*") if path.is_file()
    }


@contextmanager
def unchanged(store: FileClaimStore) -> Iterator[None]:
    before = entries(store)
    yield
    assert entries(store) == before


def test_c1_the_file_store_satisfies_the_port(store: FileClaimStore) -> None:
    port: ClaimStore = store

    assert port.read(ROLLOUT) is None


def test_c1_a_grant_is_on_record_when_it_is_given(store: FileClaimStore, live: Live) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))

    assert store.read(ROLLOUT) == grant.claim
    assert store.stands(grant)
    assert claim_file(store).stat().st_mode & 0o777 == 0o600


def test_c1_a_claim_of_another_is_not_taken(store: FileClaimStore, live: Live) -> None:
    first = granted(store.take(ROLLOUT, live().owner))

    with unchanged(store):
        assert store.take(ROLLOUT, live().owner) == Moved(current=first.claim)


def test_c1_a_grant_stands_until_any_other_file_is_there(store: FileClaimStore, live: Live) -> None:
    owner = live().owner
    first = granted(store.take(ROLLOUT, owner))
    second = granted(store.take(ROLLOUT, owner))

    assert not store.stands(first)
    assert store.stands(second)
    claim_file(store).unlink()
    assert not store.stands(second)


def touch_mode(path: Path) -> None:
    path.chmod(0o600)


def copy_in_place(path: Path) -> None:
    raw = path.read_bytes()
    path.rename(path.with_name("r.kept"))
    path.write_bytes(raw)


@pytest.mark.parametrize("touch", [touch_mode, copy_in_place])
def test_c3_a_claim_stands_as_long_as_its_file_says_so_whatever_became_of_the_file(
    store: FileClaimStore, live: Live, touch: Callable[[Path], None]
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    seen = signature_of(claim_file(store).lstat())
    touch(claim_file(store))

    assert signature_of(claim_file(store).lstat()) != seen
    assert store.stands(grant)


def test_c1_an_untouched_claim_costs_one_stat_and_no_read(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    calls: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, watched)

    for name in ("stat", "lstat", "open"):
        watch(name)
    assert store.stands(grant)
    monkeypatch.undo()

    assert calls == ["stat"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"claim_epoch": 2**62}, id="epoch"),
        pytest.param({"owner": Owner(nonce="another", inode=1)}, id="owner"),
        pytest.param({"inode": 1}, id="inode of the owner file"),
        pytest.param({"kind": "session", "state": "lost"}, id="state"),
    ],
)
def test_c1_a_grant_does_not_stand_where_another_record_does(
    store: FileClaimStore, live: Live, change: dict[str, Any]
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    if "inode" in change:
        change = {"owner": replace(grant.claim.owner, **change)}
    claim_file(store).write_bytes(encode_claim(replace(grant.claim, **change)))

    assert not store.stands(grant)


def test_c7_a_claim_in_a_directory_that_is_gone_is_neither_lost_nor_free(
    store: FileClaimStore, live: Live
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    stripe = claim_file(store).parent
    stripe.rename(stripe.with_name("away"))

    for attempt in (
        lambda: store.stands(grant),
        lambda: store.read(ROLLOUT),
        lambda: store.release(grant),
    ):
        with pytest.raises(StoreUnavailable) as raised:
            attempt()
        assert raised.value.errno == errno.ENOENT

    stripe.with_name("away").rename(stripe)
    assert store.stands(grant)


def test_c1_a_worker_notices_that_its_store_was_replaced(
    store: FileClaimStore, live: Live, directory: Path
) -> None:
    owner = live().owner
    store.state_dir.rename(directory / "old")
    FileClaimStore.open(store.state_dir, service="model")

    with pytest.raises(StoreUnavailable, match="another store"):
        store.take(ROLLOUT, owner)


def test_c2_epoch_rises_when_the_owner_takes_again(store: FileClaimStore, live: Live) -> None:
    owner = live().owner
    first = granted(store.take(ROLLOUT, owner)).claim
    second = granted(store.take(ROLLOUT, owner)).claim

    assert second.claim_epoch > first.claim_epoch
    assert second.previous is not None
    assert (second.previous.claim_epoch, second.previous.nonce) == (first.claim_epoch, owner.nonce)


def test_c2_epoch_rises_through_release_and_retake(store: FileClaimStore, live: Live) -> None:
    first = granted(store.take(ROLLOUT, live().owner))
    assert store.release(first)
    assert store.read(ROLLOUT) is None

    second = granted(store.take(ROLLOUT, live().owner))

    assert second.claim.claim_epoch > first.claim.claim_epoch


def test_c2_epoch_rises_through_transfer(store: FileClaimStore, live: Live) -> None:
    owner, proof = dead(store, live)
    first = granted(store.take(ROLLOUT, owner)).claim

    second = granted(store.take_over(first, live().owner, proof)).claim

    assert second.claim_epoch > first.claim_epoch
    assert store.read(ROLLOUT) == second


def test_c2_epoch_rises_through_reaping(store: FileClaimStore, live: Live) -> None:
    owner, proof = dead(store, live)
    first = granted(store.take(ROLLOUT, owner)).claim
    assert store.reap(first, proof)

    assert granted(store.take(ROLLOUT, live().owner)).claim.claim_epoch > first.claim_epoch


def test_c2_epoch_rises_through_deletion_of_the_claim_file(
    store: FileClaimStore, live: Live
) -> None:
    first = granted(store.take(ROLLOUT, live().owner)).claim
    claim_file(store).unlink()

    assert granted(store.take(ROLLOUT, live().owner)).claim.claim_epoch > first.claim_epoch


def test_c2_epoch_rises_through_corruption_and_force(store: FileClaimStore, live: Live) -> None:
    first = granted(store.take(ROLLOUT, live().owner)).claim
    claim_file(store).write_bytes(b"\0" * 100)

    fenced = store.force(ROLLOUT, expect_epoch=None, reason="a broken disk")
    second = granted(store.take(ROLLOUT, live().owner)).claim

    assert second.claim_epoch > fenced > first.claim_epoch


def test_c2_epoch_rises_through_restart_of_all_workers(store: FileClaimStore, live: Live) -> None:
    first = granted(store.take(ROLLOUT, live().owner))
    store.release(first)
    again = FileClaimStore.open(store.state_dir, service="model")

    second = granted(again.take(ROLLOUT, live().owner))

    assert second.claim.claim_epoch > first.claim.claim_epoch
    assert again.store_id == store.store_id


def test_c2_epoch_rises_through_a_power_cut_that_lost_every_unsynced_write(
    store: FileClaimStore, live: Live
) -> None:
    """Claims are not synced: at worst the disk holds the epoch file of the beginning."""
    lost = epoch_file(store).read_bytes()
    for _ in range(5):
        first = granted(store.take(ROLLOUT, live().owner))
        store.release(first)
    epoch_file(store).write_bytes(lost)

    rebooted = replace(Host.here(), boot_id="another-boot")
    again = FileClaimStore.open(store.state_dir, service="model", host=rebooted)

    assert granted(again.take(ROLLOUT, live().owner)).claim.claim_epoch > first.claim.claim_epoch


def test_c2_epoch_rises_over_an_old_epoch_file_that_somebody_put_back(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    old = epoch_file(store).read_bytes()
    first = granted(store.take(ROLLOUT, owner)).claim
    epoch_file(store).write_bytes(old)

    assert granted(store.take(ROLLOUT, owner)).claim.claim_epoch > first.claim_epoch


def test_c2_the_number_is_on_record_before_the_grant(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies between epoch file and rename has burnt the number, not lent it."""

    def die(_source: object, _target: object) -> None:
        raise SystemExit

    owner = live().owner
    first = granted(store.take(ROLLOUT, owner))
    store.release(first)
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", die)
        with pytest.raises(SystemExit):
            store.take(ROLLOUT, owner)

    second = granted(store.take(ROLLOUT, live().owner))

    assert second.claim.claim_epoch == first.claim.claim_epoch + 2


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "damaged"])
def test_c2_without_its_epoch_file_a_stripe_grants_nothing_until_repaired(
    store: FileClaimStore, live: Live, *, missing: bool
) -> None:
    first = granted(store.take(ROLLOUT, live().owner))
    store.release(first)
    if missing:
        epoch_file(store).unlink()
    else:
        epoch_file(store).write_bytes(b"0000")

    with unchanged(store), pytest.raises(StoreUnavailable, match="verify --repair"):
        store.take(ROLLOUT, live().owner)

    other = next(f"x{n}" for n in range(999) if stripe_of(f"x{n}") != stripe_of(ROLLOUT))
    assert isinstance(store.take(other, live().owner), Grant)

    repair(store)
    second = granted(store.take(ROLLOUT, live().owner))
    assert second.claim.claim_epoch > first.claim.claim_epoch


def test_c2_a_stripe_whose_epochs_are_used_up_grants_nothing(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    claim = granted(store.take(ROLLOUT, owner)).claim
    claim_file(store).write_bytes(encode_claim(replace(claim, claim_epoch=2**63 - 1)))

    with unchanged(store), pytest.raises(StoreUnavailable, match="used up"):
        store.take(ROLLOUT, owner)


def test_c3_a_proof_of_another_death_moves_nothing(store: FileClaimStore, live: Live) -> None:
    seen = granted(store.take(ROLLOUT, live().owner)).claim
    _, proof = dead(store, live)

    with unchanged(store), pytest.raises(ValueError, match="proof is of worker"):
        store.take_over(seen, live().owner, proof)
    with unchanged(store), pytest.raises(ValueError, match="proof is of worker"):
        store.reap(seen, proof)


def test_c3_a_proof_of_another_file_of_that_name_moves_nothing(
    store: FileClaimStore, live: Live
) -> None:
    owner, proof = dead(store, live)
    seen = granted(store.take(ROLLOUT, replace(owner, inode=owner.inode + 1))).claim

    with unchanged(store), pytest.raises(ValueError, match="proof is of worker"):
        store.take_over(seen, live().owner, proof)


def test_c3_a_proof_cannot_be_made_elsewhere() -> None:
    with pytest.raises(TypeError, match="found, not made"):
        ProofOfDeath(owner=Owner(nonce="a", inode=1), evidence="life_lock_free", seal=object())


@pytest.mark.parametrize("change", ["taken again", "released", "forced and taken"])
def test_c3_a_claim_that_is_no_longer_what_was_seen_is_not_taken_over(
    store: FileClaimStore, live: Live, change: str
) -> None:
    owner, proof = dead(store, live)
    seen = granted(store.take(ROLLOUT, owner))
    current: Claim | None = None
    if change == "released":
        store.release(seen)
    elif change == "taken again":
        current = granted(store.take(ROLLOUT, owner)).claim
    else:
        store.force(ROLLOUT, expect_epoch=seen.claim.claim_epoch, reason="test")
        current = granted(store.take(ROLLOUT, live().owner)).claim

    with unchanged(store):
        assert store.take_over(seen.claim, live().owner, proof) == Moved(current=current)
        assert not store.reap(seen.claim, proof)


def test_c3_release_leaves_alone_what_no_longer_is_the_grant(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    first = granted(store.take(ROLLOUT, owner))
    second = granted(store.take(ROLLOUT, owner))

    assert not store.release(first)
    assert store.stands(second)
    assert store.release(second)
    assert not store.release(second)


def test_c3_force_fences_a_live_owner(store: FileClaimStore, live: Live) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))

    fenced = store.force(ROLLOUT, expect_epoch=grant.claim.claim_epoch, reason="stuck")

    assert fenced > grant.claim.claim_epoch
    assert store.read(ROLLOUT) is None
    assert not store.stands(grant)
    assert granted(store.take(ROLLOUT, live().owner)).claim.claim_epoch > fenced


@pytest.mark.parametrize("off_by", [-1, 1, None])
def test_c3_force_of_another_epoch_changes_nothing(
    store: FileClaimStore, live: Live, off_by: int | None
) -> None:
    epoch = granted(store.take(ROLLOUT, live().owner)).claim.claim_epoch
    expected = None if off_by is None else epoch + off_by

    with unchanged(store), pytest.raises(ForceRefused, match=f"is at claim epoch {epoch}"):
        store.force(ROLLOUT, expect_epoch=expected, reason="test")


def test_c3_force_of_no_claim_changes_nothing(store: FileClaimStore) -> None:
    with unchanged(store), pytest.raises(ForceRefused, match="nothing to force"):
        store.force(ROLLOUT, expect_epoch=1, reason="test")


def test_c3_what_force_would_remove_is_said_without_removing_it(
    store: FileClaimStore, live: Live
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    epoch = grant.claim.claim_epoch

    with unchanged(store):
        assert store.forceable(ROLLOUT, expect_epoch=epoch) == grant.claim
        with pytest.raises(ForceRefused, match=f"is at claim epoch {epoch}, not at 1"):
            store.forceable(ROLLOUT, expect_epoch=1)
        with pytest.raises(ForceRefused, match=f"--expect-epoch {epoch}"):
            store.forceable(ROLLOUT, expect_epoch=None)
        with pytest.raises(ForceRefused, match="nothing to force"):
            store.forceable("nobody", expect_epoch=epoch)
    claim_file(store).write_bytes(b"")
    with unchanged(store):
        assert store.forceable(ROLLOUT, expect_epoch=None) is None


def test_r3_a_forced_session_leaves_a_tombstone_under_the_new_epoch(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    session = granted(store.take(ROLLOUT, owner, kind="session"))

    fenced = store.force(
        ROLLOUT, expect_epoch=session.claim.claim_epoch, reason="\N{GRINNING FACE}" * 999
    )

    tombstone = store.read(ROLLOUT)
    assert tombstone
    assert (tombstone.state, tombstone.claim_epoch) == ("lost", fenced)
    assert tombstone.reason == "\N{GRINNING FACE}" * 200
    assert not store.stands(session)
    assert store.take(ROLLOUT, owner) == Moved(current=tombstone)


def test_r3_a_session_never_moves_and_its_death_leaves_a_tombstone(
    store: FileClaimStore, live: Live
) -> None:
    owner, proof = dead(store, live)
    seen = granted(store.take(ROLLOUT, owner, kind="session")).claim

    with unchanged(store), pytest.raises(ValueError, match="never moves"):
        store.take_over(seen, live().owner, proof)
    assert store.reap(seen, proof)

    tombstone = store.read(ROLLOUT)
    assert tombstone
    assert tombstone.state == "lost"
    assert "died" in tombstone.reason
    with unchanged(store):
        assert store.take(ROLLOUT, live().owner, kind="session") == Moved(current=tombstone)
        with pytest.raises(ValueError, match="no owner"):
            store.reap(tombstone, proof)


def test_r3_a_session_that_its_worker_leaves_is_lost(store: FileClaimStore, live: Live) -> None:
    session = granted(store.take(ROLLOUT, live().owner, kind="session"))

    assert store.lose(session, reason="the worker left")
    assert not store.lose(session, reason="again")

    tombstone = store.read(ROLLOUT)
    assert tombstone
    assert (tombstone.state, tombstone.reason) == ("lost", "the worker left")
    assert store.forget(tombstone)
    assert store.read(ROLLOUT) is None
    assert granted(store.take(ROLLOUT, live().owner)).claim.claim_epoch > tombstone.claim_epoch


def test_r3_a_session_stays_one_when_it_is_taken_again(store: FileClaimStore, live: Live) -> None:
    owner = live().owner
    store.take(ROLLOUT, owner, kind="session")

    assert granted(store.take(ROLLOUT, owner)).claim.kind == "session"


def test_r3_only_sessions_are_lost_and_only_tombstones_forgotten(
    store: FileClaimStore, live: Live
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))

    with unchanged(store), pytest.raises(ValueError, match="release the claim"):
        store.lose(grant, reason="test")
    with unchanged(store), pytest.raises(ValueError, match="only a tombstone"):
        store.forget(grant.claim)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_link(path: Path) -> None:
    path.rename(path.with_name("r.kept"))
    path.symlink_to("r.kept")


BREAKAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:50]),
    "overwritten": lambda path: path.write_bytes(b"\0" * 400),
    "large": lambda path: path.write_bytes(b" " * 5000),
    "a FIFO": make_fifo,
    "a directory": make_directory,
    "a symbolic link": make_link,
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_c5_an_unreadable_record_fails_closed_for_its_rollout_alone(
    store: FileClaimStore, live: Live, breakage: str
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    BREAKAGES[breakage](claim_file(store))
    before = epoch_file(store).read_bytes()

    for attempt in (
        lambda: store.read(ROLLOUT),
        lambda: store.take(ROLLOUT, live().owner),
        lambda: store.release(grant),
        lambda: store.stands(grant),
    ):
        with pytest.raises(ClaimUnreadable, match="other rollouts are not affected"):
            attempt()
    with pytest.raises(ForceRefused, match=r"unreadable .* leave out --expect-epoch"):
        store.force(ROLLOUT, expect_epoch=grant.claim.claim_epoch, reason="test")

    assert epoch_file(store).read_bytes() == before
    neighbour = next(f"x{n}" for n in range(9999) if stripe_of(f"x{n}") == stripe_of(ROLLOUT))
    other = granted(store.take(neighbour, live().owner)).claim
    survey = list(store.survey())
    assert other in survey
    assert str(claim_file(store)) in [s.path for s in survey if isinstance(s, Unreadable)]


def test_c5_a_claim_copied_to_another_name_claims_nothing(
    store: FileClaimStore, live: Live
) -> None:
    grant = granted(store.take(ROLLOUT, live().owner))
    copy = claim_file(store, "victim")
    copy.write_bytes(claim_file(store).read_bytes())

    with pytest.raises(ClaimUnreadable) as raised:
        store.take("victim", live().owner)

    assert raised.value.code == "wrong_name"
    assert list(store.survey()) in (
        [grant.claim, Unreadable(path=str(copy), code="wrong_name")],
        [Unreadable(path=str(copy), code="wrong_name"), grant.claim],
    )


def test_c5_a_record_of_a_newer_format_is_not_even_forced(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rollout_router.claims.envelope.FORMAT_VERSION", 2)
        raw = encode_claim(granted(store.take(ROLLOUT, live().owner)).claim)
    claim_file(store).write_bytes(raw)

    with unchanged(store), pytest.raises(ForceRefused, match="newer version"):
        store.force(ROLLOUT, expect_epoch=None, reason="test")
    with pytest.raises(ClaimUnreadable, match="run that version") as raised:
        store.read(ROLLOUT)
    assert "force" not in str(raised.value)


def test_c5_a_survey_lists_every_claim_and_no_temporary_file(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    claims = {f"x{n}": granted(store.take(f"x{n}", owner)).claim for n in range(50)}
    claim_file(store).with_name(".tmp.leftover").write_bytes(b"half a rec")

    survey = [record for record in store.survey() if isinstance(record, Claim)]

    assert {claim.rollout_id: claim for claim in survey} == claims
    assert len(list(store.survey())) == 50


@pytest.mark.parametrize("rollout_id", ["", "../x", "a/b", "a" * 201])
def test_c1_an_id_that_is_none_reaches_no_file(store: FileClaimStore, rollout_id: str) -> None:
    with pytest.raises(ValueError, match="not a rollout id"):
        store.read(rollout_id)


def test_c1_owners_are_listed_and_damaged_owner_files_named(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    (store.state_dir / "owners" / "broken").write_bytes(b"{}")

    assert set(store.owners()) == {
        lock.identity,
        Unreadable(path=str(store.state_dir / "owners" / "broken"), code="checksum"),
    }
    assert store.owner(lock.owner.nonce) == lock.identity
    assert store.owner("nobody") is None
    with pytest.raises(ClaimUnreadable):
        store.owner("broken")
