# SPDX-License-Identifier: Apache-2.0
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.transport.hop_wire import (
    ANSWER_HEAD_BYTES_MAX,
    AnswerMalformed,
    AnswerReader,
    BodyFramer,
    HopRequest,
    end_to_end,
    request_head,
)


async def nothing_more() -> AsyncIterator[bytes]:
    yield b""


def request(**changes: Any) -> HopRequest:
    given = {"method": "POST", "target": b"/v1/responses?a=b", "headers": [(b"host", b"owner")]}
    return HopRequest(**(given | changes))


def read(*pieces: bytes, bodiless: bool = False) -> AnswerReader:
    answer = AnswerReader(bodiless=bodiless)
    for piece in pieces:
        answer.feed(piece)
    return answer


@pytest.mark.parametrize(
    ("changes", "framing"),
    [
        ({"body": b"abc"}, b"content-length: 3\r\n"),
        ({"body": b"abc", "content_length": 3}, b"content-length: 3\r\n"),
        ({}, b""),
        ({"content_length": 0}, b"content-length: 0\r\n"),
        (
            {"rest": nothing_more(), "content_length": 9},
            b"content-length: 9\r\nexpect: 100-continue\r\n",
        ),
        (
            {"rest": nothing_more()},
            b"transfer-encoding: chunked\r\nexpect: 100-continue\r\n",
        ),
    ],
    ids=["whole", "whole and announced", "none", "announced empty", "rest", "rest unannounced"],
)
def test_r2_a_head_announces_exactly_the_body_that_follows(
    changes: dict[str, Any], framing: bytes
) -> None:
    assert request_head(request(**changes)) == (
        b"POST /v1/responses?a=b HTTP/1.1\r\nhost: owner\r\n" + framing + b"\r\n"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "GET /x HTTP/1.1\r\nx:"},
        {"method": ""},
        {"method": "P\u00d6ST"},
        {"target": b""},
        {"target": b"/a b"},
        {"target": b"/a\r\nx: y"},
        {"target": b"/a\0"},
        {"headers": [(b"a\r\nb", b"c")]},
        {"headers": [(b"a: b\nc", b"d")]},
        {"headers": [(b"a:b", b"c")]},
        {"headers": [(b"", b"c")]},
        {"headers": [(b"a", b"b\r\nc: d")]},
        {"headers": [(b"a", b"b\nc: d")]},
        {"headers": [(b"a", b"b\r")]},
        {"headers": [(b"a", b"b\0c")]},
        {"headers": [(b"Content-Length", b"3")]},
        {"headers": [(b"transfer-encoding", b"chunked")]},
        {"headers": [(b"expect", b"100-continue")]},
        {"headers": [(b"connection", b"close")]},
        {"body": b"abc", "content_length": 2},
        {"content_length": -1, "rest": nothing_more()},
    ],
    ids=lambda changes: "-".join(
        f"{name}={value!r}".split(" object")[0] for name, value in changes.items()
    ),
)
def test_r2_a_request_that_could_be_read_otherwise_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the refusal is the fact, not its words
        request_head(request(**changes))


@given(st.lists(st.binary(max_size=300)))
def test_r2_chunks_say_what_was_given_and_end_once(pieces: list[bytes]) -> None:
    framer = BodyFramer(None)
    framed = b"".join(framer.frame(piece) for piece in pieces) + framer.end()

    answer = read(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", framed)

    assert answer.take() == b"".join(pieces)
    assert answer.complete
    assert answer.reusable


def test_r2_a_body_is_held_to_the_length_that_was_announced() -> None:
    framer = BodyFramer(5)
    assert framer.frame(b"abc") == b"abc"
    assert framer.frame(b"") == b""
    with pytest.raises(ValueError, match="2 bytes shorter"):
        framer.end()
    assert framer.frame(b"de") == b"de"
    assert framer.end() == b""
    with pytest.raises(ValueError, match="1 bytes longer"):
        framer.frame(b"f")


@pytest.mark.parametrize(
    ("length", "done"),
    [(0, [True, True]), (3, [False, True]), (None, [False, False]), (4, [False, False])],
)
def test_r2_a_body_is_done_when_its_owner_has_all_of_it(
    length: int | None, done: list[bool]
) -> None:
    framer = BodyFramer(length)
    seen = [framer.done]
    framer.frame(b"abc" if length != 0 else b"")
    assert [*seen, framer.done] == done
    if length != 4:
        framer.end()
        assert framer.done


def test_headers_that_connection_names_end_here() -> None:
    headers = [
        (b"x-kept", b"1"),
        (b"x-gone", b"2"),
        (b"keep-alive", b"3"),
        (b"connection", b"close, X-Gone"),
        (b"content-length", b"4"),
    ]
    assert end_to_end(headers) == [(b"x-kept", b"1"), (b"content-length", b"4")]


WHOLE = [
    (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", b"hello", True),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", True),
    (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",  # noqa: E501 - one answer
        b"hello",
        True,
    ),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
    (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b"", True),
    (
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
        ),
        b"hello",
        True,
    ),
    (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello", b"hello", False),
    (
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 5\r\n\r\nhello",
        b"hello",
        False,
    ),
]


@pytest.mark.parametrize(("wire", "body", "reusable"), WHOLE)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_r4_an_answer_is_complete_at_its_last_byte_and_not_before(
    wire: bytes, body: bytes, step: int, *, reusable: bool
) -> None:
    answer = AnswerReader(bodiless=False)
    for start in range(0, len(wire), step):
        assert not answer.complete
        answer.feed(wire[start : start + step])
    assert answer.complete
    assert answer.take() == body
    assert answer.buffered_bytes == 0
    assert answer.reusable is reusable
    assert (b"link", b"x") not in answer.headers
    assert not {name for name, _ in answer.headers} & {b"connection", b"transfer-encoding"}


@pytest.mark.parametrize(("wire", "body", "reusable"), WHOLE)
@pytest.mark.parametrize("extra", [b"X", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])
@pytest.mark.parametrize("apart", [True, False])
def test_r4_bytes_after_an_answer_spoil_the_connection_and_not_the_answer(
    wire: bytes, body: bytes, extra: bytes, *, reusable: bool, apart: bool
) -> None:
    del reusable
    answer = read(wire, extra) if apart else read(wire + extra)
    assert (answer.complete, answer.reusable, answer.take()) == (True, False, body)


@pytest.mark.parametrize(
    "extra",
    [b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"0\r\n\r\n", b"X"],
)
@pytest.mark.parametrize("framing", [b"content-length: 5", b"transfer-encoding: chunked"])
def test_an_answer_to_head_ends_with_its_head(framing: bytes, extra: bytes) -> None:
    answer = read(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n" + extra, bodiless=True)
    assert (answer.complete, answer.reusable, answer.take()) == (True, not extra, b"")


def test_r4_the_end_of_the_connection_ends_no_answer() -> None:
    cut = read(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello")
    cut.eof()
    assert not cut.complete
    with pytest.raises(AnswerMalformed, match="neither"):
        read(b"HTTP/1.1 200 OK\r\n\r\nhello")


@pytest.mark.parametrize(
    "wire",
    [
        b"garbage",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (ANSWER_HEAD_BYTES_MAX // 2 + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * ANSWER_HEAD_BYTES_MAX + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * ANSWER_HEAD_BYTES_MAX,
        b"HTTP/1.1 102 Processing\r\n\r\n" * (ANSWER_HEAD_BYTES_MAX // 25),
    ],
    ids=lambda wire: repr(wire[:60]),
)
def test_r4_what_is_no_answer_is_malformed_and_never_complete(wire: bytes) -> None:
    answer = AnswerReader(bodiless=False)
    with pytest.raises(AnswerMalformed):
        answer.feed(wire)
    assert not answer.complete
    assert not answer.reusable
