# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.recording import begun

from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.rows import DISCARDED, Recorded, Rollout, check_whole, receipt_of

Rows = list[Recorded]
EMPTY = replace(begun("r"), first=3, next=3)
ROW = Recorded(
    sequence=3,
    claim_epoch=1,
    kind="step",
    effect="keyed",
    environment_id="e",
    request_digest="q",
    result=canonical({"a": 1}),
    revision=1,
    orphans=0,
    chain=None,
)
NOTHING = replace(ROW, result=None, revision=None)


def recorded(number: int) -> tuple[Rollout, Rows]:
    """A rollout with *number* operations."""
    rollout, rows = replace(EMPTY, head=EMPTY.genesis), []
    for _ in range(number):
        row = replace(ROW, sequence=rollout.next, revision=rollout.next)
        rows.append(replace(row, chain=row.linked(rollout.head)))
        rollout = replace(rollout, next=rollout.next + 1, head=rows[-1].chain or "")
    return rollout, rows


def changed(at: int, **values: object) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        rows[at] = replace(rows[at], **values)  # type: ignore[arg-type]
        return rows

    return change


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("intent", [False, True])
def test_what_was_recorded_is_whole_with_an_intent_or_without(number: int, *, intent: bool) -> None:
    rollout, rows = recorded(number)
    check_whole(rollout, [*rows, replace(NOTHING, sequence=rollout.next)][: number + intent])


@pytest.mark.parametrize(
    ("code", "change"),
    [
        *(("gap", lambda rows, at=at: rows[:at] + rows[at + 1 :]) for at in range(4)),
        ("gap", lambda rows: rows[4:]),
        ("gap", lambda rows: [*rows, replace(ROW, sequence=7)]),
        ("gap", lambda rows: [*rows, replace(NOTHING, sequence=8)]),
        ("gap", lambda rows: [*rows, *(replace(NOTHING, sequence=one) for one in (7, 8))]),
        ("chain_broken", changed(1, result=None)),
        ("gap", changed(3, result=None)),
        ("gap", lambda rows: rows[::-1]),
        ("gap", lambda rows: [*rows[:2], rows[2], rows[2]]),
        ("chain_broken", changed(0, result=canonical({"a": 2}))),
        ("chain_broken", changed(3, result=canonical({"a": 2}))),
        ("chain_broken", changed(1, kind="close")),
        ("chain_broken", changed(1, effect="resample")),
        ("chain_broken", changed(1, environment_id="f")),
        ("chain_broken", changed(1, environment_id=None)),
        ("chain_broken", changed(1, request_digest="p")),
        ("chain_broken", changed(1, revision=9)),
        ("chain_broken", changed(1, chain=None)),
        ("chain_broken", changed(3, chain="0" * 64)),
        (
            "chain_broken",
            lambda rows: [rows[0], replace(rows[2], sequence=4), replace(rows[1], sequence=5), rows[3]],  # noqa: E501 - a table
        ),
    ],
)  # fmt: skip
def test_a_row_that_is_missing_changed_or_moved_shows(
    code: str, change: Callable[[Rows], Rows]
) -> None:
    rollout, rows = recorded(4)
    with pytest.raises(CheckpointRefusal, match="rollout r") as refused:
        check_whole(rollout, change(rows))
    assert (refused.value.code, refused.value.outcome) == (code, "quarantined")


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("chain_broken", {"task": '{"a":1}'}),
        ("chain_broken", {"loop_digest": "m"}),
        ("chain_broken", {"configuration_digest": "d"}),
        ("chain_broken", {"rollout_id": "s"}),
        ("chain_broken", {"restarts": 1}),
        ("chain_broken", {"head": "0" * 64}),
        ("gap", {"first": 2}),
        ("gap", {"next": 6}),
        ("gap", {"next": 8}),
    ],
)
def test_a_rollout_that_is_not_as_it_was_shows(code: str, values: dict[str, object]) -> None:
    rollout, rows = recorded(4)
    with pytest.raises(CheckpointRefusal) as refused:
        check_whole(replace(rollout, **values), rows)  # type: ignore[arg-type]
    assert refused.value.code == code


def test_f1_the_chain_says_nothing_of_epochs_attempts_and_orphans() -> None:
    rollout, rows = recorded(3)
    rows[1] = replace(rows[1], claim_epoch=9, orphans=2)
    check_whole(replace(rollout, claim_epoch=9, attempt=4), rows)


def test_a_receipt_names_the_rollout_its_history_and_the_bytes() -> None:
    rollout, _ = recorded(1)
    others = [
        receipt_of(rollout, "{}"),
        receipt_of(replace(rollout, rollout_id="s"), "{}"),
        receipt_of(recorded(2)[0], "{}"),
        receipt_of(rollout, "[]"),
    ]
    assert len(set(others)) == len(others)
    assert receipt_of(replace(rollout, claim_epoch=7, attempt=3), "{}") == others[0]


def test_an_intent_has_neither_value_nor_link() -> None:
    assert ROW.value == {"a": 1}
    for ask in (lambda: NOTHING.value, lambda: NOTHING.linked("")):
        with pytest.raises(ValueError, match="no result"):
            ask()


def test_a_rollout_is_discarded_until_something_is_recorded() -> None:
    rollout = replace(EMPTY, reason=DISCARDED)
    assert rollout.discarded
    assert not replace(rollout, next=4).discarded
    assert not EMPTY.discarded
