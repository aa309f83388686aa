# SPDX-License-Identifier: Apache-2.0
"""The history store against H2-H5 and the in-memory half of C6."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.built import Step, built, steps

from rollout_router.history import Bounds, CallHandle, History, Key, Origin

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
    keep_once(store, A, "01d0", b"x" * 5)
    keep_once(store, A, "4e30", b"x" * 5)
    busy = store.begin(A)
    store.open(B)
    assert keep_once(store, B, "dd", b"x" * 5)
    assert busy.base("01d0") is None
    assert busy.base("4e30") is not None


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
    assert not old.keep("1a7e", b"late")
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


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def test_h3_a_body_that_shares_evicts_no_one_for_what_it_does_not_hold(clock: Clock) -> None:
    store = history(clock, bytes_max=1000)
    body = bytes(range(256)) * 3
    store.open(A)
    keep_once(store, A, "aa", b"x" * 100)
    store.open(B)
    keep_once(store, B, "b0", body)
    call = store.begin(B)

    assert call.keep("b1", body + b"a turn", Origin("b0", [(0, 768), (None, 6)]))

    assert store.evict_overdue() == []
    assert store.statistics().bytes == 100 + 774 + 24
    assert call.base("b0") == body


def test_h5_what_was_dropped_is_not_kept_alive_by_a_call(clock: Clock) -> None:
    store = history(clock)
    store.open(A)
    call = store.begin(A)
    call.keep("d1", b"one")
    store.drop(A)

    assert [base.held for base in call._pinned] == [b""]
    assert call.newest() is None
    assert call.base("d1") is None
    call.end()


class Sharing(RuleBasedStateMachine):
    """Any interleaving of calls gives back exactly what was kept, and counts what is held."""

    bounds = Bounds(bytes_max=2000, rollouts_max=2, idle_s_max=50, bases_per_rollout_max=4)

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = History(self.bounds, clock=self.clock)
        self.kept: dict[Key, dict[str, bytes]] = {}  # all that was ever kept under a key
        self.calls: list[CallHandle] = []
        self.epoch = 0

    @rule(rollout_id=st.sampled_from("abc"))
    def begin(self, rollout_id: str) -> None:
        key = next((key for key in self.kept if key.rollout_id == rollout_id), None)
        if key is None:
            self.epoch += 1
            key = Key(rollout_id, self.epoch)
            self.store.open(key)
            self.kept[key] = {}
        self.calls.append(self.store.begin(key))

    def keep(self, call: CallHandle, body: bytes, origin: Origin | None) -> None:
        before = self.store.statistics()
        kept = call.keep(sha(body), body, origin)
        if kept:
            self.kept[call.key][sha(body)] = body
            assert call.base(sha(body)) == body
        else:
            assert self.store.statistics() == before  # no loss was vain
        for key in self.store.evict_overdue():
            assert all(call.key != key for call in self.calls)
            del self.kept[key]

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), size=st.integers(0, 2100))
    def keep_in_full(self, data: st.DataObject, size: int) -> None:
        body = b"".join(b"%d," % n for n in range(size))[:size]
        self.keep(data.draw(st.sampled_from(self.calls)), body, None)

    @precondition(lambda self: any(call.newest() for call in self.calls))
    @rule(data=st.data(), taken=steps(), pin=st.booleans())
    def keep_from_a_base(self, data: st.DataObject, taken: list[Step], pin: bool) -> None:  # noqa: FBT001 - a draw
        call = data.draw(st.sampled_from([call for call in self.calls if call.newest()]))
        held = {base.name.hex(): base for base in call._entry.bases._bases}
        digest = data.draw(st.sampled_from(sorted(held)))
        body, operations = built(held[digest].read(), taken)
        if pin:
            assert call.base(digest) == held[digest].read()
        self.keep(call, body, Origin(digest, operations))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.calls))
        self.calls.remove(call)
        call.end()

    @rule(data=st.data())
    @precondition(lambda self: self.kept)
    def drop(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.kept)))
        self.store.drop(key)
        del self.kept[key]
        for call in self.calls:
            if call.key == key:
                assert not call.keep(sha(b"late"), b"late")
                call.end()
        self.calls = [call for call in self.calls if call.key != key]

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.clock.now_s += seconds
        for key in self.store.evict_overdue():
            assert all(call.key != key for call in self.calls)
            del self.kept[key]

    @invariant()
    def what_is_held_is_what_was_kept(self) -> None:
        assert set(self.store._entries) == set(self.kept)
        for key, entry in self.store._entries.items():
            for base in entry.bases._bases:
                assert base.read() == self.kept[key][base.name.hex()]
            assert len(entry.bases) <= self.bounds.bases_per_rollout_max

    @invariant()
    def a_base_in_use_is_held(self) -> None:
        for call in self.calls:
            assert {*call._pinned} <= {*call._entry.bases._bases}
            assert all(base.pins for base in call._pinned)

    @invariant()
    def bytes_are_those_of_all_that_is_held(self) -> None:
        held: dict[int, bytes] = {}
        for entry in self.store._entries.values():
            for base in entry.bases._bases:
                for one in (base, base.told_by or base):
                    held[id(one)] = one.held
        assert self.store.statistics().bytes == sum(map(len, held.values()))
        assert self.store.statistics().bytes <= self.bounds.bytes_max


@pytest.mark.parametrize(
    "examples", [40, pytest.param(2000, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_h2_h3_h5_any_interleaving_gives_back_what_was_kept_and_counts_it(examples: int) -> None:
    run_state_machine_as_test(
        Sharing, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
