# SPDX-License-Identifier: Apache-2.0
"""The accounting of the proof: it holds for what may happen, and names everything else."""

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_router.demo.attempt import Attempt, Holder, Outcome, outcome_of
from rollout_router.demo.processes import Tally
from rollout_router.demo.proof import compare

ANSWERED, LOST, REFUSED = Outcome.ANSWERED, Outcome.LOST, Outcome.REFUSED
OLD, NEW = Holder(worker_id="old", claim_epoch=1), Holder(worker_id="new", claim_epoch=2)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _attempt(
    turn: int, body: bytes, outcome: Outcome, *, holder: Holder | None = NEW, answer: bytes = b"ok"
) -> Attempt:
    sent = Attempt(turn=turn, body_sha256=_sha(body), body_bytes=len(body), outcome=outcome)
    if outcome is not ANSWERED:
        return sent
    return replace(
        sent,
        model_sha256=sent.body_sha256,
        holder=holder,
        status=200,
        answer_sha256=_sha(answer),
        answer_bytes=len(answer),
    )


def _record(
    body: bytes, outcome: str = "completed", *, holder: Holder = NEW, **changed: Any
) -> dict[str, Any]:
    return {
        "request_text": body.decode(),
        "request_sha256": _sha(body),
        "outcome": outcome,
        "worker_id": holder.worker_id,
        "claim_epoch": holder.claim_epoch,
        "status": 200,
        "response": "ok",
        **changed,
    }


def _compare(
    folder: Path, attempts: list[Attempt], records: list[dict[str, Any]], **changed: int
) -> list[str]:
    (folder / "r1.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    written = sum(attempt.body_bytes for attempt in attempts)
    counts = {"calls": len(attempts), "bytes_sent": 1, "bytes_full": written, "resyncs": 0}
    found = compare("r1", attempts, Tally(**{**counts, **changed}), capture_dir=folder)
    assert all(difference.startswith("rollout r1: ") for difference in found)
    return found


@pytest.mark.parametrize(
    ("outcomes", "records"),
    [
        ([ANSWERED], ["completed"]),
        ([ANSWERED, ANSWERED], ["completed", "completed"]),
        ([LOST, ANSWERED], ["completed"]),
        ([LOST, ANSWERED], ["cancelled", "completed"]),
        ([LOST, ANSWERED], ["completed", "completed"]),
        ([LOST, LOST, ANSWERED], ["failed", "completed"]),
        ([REFUSED, ANSWERED], ["completed"]),
        ([LOST], []),
    ],
)
def test_f2_the_proof_holds_for_all_that_may_happen(
    tmp_path: Path, outcomes: list[Outcome], records: list[str]
) -> None:
    attempts = [_attempt(0, b"body", outcome) for outcome in outcomes]
    assert _compare(tmp_path, attempts, [_record(b"body", outcome) for outcome in records]) == []


def test_f1_the_record_of_a_lost_call_may_be_its_dead_owners(tmp_path: Path) -> None:
    attempts = [_attempt(0, b"body", LOST), _attempt(0, b"body", ANSWERED)]
    assert _compare(tmp_path, attempts, [_record(b"body", holder=OLD), _record(b"body")]) == []


MISSING, SPARE = "no completed record of it says so", "has records that match no answer"


@pytest.mark.parametrize(
    ("outcomes", "records", "said"),
    [
        ([ANSWERED], [], [MISSING]),
        ([ANSWERED], ["cancelled"], [MISSING, SPARE]),
        ([ANSWERED], ["completed", "completed"], [SPARE]),
        ([ANSWERED, ANSWERED], ["completed"], [MISSING]),
        ([LOST, ANSWERED], ["cancelled"], [MISSING]),
        ([LOST, ANSWERED], ["completed", "completed", "failed"], [SPARE]),
        ([REFUSED, ANSWERED], ["failed", "completed"], [SPARE]),
        ([REFUSED], ["completed"], [SPARE]),
        ([], ["completed"], [SPARE]),
    ],
)
def test_f2_a_record_too_few_or_too_many_is_a_difference(
    tmp_path: Path, outcomes: list[Outcome], records: list[str], said: list[str]
) -> None:
    attempts = [_attempt(0, b"body", outcome) for outcome in outcomes]
    found = _compare(tmp_path, attempts, [_record(b"body", outcome) for outcome in records])
    assert len(found) == len(said)
    for difference, words in zip(found, said, strict=True):
        assert words in difference
        assert "4 bytes" in difference


@pytest.mark.parametrize(
    "changed",
    [
        {"worker_id": "old"},
        {"claim_epoch": 1},
        {"status": 500},
        {"status": None},
        {"response": "garbage"},
        {"worker_id": "old", "claim_epoch": 1, "status": 500, "response": "garbage"},
    ],
)
def test_f2_a_record_that_tells_of_another_answer_is_a_difference(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    found = _compare(tmp_path, [_attempt(0, b"body", ANSWERED)], [_record(b"body", **changed)])
    assert len(found) == 2
    assert "was answered by worker new under claim epoch 2 with status 200 and 2 bytes" in found[0]
    assert MISSING in found[0]
    assert SPARE in found[1]
    assert "record 1 (completed, by worker " in found[1]


def test_f2_a_lost_calls_record_does_not_stand_in_for_an_answered_one(tmp_path: Path) -> None:
    attempts = [_attempt(0, b"body", LOST), _attempt(0, b"body", ANSWERED)]
    found = _compare(tmp_path, attempts, [_record(b"body", holder=OLD)])
    assert len(found) == 1
    assert "was answered by worker new under claim epoch 2" in found[0]
    assert MISSING in found[0]


def test_f1_a_record_of_a_replaced_owner_after_its_successors_is_found(tmp_path: Path) -> None:
    attempts = [_attempt(0, b"body", LOST), _attempt(0, b"body", ANSWERED)]
    found = _compare(tmp_path, attempts, [_record(b"body"), _record(b"body", holder=OLD)])
    assert len(found) == 1
    assert "record 2 has claim epoch 1 and follows one of 2" in found[0]


def test_c1_two_workers_under_one_claim_epoch_are_found(tmp_path: Path) -> None:
    other = Holder(worker_id="other", claim_epoch=NEW.claim_epoch)
    attempts = [_attempt(0, b"first", ANSWERED), _attempt(1, b"second", ANSWERED, holder=other)]
    found = _compare(tmp_path, attempts, [_record(b"first"), _record(b"second", holder=other)])
    assert len(found) == 1
    assert "records 1 and 2 have claim epoch 2 and two workers, new and other" in found[0]


def test_r5_an_answer_that_names_no_owner_matches_no_record(tmp_path: Path) -> None:
    found = _compare(tmp_path, [_attempt(0, b"body", ANSWERED, holder=None)], [_record(b"body")])
    assert len(found) == 2
    assert "was answered by nobody that it names" in found[0]


def test_h1_one_changed_byte_of_a_capture_is_found_though_its_digest_was_adjusted(
    tmp_path: Path,
) -> None:
    attempts = [_attempt(0, b"first", ANSWERED), _attempt(1, b"second", ANSWERED)]
    records = [_record(b"first"), _record(b"second")]
    assert _compare(tmp_path, attempts, records) == []
    path = tmp_path / "r1.jsonl"
    tampered = path.read_text().replace("second", "sEcond")
    path.write_text(tampered.replace(_sha(b"second"), _sha(b"sEcond")))
    tally = Tally(calls=2, bytes_sent=1, bytes_full=11, resyncs=0)
    found = compare("r1", attempts, tally, capture_dir=tmp_path)
    assert len(found) == 2
    assert "call 2" in found[0]
    assert MISSING in found[0]
    assert "a request that was never sent" in found[1]


def test_h1_a_changed_text_under_the_old_digest_is_found(tmp_path: Path) -> None:
    tampered = {**_record(b"body"), "request_text": "b0dy"}
    found = _compare(tmp_path, [_attempt(0, b"body", ANSWERED)], [tampered])
    assert any("record 1 names the digest" in difference for difference in found)
    assert any("call 1" in difference for difference in found)


@pytest.mark.parametrize("given", [None, "0" * 64])
def test_h1_an_answer_for_other_bytes_is_found(tmp_path: Path, given: str | None) -> None:
    wrong = replace(_attempt(0, b"body", ANSWERED), model_sha256=given)
    found = _compare(tmp_path, [wrong], [_record(b"body")])
    assert len(found) == 1
    assert "the model was given" in found[0]


@pytest.mark.parametrize("changed", [{"calls": 2}, {"bytes_full": 5}])
def test_a_shim_that_counts_otherwise_is_found(tmp_path: Path, changed: dict[str, int]) -> None:
    found = _compare(tmp_path, [_attempt(0, b"body", ANSWERED)], [_record(b"body")], **changed)
    assert len(found) == 1
    assert "the shim counted" in found[0]


def test_bodies_that_are_no_text_are_compared_too(tmp_path: Path) -> None:
    body, answer = b"\xff\xfe", b"\xfe"
    record = _record(b"", request_sha256=_sha(body))
    del record["request_text"], record["response"]
    record["request_base64"] = base64.b64encode(body).decode()
    record["response_base64"] = base64.b64encode(answer).decode()
    assert _compare(tmp_path, [_attempt(0, body, ANSWERED, answer=answer)], [record]) == []
    assert len(_compare(tmp_path, [_attempt(0, body, ANSWERED)], [record])) == 2


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"request_text": 1}',
        json.dumps(_record(b"body", claim_epoch=None)),
        json.dumps(_record(b"body", claim_epoch="2")),
        json.dumps(_record(b"body", worker_id=None)),
    ],
)
def test_a_line_that_is_no_record_is_a_difference(tmp_path: Path, line: str) -> None:
    (tmp_path / "r1.jsonl").write_text(json.dumps(_record(b"body")) + "\n" + line + "\n")
    tally = Tally(calls=0, bytes_sent=0, bytes_full=0, resyncs=0)
    found = compare("r1", [], tally, capture_dir=tmp_path)
    assert len(found) == 1
    assert "line 2 of r1.jsonl is no record" in found[0]


def test_a_rollout_without_captures_and_calls_has_no_difference(tmp_path: Path) -> None:
    tally = Tally(calls=0, bytes_sent=0, bytes_full=0, resyncs=0)
    assert compare("r1", [], tally, capture_dir=tmp_path) == []


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (502, "owner_lost_in_flight", LOST),
        (502, "record_refused", REFUSED),
        (502, "gateway_unreachable", REFUSED),
        (503, "owner_unreachable", REFUSED),
        (503, "claim_moved", REFUSED),
        (502, None, None),
        (500, None, None),
        (400, "delta_malformed", None),
        (409, "gym_history_resync", None),
        (410, "session_owner_lost", None),
        (None, None, None),
    ],
)
def test_r2_only_what_may_be_called_again_is(
    status: int | None, code: str | None, outcome: Outcome | None
) -> None:
    assert outcome_of(status, code) is outcome
