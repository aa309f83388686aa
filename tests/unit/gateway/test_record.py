# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from rollout_router.call import Call
from rollout_router.gateway.record import Outcome, Record

CALL = Call(rollout_id="r1", claim_epoch=5, worker_id="w1", store_id="s1")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def record_of(
    request: bytes,
    response: bytes,
    response_bytes: int | None = None,
    path: str = "/v1/responses?a=b",
) -> Record:
    return Record(
        call=CALL,
        model_call_id="c1",
        method="POST",
        path=path,
        started_at=AT,
        completed_at=AT,
        status=200,
        outcome=Outcome.COMPLETED,
        request=request,
        response=response,
        response_bytes=len(response) if response_bytes is None else response_bytes,
    )


def written(request: bytes, response: bytes, response_bytes: int | None = None) -> dict[str, Any]:
    line = record_of(request, response, response_bytes).line()
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


def test_f2_a_record_is_one_line_for_naive_readers_too() -> None:
    """``str.splitlines`` ends a line at characters that JSON may hold as they are."""
    ends = "".join(chr(code) for code in range(0x3000) if len(f"a{chr(code)}b".splitlines()) == 2)
    assert {"\u0085", "\u2028", "\u2029"} < set(ends)
    body = json.dumps({"a": f"é{ends}"}, ensure_ascii=False).encode()

    line = record_of(body, ends.encode(), path="/v1/\x85").line()

    (one,) = line.decode().splitlines()
    fields = json.loads(one)
    assert fields["request_text"].encode() == body
    assert fields["request_sha256"] == hashlib.sha256(body).hexdigest()
    assert fields["response"] == ends
    assert fields["path"] == "/v1/\x85"
    assert "é" in one
