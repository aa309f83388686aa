# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest
from support.recording import begun

from rollout_router.checkpoint.errors import CODES, CheckpointRefusal
from rollout_router.checkpoint.refusing import check_epoch, check_same, not_open
from rollout_router.checkpoint.rows import Status

ROLLOUT = replace(begun("r"), claim_epoch=5, task="t")


@pytest.mark.parametrize(("epoch", "stale"), [(1, True), (4, True), (5, False), (6, False)])
def test_f1_an_epoch_below_the_highest_is_stale(epoch: int, *, stale: bool) -> None:
    if not stale:
        return check_epoch(ROLLOUT, epoch)
    with pytest.raises(CheckpointRefusal, match=f"rollout r: claim epoch {epoch}") as refusal:
        check_epoch(ROLLOUT, epoch)
    assert (refusal.value.code, refusal.value.claim_epoch) == ("stale_attempt", 5)
    return None


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("u", "l", "c"), "task_changed"),
        (("t", "m", "c"), "loop_changed"),
        (("t", "l", "d"), "configuration_changed"),
        (("u", "m", "d"), "task_changed"),
    ],
)
def test_what_contradicts_the_record_is_refused(asked: Any, code: str) -> None:
    check_same(ROLLOUT, "t", "l", "c")
    with pytest.raises(CheckpointRefusal, match="sessions restart") as refusal:
        check_same(ROLLOUT, *asked)
    assert refusal.value.code == code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("quarantined", "rollout_quarantined"),
        ("completed", "rollout_completed"),
        ("acknowledged", "result_acknowledged"),
    ],
)
def test_what_is_not_open_says_why(status: Status, code: str) -> None:
    refusal = not_open(replace(ROLLOUT, status=status, reason="gap"))
    assert (refusal.code, refusal.outcome) == (code, "refused")
    assert ("gap" in refusal.message) == (status == "quarantined")


def test_every_code_has_an_outcome_and_none_of_them_is_a_success() -> None:
    for code, row in CODES.items():
        refusal = CheckpointRefusal(code, "no")
        assert refusal.status == row.status >= 400
        assert refusal.outcome in ("refused", "restart", "quarantined")
        assert refusal.retry_after == (refusal.status == 503)
