# SPDX-License-Identifier: Apache-2.0
import json
from typing import Any

import pytest

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.validation import BadRequest, read_call

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
def test_what_is_no_call_is_refused_with_a_reason(dialect: Dialect, body: bytes, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read_call(dialect, body)
