# SPDX-License-Identifier: Apache-2.0
"""The gate file (R6)."""

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import (
    WHY_LENGTH_MAX,
    AdmissionHeld,
    FileClaimStore,
    Gate,
    Moment,
    StoreUnavailable,
    hold_gate,
    read_gate,
    release_gate,
    renew_gate,
    write_gate,
)
from rollout_router.claims.disk import read_capped
from rollout_router.claims.envelope import open_envelope, seal_envelope

NOW = Moment(boot_id="this boot", seconds=1000.0)
NEXT_BOOT = Moment(boot_id="the next boot", seconds=10.0)


def held(by: str = "ada", *, until: Moment | None = None) -> Gate:
    return Gate(open=False, by=by, why="a checkpoint", until=until or NOW.later(60))


def test_r6_a_missing_gate_is_open(state_dir: Path) -> None:
    assert read_gate(state_dir) == Gate(open=True)


@pytest.mark.parametrize("is_open", [True, False])
def test_r6_a_gate_says_what_was_written(store: FileClaimStore, *, is_open: bool) -> None:
    gate = Gate(open=is_open, by="ada", why="an upgrade")
    write_gate(store.state_dir, Gate(open=not is_open))
    write_gate(store.state_dir, gate)

    assert read_gate(store.state_dir) == gate


@pytest.mark.parametrize("letter", ["a", "é", "\N{GRINNING FACE}"])
def test_r6_a_reason_may_be_as_long_as_its_bound_in_any_letters(
    store: FileClaimStore, letter: str
) -> None:
    gate = Gate(open=False, by="operator", why=letter * WHY_LENGTH_MAX)
    write_gate(store.state_dir, gate)

    assert read_gate(store.state_dir) == gate
    with pytest.raises(ValueError, match=f"at most {WHY_LENGTH_MAX} characters"):
        write_gate(store.state_dir, Gate(open=False, by="operator", why=gate.why + letter))
    assert read_gate(store.state_dir) == gate


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"v":1,"open":true,"by":"","why":""}', id="by hand"),
        pytest.param(b"x" * 5000, id="large"),
    ],
)
def test_r6_an_unreadable_gate_is_closed_and_says_so(store: FileClaimStore, raw: bytes) -> None:
    (store.state_dir / "gate").write_bytes(raw)

    gate = read_gate(store.state_dir)

    assert not gate.open
    assert "unreadable" in gate.why


def test_r6_a_gate_that_is_no_file_is_closed(store: FileClaimStore) -> None:
    (store.state_dir / "gate").mkdir()

    assert not read_gate(store.state_dir).open


def test_c7_a_gate_that_cannot_be_written_stays_as_it_was(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Gate(open=False, by="ada", why="an upgrade")
    write_gate(store.state_dir, closed)
    before = sorted(store.state_dir.iterdir())

    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="EDQUOT"):
        write_gate(store.state_dir, Gate(open=True))

    assert read_gate(store.state_dir) == closed
    assert sorted(store.state_dir.iterdir()) == before


@pytest.mark.parametrize(
    ("until", "now", "left_s"),
    [
        pytest.param(None, NOW, None, id="an operator's"),
        pytest.param(None, NEXT_BOOT, None, id="an operator's, after a reboot"),
        pytest.param(NOW.later(60), NOW, 60, id="within its budget"),
        pytest.param(NOW, NOW, 0, id="its budget is over"),
        pytest.param(NOW, NOW.later(1), 0, id="its budget is long over"),
        pytest.param(NOW.later(60), NEXT_BOOT, 0, id="another boot"),
    ],
)
def test_r6_a_gate_is_closed_within_its_budget_and_boot(
    until: Moment | None, now: Moment, left_s: float | None
) -> None:
    gate = Gate(open=False, by="ada", why="a checkpoint", until=until)

    assert gate.seconds_left(now) == left_s
    assert gate.at(now) == (Gate(open=True, by="ada") if left_s == 0 else gate)


@pytest.mark.parametrize("hour_s", [-3600.0, 3600.0])
def test_r6_a_budget_ends_by_the_clock_of_the_boot_and_not_by_the_wall_clock(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch, hour_s: float
) -> None:
    clocks = {time.CLOCK_REALTIME: time.time(), time.CLOCK_BOOTTIME: 1000.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "time", lambda: clocks[time.CLOCK_REALTIME])
    hold_gate(store.state_dir, by="ada", why="a checkpoint", budget_s=60)

    clocks[time.CLOCK_REALTIME] += hour_s
    set_anew = read_gate(store.state_dir)
    clocks[time.CLOCK_BOOTTIME] += 60
    over = read_gate(store.state_dir)

    assert (set_anew.open, over.open) == (False, True)


def test_r6_a_held_gate_is_the_record_of_a_closed_one_with_a_field_more(
    store: FileClaimStore,
) -> None:
    def fields(gate: Gate) -> dict[str, Any]:
        write_gate(store.state_dir, gate)
        read = open_envelope(read_capped(str(store.state_dir / "gate")))
        return {name: value for name, value in read.items() if name != "sha256"}

    known, more = fields(Gate(open=False, by="ada", why="a checkpoint")), fields(held())

    assert "until" not in known
    assert {**known, "until": {"boot_id": "this boot", "seconds": 1060.0}} == more
    assert read_gate(store.state_dir, now=lambda: NOW) == held()


@pytest.mark.parametrize(
    "until",
    [
        "tomorrow",
        1060.0,
        {},
        {"boot_id": "this boot"},
        {"boot_id": "", "seconds": 1060.0},
        {"boot_id": "this boot", "seconds": "1060"},
        {"boot_id": "this boot", "seconds": float("nan")},
        {"boot_id": "this boot", "seconds": float("inf")},
    ],
)
def test_r6_a_budget_that_cannot_be_understood_is_a_closed_gate(
    store: FileClaimStore, until: object
) -> None:
    fields = {"open": False, "by": "ada", "why": "a checkpoint", "until": until}
    (store.state_dir / "gate").write_bytes(seal_envelope(fields))

    assert "unreadable (field)" in read_gate(store.state_dir, now=lambda: NOW).why


def test_r6_a_budget_stands_while_nobody_can_tell_the_time(store: FileClaimStore) -> None:
    def fail() -> Moment:
        raise FileNotFoundError(errno.ENOENT, "no /proc")

    write_gate(store.state_dir, held())

    assert read_gate(store.state_dir, now=fail) == held()


OPERATORS = Gate(open=False, by="ada", why="upkeep")  # of that very name, but without a budget


@pytest.mark.parametrize(
    ("found", "in_the_way"),
    [
        (None, None),
        (Gate(open=True, by="bob"), None),
        (held("ada"), None),
        (held("bob", until=NOW), None),
        (held("bob"), "bob"),
        (Gate(open=False, by="operator", why="upkeep"), "operator"),
        (OPERATORS, "ada"),
        (b"damaged", "rollout_router"),
    ],
)
def test_r6_a_gate_is_held_where_it_is_open_or_held_by_the_same(
    store: FileClaimStore, found: Gate | bytes | None, in_the_way: str | None
) -> None:
    state_dir, path = store.state_dir, store.state_dir / "gate"
    if isinstance(found, Gate):
        write_gate(state_dir, found)
    elif found is not None:
        path.write_bytes(found)
    before = path.read_bytes() if path.exists() else None

    def hold() -> None:
        hold_gate(state_dir, by="ada", why="a checkpoint", budget_s=90, now=lambda: NOW)

    if in_the_way is not None:
        with pytest.raises(AdmissionHeld, match=f"closed by {in_the_way}") as refused:
            hold()
        assert refused.value.by == in_the_way
        assert path.read_bytes() == before
        return
    hold()
    hold()
    assert read_gate(state_dir, now=lambda: NOW) == held(until=NOW.later(90))


@pytest.mark.parametrize(
    ("found", "opened"),
    [
        (Gate(open=True, by="bob"), False),
        (held("ada"), True),
        (held("ada", until=NOW), False),
        (held("bob"), False),
        (OPERATORS, False),
    ],
)
def test_r6_only_what_is_held_by_the_same_is_released(
    store: FileClaimStore, found: Gate, *, opened: bool
) -> None:
    write_gate(store.state_dir, found)

    released = [release_gate(store.state_dir, by="ada", now=lambda: NOW) for _ in range(2)]

    assert released == [opened, False]
    left = read_gate(store.state_dir, now=lambda: NOW)
    assert left == (Gate(open=True, by="ada") if opened else found.at(NOW))


@pytest.mark.parametrize(
    "found",
    [Gate(open=True, by="bob"), held("ada"), held("ada", until=NOW), held("bob"), OPERATORS],
)
def test_r6_only_what_is_held_by_the_same_is_renewed(store: FileClaimStore, found: Gate) -> None:
    write_gate(store.state_dir, found)

    renewed = renew_gate(store.state_dir, by="ada", budget_s=90, now=lambda: NOW)

    assert renewed == (found == held("ada"))
    left = read_gate(store.state_dir, now=lambda: NOW)
    assert left == (held("ada", until=NOW.later(90)) if renewed else found.at(NOW))


def test_r6_nothing_of_a_held_gate_is_released_where_there_is_none(state_dir: Path) -> None:
    (state_dir / "locks").mkdir(parents=True)

    assert not release_gate(state_dir, by="ada")
    assert not (state_dir / "gate").exists()


def test_r6_between_the_look_at_a_gate_and_its_change_nobody_else_changes_it(
    store: FileClaimStore,
) -> None:
    def hold(by: str, now: Callable[[], Moment]) -> None:
        hold_gate(store.state_dir, by=by, why="a checkpoint", budget_s=60, now=now)

    with ThreadPoolExecutor(1) as threads:
        late: list[Future[None]] = []

        def looking() -> Moment:
            late.append(threads.submit(hold, "bob", lambda: NOW))
            assert not wait(late, timeout=0.05).done, "it must wait for this change"
            return NOW

        hold("ada", looking)
        with pytest.raises(AdmissionHeld, match="closed by ada"):
            late[0].result()

    assert read_gate(store.state_dir, now=lambda: NOW) == held("ada")


def test_r6_an_operator_overrides_who_holds_the_gate(store: FileClaimStore) -> None:
    write_gate(store.state_dir, held())
    write_gate(store.state_dir, OPERATORS)

    assert read_gate(store.state_dir, now=lambda: NOW.later(3600)) == OPERATORS


def test_r6_a_moment_of_this_boot_passes() -> None:
    before = Moment.now()

    assert before.seconds_to(Moment.now().later(1)) >= 1
    with pytest.raises(ValueError, match="no moment"):
        before.later(float("inf"))
