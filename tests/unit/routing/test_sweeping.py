# SPDX-License-Identifier: Apache-2.0
"""When a worker sweeps, how fast, and what it says of it (C3)."""

import logging
import os
from datetime import timedelta
from pathlib import Path

import pytest
from support.metrics import counted

from rollout_router.claims import FileClaimStore, LifeLock, new_nonce, stripe_of
from rollout_router.claims.locks import StripeLocks
from rollout_router.routing.sweeping import (
    AGAIN_AFTER_S,
    HELD_UP_S,
    LOCK_TIMEOUT_S,
    PASS_EVERY_S,
    SLICE_S,
    Pace,
    Sweeping,
    counts_of,
)

DAY = timedelta(days=1)


class Clock:
    """Seconds that rise when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(folder: Path) -> FileClaimStore:
    return FileClaimStore.open(folder / "state", service="model")


def die(store: FileClaimStore, *rollouts: str) -> str:
    """A worker that took rollouts and ended; its nonce."""
    life = LifeLock.acquire(store, nonce=new_nonce(), socket="/nowhere.sock")
    for rollout in rollouts:
        store.take(rollout, life.owner)
    life.close()
    return life.owner.nonce


def test_c3_without_a_death_there_is_no_pass_until_it_is_time(store: FileClaimStore) -> None:
    clock = Clock()
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=clock)
    leftover = store.state_dir / "claims" / "00" / ".tmp.0"
    leftover.touch()

    assert sweeping.look() is None
    clock.now = PASS_EVERY_S
    swept = sweeping.look()

    assert swept is not None
    assert swept.leftovers == (str(leftover),)
    assert sweeping.look() is None
    sweeping.stop()


def test_c3_a_death_is_a_reason_for_one_pass(store: FileClaimStore) -> None:
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=Clock())
    nonce = die(store, "r1", "r2")

    swept = sweeping.look()

    assert swept is not None
    assert sorted(claim.rollout_id for claim in swept.freed) == ["r1", "r2"]
    assert swept.owners == (nonce,)
    assert sweeping.look() is None
    sweeping.stop()


def test_c3_what_a_pass_had_to_leave_is_no_reason_for_the_next(store: FileClaimStore) -> None:
    clock = Clock()
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=clock)
    first = die(store, "r1")
    unreadable = Path(store.path_of("r1"))
    raw = unreadable.read_bytes()
    unreadable.write_bytes(b"")

    swept = sweeping.look()
    assert swept is not None
    assert (swept.owners, len(swept.unreadable)) == ((), 1)
    assert sweeping.look() is None
    second = die(store)  # another death is one
    assert sweeping.look() is not None
    unreadable.write_bytes(raw)
    clock.now = PASS_EVERY_S
    swept = sweeping.look()

    assert swept is not None
    assert sorted(swept.owners) == sorted([first, second])
    sweeping.stop()


def test_c3_a_pass_ends_when_its_worker_leaves(store: FileClaimStore) -> None:
    """And the next look, of whichever worker, does what is left."""
    nonce = die(store, *(f"r{number}" for number in range(20)))
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=Clock())
    sweeping.stop()

    swept = sweeping.look()

    assert swept is not None
    assert (swept.whole, swept.freed, swept.owners) == (False, (), ())
    again = Sweeping(store, tombstone_age_max=DAY, clock=Clock())
    swept = again.look()
    assert swept is not None
    assert (len(swept.freed), swept.owners) == (20, (nonce,))
    again.stop()


def test_c7_beside_a_sweep_that_lasts_too_long_another_begins_and_says_so(
    store: FileClaimStore, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=clock)
    nonce = die(store, "r1")

    with StripeLocks(store.state_dir / "locks").hold("sweep", create=True):
        for clock.now in (0.0, HELD_UP_S - 1):
            assert sweeping.look() is None
        clock.now = HELD_UP_S
        swept = sweeping.look()
    sweeping.stop()

    assert swept is not None
    assert swept.owners == (nonce,)
    (message,) = caplog.messages
    assert str(os.getpid()) in message


def test_c7_a_pass_follows_soon_on_one_that_could_not_clear_everything(
    store: FileClaimStore,
) -> None:
    clock = Clock()
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=clock)
    nonce = die(store, "r1")
    with store.holding_stripe(stripe_of("r1")):
        swept = sweeping.look()
    assert swept is not None
    assert (len(swept.failed), swept.owners) == (1, ())

    clock.now = AGAIN_AFTER_S - 1
    assert sweeping.look() is None
    clock.now = AGAIN_AFTER_S
    swept = sweeping.look()
    sweeping.stop()

    assert swept is not None
    assert swept.owners == (nonce,)


def test_c7_a_held_stripe_holds_up_no_leaver(store: FileClaimStore) -> None:
    """Each stripe is waited for once, and not for the five seconds of an acquisition."""
    die(store, *(f"r{number}" for number in range(40)))
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=Clock())

    with store.holding_stripe(stripe_of("r0")):
        swept = sweeping.look()
    sweeping.stop()

    assert swept is not None
    assert [bad.code for bad in swept.failed] == ["ETIMEDOUT"]
    assert 0 < LOCK_TIMEOUT_S < 1
    assert sweeping._store._locks._timeout_s == LOCK_TIMEOUT_S


def test_c3_a_pass_pauses_after_each_slice() -> None:
    clock, waits = Clock(), []

    class Stopped:
        def is_set(self) -> bool:
            return False

        def wait(self, timeout_s: float) -> bool:
            waits.append(timeout_s)
            clock.now += timeout_s
            return False

    pace = Pace(Stopped(), clock)  # type: ignore[arg-type] # an event that never waits
    for _ in range(100):
        assert pace()
        clock.now += SLICE_S / 10

    assert 8 <= len(waits) <= 11
    assert sum(waits) > (clock.now - sum(waits))


def test_c7_a_store_that_cannot_be_swept_is_said_and_tried_again(
    store: FileClaimStore, caplog: pytest.LogCaptureFixture
) -> None:
    sweeping = Sweeping(store, tombstone_age_max=DAY, clock=Clock())
    nonce = die(store, "r1")
    away = store.state_dir.with_name("away")
    store.state_dir.rename(away)

    before = counted("rollout_router_swept_total", what="rollouts")

    with caplog.at_level(logging.INFO):
        assert sweeping.look_and_log() is None
        away.rename(store.state_dir)
        swept = sweeping.look_and_log()
    sweeping.stop()

    assert "the sweep is tried again" in caplog.messages[0]
    assert swept is not None
    assert counts_of(swept) == {"rollouts": 1, "owner files": 1}
    assert counted("rollout_router_swept_total", what="rollouts") == before + 1
    assert store.owner(nonce) is None
