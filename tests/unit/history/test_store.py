# SPDX-License-Identifier: Apache-2.0
"""The history store against H2-H5 and the in-memory half of C6."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.history import Bounds, History, Key

A = Key("a", 1)
B = Key("b", 2)
C = Key("c", 3)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def history(clock: Clock, **bounds: float) -> History:
    return History(Bounds(**bounds), clock=clock)  # type: ignore[arg-type]  # ints in the main


def keep_once(store: History, key: Key, digest: str, body: bytes) -> bool:
    call = store.begin(key)
    kept = call.keep(digest, body)
    call.end()
    return kept


def test_h2_a_base_is_read_again_under_its_name(clock: Clock) -> None:
    store = history(clock)
    store.open(A)
    assert keep_once(store, A, "d1", b"one")
    for _ in range(2):
        call = store.begin(A)
        assert call.base("d1") == b"one"
        call.end()


def test_h4_a_failed_call_leaves_the_base_that_its_retry_needs(clock: Clock) -> None:
    store = history(clock)
    store.open(A)
    keep_once(store, A, "d1", b"one")
    failed = store.begin(A)
    failed.keep("d2", b"two")
    failed.end()
    retry = store.begin(A)
    assert retry.base("d1") == b"one"
    assert retry.base("d2") == b"two"


def test_h3_bytes_stay_within_the_bound_and_the_least_recent_idle_entry_goes(clock: Clock) -> None:
    store = history(clock, bytes_max=10)
    for key in (A, B):
        store.open(key)
    keep_once(store, A, "d1", b"x" * 5)
    keep_once(store, B, "d2", b"x" * 5)
    store.open(C)
    assert keep_once(store, C, "d3", b"x" * 5)
    assert store.evict_overdue() == [A]
    assert store.statistics().bytes == 10


def test_h3_a_base_in_use_is_never_evicted(clock: Clock) -> None:
    store = history(clock, bytes_max=10, bases_per_rollout_max=1)
    store.open(A)
    keep_once(store, A, "d1", b"x" * 8)
    using = store.begin(A)
    assert using.base("d1") is not None
    other = store.begin(A)
    assert not other.keep("d2", b"x" * 8)
    assert other.base("d1") is not None
    other.end()
    using.end()
    assert keep_once(store, A, "d2", b"x" * 8)
    assert store.begin(A).base("d1") is None


def test_h3_an_entry_with_a_call_in_flight_outlives_every_bound(clock: Clock) -> None:
    store = history(clock, rollouts_max=1, idle_s_max=10.0)
    store.open(A)
    busy = store.begin(A)
    store.open(B)
    clock.now_s += 1000
    assert store.evict_overdue() == [B]
    busy.end()
    assert store.evict_overdue() == []
    clock.now_s += 11
    assert store.evict_overdue() == [A]
    assert store.statistics().rollouts == 0


def test_h3_a_body_over_the_bound_is_not_kept_and_costs_nobody_anything(clock: Clock) -> None:
    store = history(clock, bytes_max=10)
    store.open(A)
    keep_once(store, A, "d1", b"x" * 5)
    store.open(B)
    assert not keep_once(store, B, "d2", b"x" * 11)
    assert store.evict_overdue() == []
    assert store.begin(A).base("d1") is not None


def test_h3_surplus_bases_of_busy_rollouts_go_before_a_body_is_refused(clock: Clock) -> None:
    store = history(clock, bytes_max=10)
    store.open(A)
    keep_once(store, A, "old", b"x" * 5)
    keep_once(store, A, "new", b"x" * 5)
    busy = store.begin(A)
    store.open(B)
    assert keep_once(store, B, "d", b"x" * 5)
    assert busy.base("old") is None
    assert busy.base("new") is not None


def test_h5_a_grant_starts_empty_also_for_the_same_rollout(clock: Clock) -> None:
    store = history(clock)
    store.open(Key("a", 1))
    keep_once(store, Key("a", 1), "d1", b"one")
    store.drop(Key("a", 1))
    store.open(Key("a", 2))
    assert store.begin(Key("a", 2)).base("d1") is None


def test_h5_the_end_of_a_call_touches_only_its_own_epoch(clock: Clock) -> None:
    store = history(clock)
    store.open(Key("a", 1))
    old = store.begin(Key("a", 1))
    store.drop(Key("a", 1))
    store.open(Key("a", 2))
    new = store.begin(Key("a", 2))
    old.end()
    old.end()
    assert not store.is_idle(Key("a", 2))
    assert not old.keep("late", b"late")
    assert store.statistics().bytes == 0
    new.end()
    assert store.is_idle(Key("a", 2))


def test_h5_no_rollout_reads_the_bases_of_another(clock: Clock) -> None:
    store = history(clock)
    store.open(A)
    store.open(B)
    keep_once(store, A, "d1", b"one")
    assert store.begin(B).base("d1") is None


def test_h5_opening_an_entry_twice_is_refused(clock: Clock) -> None:
    store = history(clock)
    store.open(A)
    with pytest.raises(ValueError, match="already an entry"):
        store.open(A)


@pytest.mark.parametrize(
    "bounds", [{"rollouts_max": -1}, {"bytes_max": -1}, {"idle_s_max": 0}], ids=str
)
def test_bounds_that_make_no_sense_are_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        Bounds(**bounds)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["d1", "d2", "d3"]), st.integers(0, 12)),
        max_size=60,
    )
)
def test_h3_the_bound_on_bytes_holds_after_any_calls(steps: list[tuple[str, str, int]]) -> None:
    store = History(Bounds(bytes_max=20, rollouts_max=2), clock=Clock())
    epoch = 0
    held: dict[str, Key] = {}
    for rollout_id, digest, size in steps:
        if rollout_id not in held:
            epoch += 1
            held[rollout_id] = Key(rollout_id, epoch)
            store.open(held[rollout_id])
        call = store.begin(held[rollout_id])
        call.keep(digest, b"x" * size)
        call.end()
        for key in store.evict_overdue():
            del held[key.rollout_id]
        snapshot = store.statistics()
        assert snapshot.bytes <= 20
        assert snapshot.rollouts == len(held) <= 2


def test_h3_a_body_that_cannot_fit_costs_nobody_anything(clock: Clock) -> None:
    store = history(clock, bytes_max=50)
    store.open(A)
    keep_once(store, A, "a0", b"x" * 5)
    busy = store.begin(A)
    busy.keep("a1", b"x" * 30)
    store.open(B)
    keep_once(store, B, "b0", b"x" * 10)
    other = store.begin(A)
    assert not other.keep("a2", b"x" * 40)
    assert store.evict_overdue() == []
    assert other.base("a0") is not None
    assert store.begin(B).base("b0") is not None
