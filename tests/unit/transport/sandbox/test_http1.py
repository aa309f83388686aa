# SPDX-License-Identifier: Apache-2.0
import pytest

from rollout_router.transport.sandbox.http1 import (
    BadMessage,
    Body,
    Framing,
    chunk_size,
    end_to_end,
    is_header_name,
    parse_request,
    parse_response,
    request_framing,
    response_framing,
    whole_chunks,
    written_head,
)


def test_a_head_is_read_and_written_unchanged() -> None:
    lines = "POST /a%20b?c=d HTTP/1.1\r\nHost: h\r\nx-A: 1\r\nX-a:  2 \r\nEmpty:"
    request = parse_request(lines.encode())

    assert request.headers == [("Host", "h"), ("x-A", "1"), ("X-a", "2"), ("Empty", "")]
    assert (request.method, request.target, request.minor) == ("POST", "/a%20b?c=d", 1)
    assert written_head("GET / HTTP/1.1", [("A", "\xe9")]) == b"GET / HTTP/1.1\r\nA: \xe9\r\n\r\n"


def test_an_absolute_target_becomes_a_path() -> None:
    assert parse_request(b"GET http://127.0.0.1:1/v1/x?y HTTP/1.1").target == "/v1/x?y"
    assert parse_request(b"GET http://127.0.0.1 HTTP/1.1").target == "/"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET /",
        b"GET / HTTP/2",
        b"GET / HTTP/1.1 ",
        b"GET  / HTTP/1.1",
        b"GET /a b HTTP/1.1",
        b"G(T / HTTP/1.1",
        b"CONNECT host:80 HTTP/1.1",
        b"OPTIONS * HTTP/1.1",
        b"GET / HTTP/1.1\r\nNo-Colon",
        b"GET / HTTP/1.1\r\nSpace : 1",
        b"GET / HTTP/1.1\r\n: empty name",
        b"GET / HTTP/1.1\r\nA: 1\r\n folded",
        b"GET / HTTP/1.1\r\nA: 1\nB: 2",
        b"GET / HTTP/1.1\r\nA: 1\rB: 2",
        b"GET / HTTP/1.1\r\nA: \x00",
        b"GET / HTTP/1.1" + b"\r\nA: 1" * 257,
    ],
)
def test_a_bad_request_head_is_refused(head: bytes) -> None:
    with pytest.raises(BadMessage):
        parse_request(head)


@pytest.mark.parametrize(
    ("headers", "framing"),
    [
        (b"", Framing(Body.EMPTY)),
        (b"\r\nContent-Length: 12", Framing(Body.LENGTH, 12)),
        (b"\r\nContent-Length: 0", Framing(Body.LENGTH, 0)),
        (b"\r\nTransfer-Encoding: Chunked", Framing(Body.CHUNKED)),
    ],
)
def test_a_requests_body_ends_where_its_head_says(headers: bytes, framing: Framing) -> None:
    assert request_framing(parse_request(b"POST / HTTP/1.1" + headers)) == framing


AMBIGUOUS = [
    b"\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    b"\r\nContent-Length: 1\r\nContent-Length: 1",
    b"\r\nContent-Length: 1, 1",
    b"\r\nContent-Length: +1",
    b"\r\nContent-Length: -1",
    b"\r\nContent-Length: 0x1",
    b"\r\nContent-Length: \xb2",
    b"\r\nContent-Length:",
    b"\r\nContent-Length: " + b"1" * 16,
    b"\r\nTransfer-Encoding: gzip, chunked",
    b"\r\nTransfer-Encoding: identity",
    b"\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
]


@pytest.mark.parametrize("headers", AMBIGUOUS)
def test_a_length_that_can_be_read_in_two_ways_is_refused(headers: bytes) -> None:
    with pytest.raises(BadMessage):
        request_framing(parse_request(b"POST / HTTP/1.1" + headers))
    with pytest.raises(BadMessage):
        response_framing("POST", parse_response(b"HTTP/1.1 200 OK" + headers))


def test_http_1_0_has_no_chunks() -> None:
    with pytest.raises(BadMessage):
        request_framing(parse_request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked"))


@pytest.mark.parametrize(
    ("method", "head", "body"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3", Body.LENGTH),
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", Body.CHUNKED),
        ("GET", b"HTTP/1.0 200 OK", Body.CLOSE),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 3", Body.EMPTY),
        ("GET", b"HTTP/1.1 204 No Content", Body.EMPTY),
        ("GET", b"HTTP/1.1 304", Body.EMPTY),
    ],
)
def test_a_responses_body_ends_where_its_head_says(method: str, head: bytes, body: Body) -> None:
    assert response_framing(method, parse_response(head)).body is body


@pytest.mark.parametrize("head", [b"HTTP/2 200 OK", b"HTTP/1.1 20 OK", b"ICY 200 OK", b"junk"])
def test_a_bad_status_line_is_refused(head: bytes) -> None:
    with pytest.raises(BadMessage):
        parse_response(head)


def test_what_belongs_to_a_hop_stays_there() -> None:
    names = ["Connection", "Keep-Alive", "TE", "Trailer", "Upgrade", "Transfer-Encoding"]
    headers = [(name, "close, X-Mine") for name in names]

    assert end_to_end([*headers, ("x-mine", "1"), ("X-Other", "2")]) == [("X-Other", "2")]


@pytest.mark.parametrize(("line", "size"), [(b"0", 0), (b"1aF", 431), (b"5;name=value", 5)])
def test_a_chunk_says_its_size(line: bytes, size: int) -> None:
    assert chunk_size(line) == size


@pytest.mark.parametrize("line", [b"", b"g", b"-1", b"0x5", b" 5", b"5 5", b"f" * 16])
def test_a_chunk_without_a_size_is_refused(line: bytes) -> None:
    with pytest.raises(BadMessage):
        chunk_size(line)


@pytest.mark.parametrize(
    ("data", "held", "end"),
    [
        pytest.param(b"", b"", 0, id="nothing"),
        pytest.param(b"2\r\nab\r\n3;x=y\r\ncde\r\n4\r\nfg", b"abcde", 19, id="a part"),
        pytest.param(b"2\r\nab\r\n1\r", b"ab", 7, id="a part of a size"),
        pytest.param(b"2\r\nab\r\n0\r\n\r\n", b"ab", 7, id="the last chunk"),
        pytest.param(b"2\r\nab\r\n2\r\nabc\r\n", b"ab", 7, id="longer than its size"),
        pytest.param(b"2\r\nab\r\nx\r\n", b"ab", 7, id="no size"),
        pytest.param(b"2\nab\r\n", b"", 0, id="a bare line feed"),
    ],
)
def test_whole_chunks_end_where_a_reader_has_to_look(data: bytes, held: bytes, end: int) -> None:
    assert whole_chunks(data, 0) == (held, end)
    assert whole_chunks(b"12345" + data, 5) == (held, 5 + end)


@pytest.mark.parametrize(("name", "is_one"), [("X-Run", True), ("", False), ("X é", False)])
def test_a_header_name_is_a_token(name: str, *, is_one: bool) -> None:
    assert is_header_name(name) is is_one
