# SPDX-License-Identifier: Apache-2.0
"""What a performance comes to."""

import json
from dataclasses import replace

from rollout_router.demo.attempt import Holder
from rollout_router.demo.conversation import Dialect
from rollout_router.demo.play import Kill, Performance, Played
from rollout_router.demo.processes import Tally
from rollout_router.demo.report import document, problems, saved_percent, total

GOOD = Played(
    rollout_id="r1",
    dialect=Dialect.CHAT,
    calls=4,
    answered=4,
    again=1,
    tally=Tally(calls=5, bytes_sent=100, bytes_full=1000, resyncs=1),
    before=Holder(worker_id="a", claim_epoch=1),
    after=Holder(worker_id="b", claim_epoch=2),
    failures=[],
    differences=[],
)
BAD = replace(
    GOOD,
    rollout_id="r2",
    answered=3,
    before=None,
    after=None,
    tally=Tally(calls=3, bytes_sent=500, bytes_full=500, resyncs=0),
    failures=["rollout r2: 3 of its 4 calls were answered"],
    differences=["rollout r2: call 1 differs"],
)
KILL = Kill(worker_id="a", pid=7, rollouts=2, in_flight=1)


def _performance(*rollouts: Played) -> Performance:
    return Performance(rollouts=rollouts, kills=[KILL], wall_s=1.234)


def test_the_share_that_was_saved_is_of_all_bytes() -> None:
    assert total([GOOD, BAD]) == Tally(calls=8, bytes_sent=600, bytes_full=1500, resyncs=1)
    assert saved_percent(total([GOOD, BAD])) == 60
    assert saved_percent(Tally(calls=0, bytes_sent=0, bytes_full=0, resyncs=0)) == 0


def test_every_failure_and_every_difference_is_a_problem() -> None:
    assert problems(_performance(GOOD)) == []
    assert problems(_performance(GOOD, BAD)) == [*BAD.failures, *BAD.differences]


def test_the_document_holds_all_of_it() -> None:
    shown = document(_performance(GOOD, BAD), folder=None)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["schema"] == 1
    assert shown["totals"] == {
        "rollouts": 2,
        "finished": 1,
        "calls": 8,
        "again": 2,
        "bytes_sent": 600,
        "bytes_full": 1500,
        "saved_percent": 60.0,
        "resyncs": 1,
    }
    assert shown["rollouts"][0]["before"] == {"worker_id": "a", "claim_epoch": 1}
    assert shown["rollouts"][1]["after"] is None
    assert shown["kills"] == [{"worker_id": "a", "pid": 7, "rollouts": 2, "in_flight": 1}]
    assert shown["failures"] == BAD.failures
    assert shown["differences"] == BAD.differences
