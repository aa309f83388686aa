# SPDX-License-Identifier: Apache-2.0
"""Stripe locks: bounded waits, and lock files that a cleaner touched (C1, C3, C7)."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollout_router.claims import FileClaimStore, Grant, LifeLock, StoreUnavailable
from rollout_router.claims.locks import StripeLocks
from rollout_router.claims.names import stripe_of

Live = Callable[[], LifeLock]


@contextmanager
def held_by_another_process(path: Path) -> Iterator[None]:
    """What a stopped process does to a lock: this descriptor is another open file."""
    with path.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        yield


def test_c3_a_lock_that_is_not_given_in_time_moves_nothing(state_dir: Path, live: Live) -> None:
    store = FileClaimStore.open(state_dir, service="model", lock_timeout_s=0.05)
    owner = live().owner

    with (
        held_by_another_process(state_dir / "locks" / stripe_of("r1")),
        pytest.raises(StoreUnavailable) as raised,
    ):
        store.take("r1", owner)

    assert raised.value.errno == errno.ETIMEDOUT
    assert store.read("r1") is None
    assert isinstance(store.take("r1", owner), Grant)


def test_c7_a_held_stripe_does_not_hold_up_another(state_dir: Path, live: Live) -> None:
    store = FileClaimStore.open(state_dir, service="model", lock_timeout_s=0.05)
    other = next(f"x{n}" for n in range(999) if stripe_of(f"x{n}") != stripe_of("r1"))

    with held_by_another_process(state_dir / "locks" / stripe_of("r1")):
        assert isinstance(store.take(other, live().owner), Grant)


def test_c7_threads_wait_for_one_another_with_the_same_bound(store: FileClaimStore) -> None:
    locks = StripeLocks(store.state_dir / "locks", timeout_s=0.05)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with locks.hold("00"):
            inside.set()
            leave.wait()

    holder = threading.Thread(target=stay)
    holder.start()
    inside.wait()
    with pytest.raises(StoreUnavailable) as raised, locks.hold("00"):
        pass
    leave.set()
    holder.join()

    assert raised.value.errno == errno.ETIMEDOUT
    with locks.hold("00"):
        pass


def test_c1_a_missing_lock_file_is_refused_and_not_made(store: FileClaimStore, live: Live) -> None:
    """Its holder may still be inside: a new file would not exclude it."""
    path = store.state_dir / "locks" / stripe_of("r1")
    path.unlink()

    with pytest.raises(StoreUnavailable, match="stop all workers") as raised:
        store.take("r1", live().owner)

    assert raised.value.errno == errno.ESTALE
    assert not path.exists()


def test_c1_a_lock_file_that_was_replaced_while_we_waited_is_taken_anew(
    store: FileClaimStore,
) -> None:
    locks = StripeLocks(store.state_dir / "locks", timeout_s=5)
    path = store.state_dir / "locks" / "00"
    trace: list[int] = []
    fstat = os.fstat

    def replace_once(fd: int) -> os.stat_result:
        status = fstat(fd)
        if not trace and os.path.samestat(status, path.stat()):
            trace.append(status.st_ino)
            path.with_name("new").touch()
            path.with_name("new").rename(path)
        return status

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rollout_router.claims.locks.os.fstat", replace_once)
        with locks.hold("00"):
            patched.undo()
            assert path.stat().st_ino != trace[0]
            with path.open("rb") as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_c1_a_lock_file_that_keeps_being_replaced_is_refused(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = StripeLocks(store.state_dir / "locks", timeout_s=5)
    monkeypatch.setattr("rollout_router.claims.locks._is_still", lambda *_: False)

    with pytest.raises(StoreUnavailable, match="keeps being replaced"), locks.hold("00"):
        pass

    monkeypatch.undo()
    with locks.hold("00"):
        pass


def test_c7_a_lock_is_given_back_when_what_it_guards_fails(store: FileClaimStore) -> None:
    locks = StripeLocks(store.state_dir / "locks", timeout_s=0.05)

    with pytest.raises(KeyError), locks.hold("00"):
        raise KeyError

    with locks.hold("00"):
        pass
