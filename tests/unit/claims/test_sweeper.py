# SPDX-License-Identifier: Apache-2.0
"""What a sweep clears (C2, C3)."""

import errno
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    Moved,
    StoreUnavailable,
    Swept,
    Unreadable,
    sweep,
    sweep_alone,
)
from rollout_router.claims.names import stripe_of
from rollout_router.claims.record import encode_identity

Live = Callable[[], LifeLock]
DAY = timedelta(days=1)
NOTHING = Swept()


def claimed(taken: Grant | Moved) -> Claim:
    assert isinstance(taken, Grant)
    return taken.claim


def sweeping(store: FileClaimStore, *, after: timedelta = timedelta(0), dry: bool = False) -> Swept:
    return sweep(store, now=datetime.now(UTC) + after, tombstone_age_max=DAY, dry_run=dry)


def test_c3_nothing_of_a_live_worker_is_swept(store: FileClaimStore, live: Live) -> None:
    owner = live().owner
    claims = [claimed(store.take(f"r{n}", owner)) for n in range(3)]

    assert sweeping(store, after=365 * DAY) == NOTHING
    assert [store.read(f"r{n}") for n in range(3)] == claims
    assert store.owner(owner.nonce)


def test_c3_the_claims_of_a_dead_worker_are_freed_and_its_file_goes_last(
    store: FileClaimStore, live: Live
) -> None:
    lock, other = live(), live()
    claim = claimed(store.take("r1", lock.owner))
    kept = claimed(store.take("r2", other.owner))
    lock.close()

    planned = sweeping(store, dry=True)
    assert planned.freed == (claim,)
    assert store.read("r1") == claim

    swept = sweeping(store)
    assert (swept.freed, swept.owners) == ((claim,), (lock.owner.nonce,))
    assert store.read("r1") is None
    assert store.owner(lock.owner.nonce) is None
    assert store.read("r2") == kept
    assert sweeping(store) == NOTHING


def test_r3_a_session_of_a_dead_worker_is_lost_and_forgotten_in_time(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    session = claimed(store.take("s1", lock.owner, kind="session"))
    lock.close()

    assert sweeping(store).lost == (session,)
    tombstone = store.read("s1")
    assert tombstone
    assert tombstone.state == "lost"
    assert sweeping(store, after=DAY - timedelta(minutes=5)) == NOTHING
    assert sweeping(store, after=DAY + timedelta(minutes=5)).forgotten == (tombstone,)
    assert store.read("s1") is None


def test_c3_an_owner_file_stays_while_an_unreadable_claim_might_name_it(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    store.take("r1", lock.owner)
    path = Path(store.path_of("r1"))
    path.write_bytes(b"")
    lock.close()

    swept = sweeping(store)

    assert swept.unreadable == (Unreadable(path=str(path), code="empty"),)
    assert swept.owners == ()
    assert store.owner(lock.owner.nonce)


def test_c3_a_claim_that_names_another_file_of_a_dead_nonce_is_left(
    store: FileClaimStore, live: Live
) -> None:
    """Its owner file was replaced, so nobody can prove that death: an operator must."""
    lock = live()
    claim = claimed(store.take("r1", lock.owner))
    path = store.state_dir / "owners" / lock.owner.nonce
    raw = path.read_bytes()
    path.rename(path.with_name(".kept"))
    path.write_bytes(raw)

    assert sweeping(store).freed == ()
    assert store.read("r1") == claim


def test_c3_leftovers_of_writers_are_cleared(store: FileClaimStore) -> None:
    leftovers = [
        store.state_dir / ".tmp.4567",
        store.state_dir / "owners" / ".tmp.abcd",
        store.state_dir / "epochs" / ".tmp.89ab",
        store.state_dir / "claims" / "00" / ".tmp.0123",
    ]
    for path in leftovers:
        path.write_bytes(b"half")

    assert sweeping(store, dry=True).leftovers == tuple(map(str, leftovers))
    assert sweeping(store).leftovers == tuple(map(str, leftovers))
    assert not any(path.exists() for path in leftovers)


def bind(path: str) -> None:
    """Leave a socket file behind, as a process does that was killed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)


def test_c3_the_socket_of_a_dead_worker_goes_before_its_owner_file(
    store: FileClaimStore, live: Live, run_dir: Path
) -> None:
    dead, other = live(), live()
    for lock in (dead, other):
        bind(lock.identity.socket)
    dead.close()

    planned = sweeping(store, dry=True)
    assert planned.sockets == (dead.identity.socket,)
    assert len(list(run_dir.iterdir())) == 2

    swept = sweeping(store)
    assert (swept.owners, swept.sockets) == ((dead.owner.nonce,), (dead.identity.socket,))
    assert [str(path) for path in run_dir.iterdir()] == [other.identity.socket]


def test_c3_a_socket_that_cannot_be_removed_keeps_the_owner_file_that_names_it(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = live()
    bind(dead.identity.socket)
    dead.close()
    real = Path.unlink

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".sock":
            raise PermissionError(errno.EACCES, "injected")
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    swept = sweeping(store)
    monkeypatch.undo()

    owner_file = str(store.state_dir / "owners" / dead.owner.nonce)
    assert swept == Swept(failed=(Unreadable(path=owner_file, code="EACCES"),))
    assert store.owner(dead.owner.nonce)
    assert sweeping(store).sockets == (dead.identity.socket,)


@pytest.mark.parametrize("name", ["new", "conn"])  # not renamed any more; for connections
def test_c3_the_other_socket_of_a_dead_worker_goes_too(
    store: FileClaimStore, live: Live, run_dir: Path, name: str
) -> None:
    dead = live()
    path = f"{run_dir}/{dead.owner.nonce}.{name}"
    bind(path)
    dead.close()

    assert sweeping(store).sockets == (path,)
    assert list(run_dir.iterdir()) == []


def test_c3_the_load_file_of_a_dead_worker_goes_with_its_socket(
    store: FileClaimStore, live: Live, run_dir: Path
) -> None:
    dead, other = live(), live()
    loads = [Path(f"{run_dir}/{lock.owner.nonce}.load") for lock in (dead, other)]
    for load in loads:
        load.write_bytes(b"1")
    dead.close()

    assert sweeping(store).sockets == (str(loads[0]),)
    assert list(run_dir.iterdir()) == [loads[1]]


def a_regular_file(path: Path) -> None:
    path.write_bytes(b"precious")


def a_link_to_a_socket(path: Path) -> None:
    bind(str(path.with_name("x")))
    path.symlink_to(path.with_name("x"))


@pytest.mark.parametrize("make", [a_regular_file, a_link_to_a_socket])
def test_c3_nothing_but_a_socket_is_removed_for_a_dead_worker(
    store: FileClaimStore, live: Live, run_dir: Path, make: Callable[[Path], None]
) -> None:
    dead = live()
    make(Path(dead.identity.socket))
    before = sorted(run_dir.iterdir())
    dead.close()

    swept = sweeping(store)

    assert (swept.owners, swept.sockets) == ((dead.owner.nonce,), ())
    assert sorted(run_dir.iterdir()) == before


@pytest.mark.parametrize("name", ["public.sock", "other\0.sock", "\ud800.sock"])
def test_c3_no_socket_of_another_name_is_removed_for_a_dead_worker(
    store: FileClaimStore, live: Live, run_dir: Path, name: str
) -> None:
    bind(f"{run_dir}/public.sock")
    dead = live()
    path = store.state_dir / "owners" / dead.owner.nonce
    named = f"{run_dir}/{name}" if name == "public.sock" else f"{name}/{dead.owner.nonce}.sock"
    path.write_bytes(encode_identity(replace(dead.identity, socket=named)))
    dead.close()

    swept = sweeping(store)

    assert (swept.owners, swept.sockets) == ((dead.owner.nonce,), ())
    assert (run_dir / "public.sock").exists()


def test_c3_a_sweep_that_is_ended_early_removes_no_owner_file(
    store: FileClaimStore, live: Live
) -> None:
    dead = live()
    for number in range(5):
        store.take(f"r{number}", dead.owner)
    dead.close()
    left = iter([True, True, False])

    swept = sweep(
        store, now=datetime.now(UTC), tombstone_age_max=DAY, pace=lambda: next(left, False)
    )

    assert (len(swept.freed), swept.owners, swept.whole) == (2, (), False)
    again = sweeping(store)
    assert (len(again.freed), again.owners, again.whole) == (3, (dead.owner.nonce,), True)


def test_c3_a_stuck_stripe_keeps_its_claims_and_their_owner_file_alone(
    state_dir: Path, store: FileClaimStore, live: Live
) -> None:
    dead, other = live(), live()
    for number in range(600):  # some stripes have several
        store.take(f"r{number}", dead.owner)
    store.take("x", other.owner)
    dead.close()
    other.close()
    stuck = stripe_of("r0")
    hurried = FileClaimStore.open(state_dir, service="model", lock_timeout_s=0.01)

    with store.holding_stripe(stuck):
        swept = sweeping(hurried)

    (failed,) = swept.failed  # the stripe is waited for once
    assert failed.code == "ETIMEDOUT"
    assert {stripe_of(claim.rollout_id) for claim in swept.freed}.isdisjoint({stuck})
    assert (swept.owners, swept.whole) == ((other.owner.nonce,), True)
    assert {stripe_of(claim.rollout_id) for claim in sweeping(store).freed} == {stuck}
    assert list((state_dir / "owners").iterdir()) == []


def test_c7_a_tombstone_that_finds_no_space_keeps_its_claim_and_the_sweep_goes_on(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = live()
    claim = claimed(store.take("s", dead.owner, kind="session"))
    store.take("r", dead.owner)
    dead.close()

    def publish(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "injected")

    with monkeypatch.context() as full:
        full.setattr("rollout_router.claims.files.publish", publish)
        swept = sweeping(store)

    assert [found.rollout_id for found in swept.freed] == ["r"]
    assert swept.failed == (Unreadable(path=store.path_of("s"), code="ENOSPC"),)
    assert store.read("s") == claim
    again = sweeping(store)
    assert ([found.rollout_id for found in again.lost], again.owners) == (
        ["s"],
        (dead.owner.nonce,),
    )


def test_c3_an_owner_file_that_a_claim_names_under_another_inode_stays(
    state_dir: Path, store: FileClaimStore, live: Live
) -> None:
    """A copy of a store: in the next boot its workers are dead, whatever their inodes."""
    dead = live()
    store.take("r", dead.owner)
    dead.close()
    owner_file = state_dir / "owners" / dead.owner.nonce
    raw = owner_file.read_bytes()
    owner_file.rename(state_dir / "aside")
    owner_file.write_bytes(raw)
    owner_file.chmod(0o600)
    (state_dir / "aside").unlink()

    assert sweeping(store) == Swept()  # of this boot: a copy proves nothing
    assert store.read("r")
    rebooted = FileClaimStore.open(
        state_dir, service="model", host=replace(Host.here(), boot_id="next")
    )
    swept = sweeping(rebooted)

    assert [claim.rollout_id for claim in swept.freed] == ["r"]
    assert swept.owners == (dead.owner.nonce,)


def test_c3_a_directory_that_cannot_be_listed_keeps_owner_files_and_nothing_else(
    state_dir: Path, store: FileClaimStore, live: Live
) -> None:
    dead = live()
    for number in range(40):
        store.take(f"r{number}", dead.owner)
    dead.close()
    stripe = state_dir / "claims" / stripe_of("r0")
    stripe.rename(state_dir / "aside")

    swept = sweeping(store)

    assert {path for bad in swept.unreadable if (path := bad.path)} == {str(stripe)}
    assert len(swept.freed) >= 30
    assert swept.owners == ()
    (state_dir / "aside").rename(stripe)
    assert sweeping(store).owners == (dead.owner.nonce,)


def test_c3_a_file_that_does_not_say_whose_it_is_is_left_and_named(store: FileClaimStore) -> None:
    path = store.state_dir / "owners" / "README"
    path.write_text("not ours")

    swept = sweeping(store)

    assert (swept.owners, swept.failed) == ((), (Unreadable(path=str(path), code="checksum"),))
    assert path.exists()


@pytest.mark.parametrize("stride", [13, pytest.param(3, marks=pytest.mark.long)])
def test_c3_two_sweeps_at_one_time_are_as_safe_as_one(
    store: FileClaimStore, live: Live, stride: int
) -> None:
    """A whole second sweep, and a take-over, between any two steps of the first."""
    for step in range(0, 300, stride):
        dead, heir = live(), live()
        for number in range(3):
            store.take(f"r{number}", dead.owner)
        store.take("s", dead.owner, kind="session")
        seen = store.read("r0")
        assert seen
        dead.close()
        proof = store.proof_of_death(dead.owner)
        assert proof
        steps = iter(range(1000))

        def pace(at: int = step) -> bool:
            if next(steps) == at:  # noqa: B023 - called within this round
                sweeping(store)
                store.take_over(seen, heir.owner, proof)  # noqa: B023 - as above
            return True

        sweep(store, now=datetime.now(UTC), tombstone_age_max=DAY, pace=pace)

        for record in store.survey():
            assert isinstance(record, Claim)
            assert record.state == "lost" or store.owner(record.owner.nonce)
        heir.close()
        sweeping(store, after=2 * DAY)
        assert list(store.survey()) == []
        assert list((store.state_dir / "owners").iterdir()) == []


def test_c3_a_store_that_was_replaced_is_not_swept(store: FileClaimStore, live: Live) -> None:
    dead = live()
    store.take("r", dead.owner)
    dead.close()
    (store.state_dir / "FORMAT").unlink()

    with pytest.raises(StoreUnavailable) as raised:
        sweeping(store)

    assert raised.value.errno == errno.ESTALE


def test_c3_one_process_sweeps_at_a_time(store: FileClaimStore, live: Live) -> None:
    live().close()
    alone = partial(sweep_alone, store, now=datetime.now(UTC), tombstone_age_max=DAY)
    seen: list[Swept | None] = []

    def pace() -> bool:
        seen.append(alone())
        return True

    store.take("r", live().owner)
    swept = alone(pace=pace)

    assert set(seen) == {None}
    assert swept is not None
    assert len(swept.owners) == 1
    assert alone() == Swept()


def test_c2_a_dry_sweep_takes_no_lock_and_needs_no_opening_in_this_boot(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    claim = claimed(store.take("r1", lock.owner))
    leftover = store.state_dir / "claims" / "00" / ".tmp.0123"
    leftover.write_bytes(b"half")
    for path in (store.state_dir / "locks").iterdir():
        path.unlink()
    looked = FileClaimStore.inspect(
        store.state_dir, host=replace(Host.here(), boot_id="another-boot")
    )

    planned = sweeping(looked, dry=True)

    assert (planned.freed, planned.owners) == ((claim,), (lock.owner.nonce,))
    assert planned.leftovers == (str(leftover),)
    assert list((store.state_dir / "locks").iterdir()) == []
