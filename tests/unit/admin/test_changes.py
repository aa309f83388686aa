# SPDX-License-Identifier: Apache-2.0
"""What a worker of any version says is read or refused, never believed to be something else."""

from typing import Any

import pytest
from support.told import answer_of, event, row

from rollout_router.admin.changes import TEXT_LENGTH_MAX, read_changes

WORKER = "a" * 20


def read(**fields: Any) -> Any:
    return read_changes(WORKER, answer_of(WORKER, **fields))


def test_a_whole_answer_is_read() -> None:
    found = read(
        cursor=7,
        reset=True,
        more=True,
        rollouts=[row("r", 5)],
        gone=[{"rollout_id": "s", "claim_epoch": 4}],
        events=[event("resync", "r", at="2026-01-01T00:00:01Z", reason="evicted")],
    )

    assert (found.cursor, found.reset, found.more, found.gone) == (7, True, True, [("s", 4)])
    assert found.rollouts[0] == {
        **row("r", 5),
        "worker_id": WORKER,
        "state": "owned",
        "verdict": "alive",
    }
    assert (found.events[0]["worker_id"], found.events[0]["reason"]) == (WORKER, "evicted")
    assert (found.status["claims"], found.status["lag_ms"], found.status["bases"]) == (1, 0.5, None)


@pytest.mark.parametrize(
    "wrong",
    [{"id": "another"}, {"cursor": None}, {"cursor": -1}, {"cursor": "7"}, {"cursor": True}],
    ids=str,
)
def test_an_answer_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=WORKER):
        read_changes(WORKER, {**answer_of(WORKER), **wrong})


@pytest.mark.parametrize(
    "told",
    [
        *(None, 3, [], {}, {"rollout_id": "r"}, {"rollout_id": 3, "claim_epoch": 5}),
        *({"rollout_id": "r", "claim_epoch": "5"}, {"rollout_id": "x" * 401, "claim_epoch": 5}),
    ],
    ids=lambda told: str(told)[:40],
)
def test_what_has_no_name_or_epoch_is_left_out(told: object) -> None:
    found = read(rollouts=[told, row("r", 5)], gone=[told], events=[told] if told is None else [])
    assert [one["rollout_id"] for one in found.rollouts] == ["r"]
    assert (found.gone, found.events) == ([], [])


def test_fields_of_another_type_are_null_and_unknown_ones_are_passed_over() -> None:
    strange = row("r", 5, turns="3", body_bytes=-1, in_flight=True, last_at=7, colour="red")
    (found,) = read(rollouts=[strange], status="fine").rollouts

    assert [found[name] for name in ("turns", "body_bytes", "in_flight", "last_at")] == [None] * 4
    assert "colour" not in found


def test_a_long_text_is_cut() -> None:
    (found,) = read(rollouts=[row("r", 5, last_outcome="x" * 1000)]).rollouts
    assert found["last_outcome"] == "x" * TEXT_LENGTH_MAX
