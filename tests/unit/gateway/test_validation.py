# SPDX-License-Identifier: Apache-2.0
import json
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.validation import BadRequest, check_call, read_call

GOOD: dict[Dialect, dict[str, Any]] = {
    Dialect.RESPONSES: {"model": "m", "input": "hello"},
    Dialect.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
    Dialect.MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
}


@pytest.mark.parametrize("dialect", Dialect)
def test_a_call_is_read(dialect: Dialect) -> None:
    for more in ({}, {"stream": True}, {"stream": None}, {"unknown": 1}):
        document = {**GOOD[dialect], **more}
        assert read_call(dialect, json.dumps(document).encode()) == document
    assert read_call(Dialect.RESPONSES, b'{"model":"m","input":[]}')["input"] == []


@pytest.mark.parametrize("dialect", Dialect)
def test_a_call_is_checked_without_being_kept(dialect: Dialect) -> None:
    nested: dict[str, Any] = {"unknown": [{}, {"a": {}}]}
    for more in ({}, {"stream": True}, {"stream": None}, nested):
        check_call(dialect, json.dumps({**GOOD[dialect], **more}).encode())


@pytest.mark.parametrize("judge", [read_call, check_call])
@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\xff", "not JSON"),
        (b"[]", "JSON object"),
        (b"[" * 100_000, "nested"),
        (b'{"a":' * 100_000, "nested"),
        (b'{"model":"m","n":' + b"9" * 5000 + b"}", "not JSON"),
        (b"{}", "'model'"),
        (b'{"model":""}', "'model'"),
        (b'{"model":1}', "'model'"),
        (b'{"model":"m","stream":"yes"}', "'stream'"),
        (b'{"model":"m","stream":1}', "'stream'"),
        (b'{"model":"m"}', "'(input|messages)'"),
        (b'{"model":"m","input":{},"messages":{}}', "'(input|messages)'"),
        (b'{"model":"m","input":null,"messages":[]}', "'(input|messages)'"),
        (b'{"model":"m","input":1,"messages":["x"]}', "'(input|messages)'"),
    ],
)
def test_what_is_no_call_is_refused_with_a_reason(
    judge: Callable[[Dialect, bytes], object], dialect: Dialect, body: bytes, why: str
) -> None:
    with pytest.raises(BadRequest, match=why):
        judge(dialect, body)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_body_is_read_as_a_short_one_is(encoding: str, shift: int) -> None:
    """Wherever the slices divide a character."""
    document = {"model": "m", "input": "x" * shift + "a\u4e16\U0001f600" * 150_000}
    body = json.dumps(document, ensure_ascii=False).encode(encoding)

    assert read_call(Dialect.RESPONSES, body) == document


def test_surrogates_are_left_to_the_model() -> None:
    long = b'{"model":"m","input":"' + b"x" * (1 << 20) + b'\xed\xa0\x80"}'

    assert read_call(Dialect.RESPONSES, long)["input"][-1] == "\ud800"


@pytest.mark.parametrize("tail", [b"\xe4", b"\xe4\xb8", b"\xff"])
def test_a_long_body_that_is_no_text_is_refused(tail: bytes) -> None:
    for length in (10, 2 << 20):
        with pytest.raises(BadRequest, match="not JSON"):
            check_call(Dialect.RESPONSES, b'{"model":"m","input":"' + b"x" * length + tail)


@pytest.mark.parametrize("judge", [read_call, check_call])
def test_other_threads_get_their_turn_at_every_object(
    judge: Callable[[Dialect, bytes], object],
) -> None:
    """Only where Python code runs can the interpreter's lock change hands."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    body = b'{"model":"m","input":[' + b'{"a":"b"},' * 999 + b"{}]}"
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        judge(Dialect.RESPONSES, body)
    finally:
        sys.setprofile(before)

    assert calls > 1000


def test_a_checked_body_costs_little_more_memory_than_its_text() -> None:
    item = b'{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}'
    body = b'{"model":"m","input":[' + item + (b"," + item) * 20_000 + b"]}"
    tracemalloc.start()
    try:
        check_call(Dialect.RESPONSES, body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 3 * len(body)
