# SPDX-License-Identifier: Apache-2.0
"""The accounting of the proof: it holds for what may happen, and names everything else."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from rollout_router.demo.attempt import Attempt, Outcome, outcome_of
from rollout_router.demo.processes import Tally
from rollout_router.demo.proof import compare

ANSWERED, LOST, REFUSED = Outcome.ANSWERED, Outcome.LOST, Outcome.REFUSED


def _attempt(turn: int, body: bytes, outcome: Outcome) -> Attempt:
    digest = hashlib.sha256(body).hexdigest()
    return Attempt(
        turn=turn,
        body_sha256=digest,
        body_bytes=len(body),
        outcome=outcome,
        model_sha256=digest if outcome is ANSWERED else None,
    )


def _record(body: bytes, outcome: str = "completed") -> dict[str, Any]:
    digest = hashlib.sha256(body).hexdigest()
    return {"request_text": body.decode(), "request_sha256": digest, "outcome": outcome}


def _compare(
    folder: Path, attempts: list[Attempt], records: list[dict[str, Any]], **changed: int
) -> list[str]:
    (folder / "r1.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    written = sum(attempt.body_bytes for attempt in attempts)
    counts = {"calls": len(attempts), "bytes_sent": 1, "bytes_full": written, "resyncs": 0}
    return compare("r1", attempts, Tally(**{**counts, **changed}), capture_dir=folder)


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


@pytest.mark.parametrize(
    ("outcomes", "records"),
    [
        ([ANSWERED], []),
        ([ANSWERED], ["cancelled"]),
        ([ANSWERED], ["completed", "completed"]),
        ([ANSWERED, ANSWERED], ["completed"]),
        ([LOST, ANSWERED], ["cancelled"]),
        ([LOST, ANSWERED], ["completed", "completed", "failed"]),
        ([REFUSED, ANSWERED], ["failed", "completed"]),
        ([REFUSED], ["completed"]),
        ([], ["completed"]),
    ],
)
def test_f2_a_record_too_few_or_too_many_is_a_difference(
    tmp_path: Path, outcomes: list[Outcome], records: list[str]
) -> None:
    attempts = [_attempt(0, b"body", outcome) for outcome in outcomes]
    found = _compare(tmp_path, attempts, [_record(b"body", outcome) for outcome in records])
    assert len(found) == 1
    assert found[0].startswith("rollout r1: ")
    assert "4 bytes" in found[0]


def test_h1_one_changed_byte_of_a_capture_is_found(tmp_path: Path) -> None:
    attempts = [_attempt(0, b"first", ANSWERED), _attempt(1, b"second", ANSWERED)]
    found = _compare(tmp_path, attempts, [_record(b"first"), _record(b"sEcond")])
    assert len(found) == 2
    assert "call 2" in found[0] + found[1]
    assert "a request that was never sent" in found[0] + found[1]


def test_h1_a_changed_text_under_the_old_digest_is_found(tmp_path: Path) -> None:
    tampered = {**_record(b"body"), "request_text": "b0dy"}
    found = _compare(tmp_path, [_attempt(0, b"body", ANSWERED)], [tampered])
    assert any("record 1 names the digest" in difference for difference in found)
    assert any("call 1" in difference for difference in found)


def test_h1_an_answer_for_other_bytes_is_found(tmp_path: Path) -> None:
    attempt = _attempt(0, b"body", ANSWERED)
    for given in (None, "0" * 64):
        wrong = Attempt(
            turn=0,
            body_sha256=attempt.body_sha256,
            body_bytes=4,
            outcome=ANSWERED,
            model_sha256=given,
        )
        found = _compare(tmp_path, [wrong], [_record(b"body")])
        assert len(found) == 1
        assert "the model was given" in found[0]


@pytest.mark.parametrize("changed", [{"calls": 2}, {"bytes_full": 5}])
def test_a_shim_that_counts_otherwise_is_found(tmp_path: Path, changed: dict[str, int]) -> None:
    found = _compare(tmp_path, [_attempt(0, b"body", ANSWERED)], [_record(b"body")], **changed)
    assert len(found) == 1
    assert "the shim counted" in found[0]


def test_a_body_that_is_no_text_is_compared_too(tmp_path: Path) -> None:
    body = b"\xff\xfe"
    record = {
        "request_base64": base64.b64encode(body).decode(),
        "request_sha256": hashlib.sha256(body).hexdigest(),
        "outcome": "completed",
    }
    assert _compare(tmp_path, [_attempt(0, body, ANSWERED)], [record]) == []


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"request_text": 1}'])
def test_a_line_that_is_no_record_is_a_difference(tmp_path: Path, line: str) -> None:
    (tmp_path / "r1.jsonl").write_text(line + "\n")
    tally = Tally(calls=0, bytes_sent=0, bytes_full=0, resyncs=0)
    assert "no record" in compare("r1", [], tally, capture_dir=tmp_path)[0]


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
