# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from rollout_router.gateway.turn_end import Ending
from rollout_router.gateway.withholding import JSON_WHOLE_BYTES_MAX, Tail, is_json, withheld_of

EVENTS = b'data: {"a":1}\n\ndata: [DONE]\n\n'


def leaving(headers: list[tuple[bytes, bytes]], *parts: bytes, http_version: str = "1.1") -> bytes:
    withheld = withheld_of(headers, http_version=http_version)
    left = b"".join(withheld.add(part) for part in parts)
    assert left + withheld.rest() == b"".join(parts)
    return left


@pytest.mark.parametrize("value", [b"text/event-stream", b"Text/Event-Stream; charset=utf-8"])
def test_f2_events_leave_up_to_the_end_of_the_turn(value: bytes) -> None:
    assert leaving([(b"Content-Type", value)], EVENTS) == EVENTS[: EVENTS.index(b"data: [")]


@pytest.mark.parametrize(
    ("headers", "http_version"),
    [
        ([(b"content-type", b"text/event-stream"), (b"content-encoding", b"gzip")], "1.1"),
        ([(b"content-type", b"text/event-stream")], "1.0"),
        ([(b"content-type", b"text/plain")], "1.0"),
        ([(b"content-type", b"application/json")], "1.1"),
        ([(b"content-type", b"application/problem+json; charset=utf-8")], "1.1"),
    ],
)
def test_f2_some_answers_wait_whole(headers: list[tuple[bytes, bytes]], http_version: str) -> None:
    assert leaving(headers, EVENTS, b"x", http_version=http_version) == b""


def test_f2_of_anything_else_the_last_byte_waits() -> None:
    withheld = withheld_of([], http_version="1.1")

    assert withheld.add(b"abc") == b"ab"
    assert withheld.add(b"") == b""
    assert withheld.add(b"d") == b"c"
    assert withheld.held_bytes == 1
    assert withheld.rest() == b"d"
    assert withheld.ending is Ending.COMPLETED


def test_f2_json_above_its_bound_leaves_but_for_the_last_byte() -> None:
    half = b"x" * (JSON_WHOLE_BYTES_MAX // 2)
    withheld = withheld_of([(b"content-type", b"application/json")], http_version="1.1")

    assert withheld.add(half) == b""
    assert withheld.add(half) == b""
    assert withheld.add(b"yz") == half + half + b"y"
    assert withheld.add(b"!") == b"z"
    assert withheld.rest() == b"!"


@pytest.mark.parametrize(
    ("events", "ending"),
    [
        (EVENTS, Ending.COMPLETED),
        (b'data: {"error":{}}\n\n', Ending.FAILED),
        (b"data: 1\n\n", None),
    ],
)
def test_f2_a_buffered_stream_has_its_ending_too(events: bytes, ending: Ending | None) -> None:
    withheld = withheld_of([(b"content-type", b"text/event-stream")], http_version="1.0")
    withheld.add(events)

    assert withheld.rest() == events
    assert withheld.ending is ending


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"application/json", True),
        (b"Application/Problem+JSON ; charset=utf-8", True),
        (b"application/jsonl", False),
        (b"text/event-stream", False),
        (b"", False),
    ],
)
def test_json_is_told_by_its_media_type(value: bytes, *, said: bool) -> None:
    assert is_json(value) is said


def test_an_empty_answer_is_empty() -> None:
    for tail in (Tail(0), Tail(sys.maxsize)):
        assert (tail.add(b""), tail.rest(), tail.held_bytes) == (b"", b"", 0)
