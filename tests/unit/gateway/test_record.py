# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from rollout_router.call import Call
from rollout_router.gateway.record import Outcome, Record

CALL = Call(rollout_id="r1", claim_epoch=5, worker_id="w1", store_id="s1")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def written(request: bytes, response: bytes, response_bytes: int | None = None) -> dict[str, Any]:
    record = Record(
        call=CALL,
        model_call_id="c1",
        method="POST",
        path="/v1/responses?a=b",
        started_at=AT,
        completed_at=AT,
        status=200,
        outcome=Outcome.COMPLETED,
        request=request,
        response=response,
        response_bytes=len(response) if response_bytes is None else response_bytes,
    )
    line = record.line()
    assert b"\n" not in line
    fields: dict[str, Any] = json.loads(line)
    return fields


def test_f2_a_record_has_every_field() -> None:
    assert written(b'{"a":"\xc3\xa9\n"}', b"{}") == {
        "model_call_id": "c1",
        "rollout_id": "r1",
        "store_id": "s1",
        "claim_epoch": 5,
        "worker_id": "w1",
        "method": "POST",
        "path": "/v1/responses?a=b",
        "started_at": "2026-01-02T03:04:05+00:00",
        "completed_at": "2026-01-02T03:04:05+00:00",
        "status": 200,
        "outcome": "completed",
        "request_text": '{"a":"é\n"}',
        "request_sha256": hashlib.sha256(b'{"a":"\xc3\xa9\n"}').hexdigest(),
        "response": "{}",
    }


def test_f2_bytes_that_are_no_text_are_kept_in_base64() -> None:
    fields = written(b"\xff\x00", b"\xfe")

    assert fields["request_base64"] == "/wA="
    assert fields["response_base64"] == "/g=="
    assert not {"request_text", "response"} & fields.keys()


def test_f2_a_truncated_answer_says_so_and_ends_between_characters() -> None:
    fields = written(b"{}", "aé".encode()[:2], response_bytes=3)

    assert (fields["response"], fields["response_truncated"], fields["response_bytes"]) == (
        "a",
        True,
        3,
    )


def test_f2_a_whole_answer_that_ends_inside_a_character_is_no_text() -> None:
    assert "response_base64" in written(b"{}", "é".encode()[:1])


def test_f2_a_long_body_of_every_character_is_read_back() -> None:
    text = "".join(chr(code) for code in (*range(0xD800), *range(0xE000, 0x20000)))

    assert written(text.encode(), text.encode())["request_text"] == text
    assert written(text.encode(), text.encode())["response"] == text
