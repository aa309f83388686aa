# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes: workers let in no more than uvicorn alone would, and the hop changes nothing."""

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.folders import private_folder
from support.raw import ROLLOUT, Outcome, Ports, Seen

GUARD_S = 30  # a test that hangs ends here; none waits for it
WAYS = ("hop", "owner", "private")
LENGTHS = (b"content-length", b"transfer-encoding")
OF_ONE_CONNECTION = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"expect"),
    *LENGTHS,
}
Send = Callable[[str, bytes], Outcome]


@pytest.fixture(scope="module")
def send() -> Iterator[Send]:
    with (
        private_folder() as folder,
        pytest.MonkeyPatch.context() as patch,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):

        async def bounded(name: str, raw: bytes) -> Outcome:
            async with asyncio.timeout(GUARD_S):
                return await ports.send(name, raw)

        def end(number: int) -> None:
            raise AssertionError(f"a client made the worker send itself signal {number}")

        ports = Ports(folder)
        patch.setattr(signal, "raise_signal", end)
        runner.run(ports.start(patch))
        yield lambda name, raw: runner.run(bounded(name, raw))
        runner.run(ports.stop())


def request(*lines: bytes, body: bytes = b"", start: bytes = b"POST /v1/x HTTP/1.1") -> bytes:
    """A request of the rollout, with more header lines."""
    head = [start, b"Host: gym", ROLLOUT[:-2], *lines]
    return b"\r\n".join([*head, b"", body])


def chunked(body: bytes, *lines: bytes) -> bytes:
    return request(b"Transfer-Encoding: chunked", *lines, body=body)


def content(*lines: bytes, body: bytes = b"{}") -> bytes:
    return request(b"Content-Length: %d" % len(body), *lines, body=body)


NEXT = content(body=b"next")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: gym\r\nx-session-id: r1\r\n\r\n"

REFUSED: dict[str, bytes] = {
    "both lengths": request(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED
    ),
    "both lengths, the other order": request(
        b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n" + SMUGGLED
    ),
    "two lengths": request(b"Content-Length: 2", b"Content-Length: 3", body=b"{} "),
    "two lengths that agree": request(b"Content-Length: 2", b"Content-Length: 2", body=b"{}"),
    "a length with a plus": request(b"Content-Length: +2", body=b"{}"),
    "a negative length": request(b"Content-Length: -2", body=b"{}"),
    "a list of lengths": request(b"Content-Length: 2, 2", body=b"{}"),
    "a length in hexadecimal": request(b"Content-Length: 0x2", body=b"{}"),
    "a length that overflows": request(b"Content-Length: 18446744073709551618", body=b"{}"),
    "no length": request(b"Content-Length: ", body=b"{}"),
    "a blank in a length": request(b"Content-Length: 1 0", body=b"0123456789"),
    "a chunk size with junk": chunked(b"2x\r\n{}\r\n0\r\n\r\n"),
    "a chunk size with a prefix": chunked(b"0x2\r\n{}\r\n0\r\n\r\n"),
    "a negative chunk": chunked(b"-2\r\n{}\r\n0\r\n\r\n"),
    "a chunk size that overflows": chunked(b"fffffffffffffffff2\r\n{}\r\n0\r\n\r\n"),
    "a chunk without a size": chunked(b"\r\n{}\r\n0\r\n\r\n"),
    "a chunk longer than its size": chunked(b"1\r\n{}\r\n0\r\n\r\n"),
    "a bare LF behind a chunk size": chunked(b"2\n{}\r\n0\r\n\r\n"),
    "a bare LF behind a chunk": chunked(b"2\r\n{}\n0\r\n\r\n"),
    "a chunk extension with a LF": chunked(b"2;a\n{}\r\n0\r\n\r\n"),
    "xchunked": request(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "identity": request(b"Transfer-Encoding: identity", body=b"0\r\n\r\n"),
    "chunked, identity": request(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
    "two codings": request(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=b"0\r\n\r\n"
    ),
    "chunked in quotes": request(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "a blank before a colon": request(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "a folded line": content(b"X-A: a\r\n b"),
    "a folded length": request(b"Content-Length:\r\n 2", body=b"{}"),
    "a line without a colon": content(b"X-A"),
    "a bare LF behind a line": content(b"X-A: a\nX-B: b"),
    "a bare CR in a value": content(b"X-A: a\rb"),
    "NUL in a value": content(b"X-A: a\0b"),
    "NUL in a name": content(b"X\0A: a"),
    "a control character in a value": content(b"X-A: a\x0bb"),
    "a length in a trailer": chunked(b"2\r\n{}\r\n0\r\nContent-Length: 9\r\n\r\n"),
    "a name in brackets": content(b"X[A]: a"),
    "a name with high bytes": content(b"X-\xc3\xa9: a"),
    "an empty name": content(b": a"),
    "a bare LF everywhere": content().replace(b"\r\n", b"\n"),
    "HTTP/0.9": b"GET /sessions/r1/x\r\n\r\n",
    "HTTP/2.0": request(start=b"POST /v1/x HTTP/2.0"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": request(start=b"POST /v1/x HTTP/1.2"),
    "HTTP/11.1": request(start=b"POST /v1/x HTTP/11.1"),
    "CONNECT": request(start=b"CONNECT gym:80 HTTP/1.1"),
    "a method of the client's own": request(start=b"SMUGGLE /v1/x HTTP/1.1"),
    "an over-long method": request(start=b"P" * 100_000 + b" /v1/x HTTP/1.1"),
    "a method in lower case": request(start=b"post /v1/x HTTP/1.1"),
    "a zero-width space before a method": request(start=b"\xe2\x80\x8bPOST /v1/x HTTP/1.1"),
    "a byte order mark": b"\xef\xbb\xbf" + content(),
    "two blanks before a version": request(start=b"POST /v1/x  HTTP/1.1x"),
    "no target": request(start=b"POST HTTP/1.1"),
    "high bytes in a target": request(start=b"POST /v1/\xff HTTP/1.1"),
    "a control character in a target": request(start=b"POST /v1/\x01 HTTP/1.1"),
    "TLS": bytes.fromhex("16030100a5010000a10303") + bytes(32),
    "noise": bytes(range(256)),
    "an upgrade with a body": content(b"Connection: upgrade", b"Upgrade: h2c", body=SMUGGLED),
    "an upgrade with chunks": chunked(
        b"2\r\n{}\r\n0\r\n\r\n", b"Connection: upgrade", b"Upgrade: h2c"
    ),
}
"""None of them reaches an application of ours."""

AT_UVICORN = {"HTTP/0.9", "HTTP/2.0", "an upgrade with a body", "an upgrade with chunks"}
"""uvicorn alone lets these in: to the first a cut answer looks clean, and of the last it loses the
body, or takes it for the next request."""

LET_IN: dict[str, tuple[bytes, int]] = {
    "a length": (content(), 1),
    "no body": (request(start=b"GET /sessions/r1/x?a=%00&b HTTP/1.1"), 1),
    "a length with zeros": (request(b"Content-Length: 0002", body=b"{}"), 1),
    "a length of nothing": (request(b"Content-Length: 0"), 1),
    "chunks": (chunked(b"1\r\n{\r\n01\r\n}\r\n0\r\n\r\n"), 1),
    "chunk extensions": (chunked(b'2;a="b";c\r\n{}\r\n0;d\r\n\r\n'), 1),
    "chunked in capitals": (request(b"TRANSFER-ENCODING: CHUNKED", body=b"0\r\n\r\n"), 1),
    "a coding under the chunks": (
        request(b"Transfer-Encoding: gzip, chunked", body=b"2\r\n{}\r\n0\r\n\r\n"),
        1,
    ),
    "trailers": (chunked(b"2\r\n{}\r\n0\r\nX-A: a\r\nRollout-Hop: 1\r\n\r\n") + NEXT, 2),
    "a name in a trailer": (chunked(b"2\r\n{}\r\n0\r\nX-Session-ID: r2\r\n\r\n"), 1),
    "a frame in a trailer": (
        chunked(b"2\r\n{}\r\n0\r\nContent-Type: application/vnd.rollout-delta\r\n\r\n"),
        1,
    ),
    "continue, asked for": (content(b"Expect: 100-continue"), 1),
    "continue, in capitals": (content(b"Expect: 100-CONTINUE"), 1),
    "continue, without a body": (request(b"Expect: 100-continue"), 1),
    "another expectation": (content(b"Expect: 200-maybe"), 1),
    "empty lines before it": (b"\r\n\r\n" + content(), 1),
    "an absolute target": (request(start=b"POST http://else/sessions/r1/x HTTP/1.1"), 1),
    "a target of dots": (request(start=b"POST /a/../b/./c//d;e HTTP/1.1"), 1),
    "a fragment": (request(start=b"POST /v1/x#y HTTP/1.1"), 1),
    "a question": (request(start=b"POST /v1/x? HTTP/1.1"), 1),
    "a target of escapes": (request(start=b"POST /%0d%0aX-A:%20b/%2e%2e HTTP/1.1"), 1),
    "an asterisk": (request(start=b"OPTIONS * HTTP/1.1"), 1),
    "CONNECT a path": (request(start=b"CONNECT /sessions/r1/x HTTP/1.1"), 1),
    "HEAD": (request(start=b"HEAD /v1/x HTTP/1.1"), 1),
    "HTTP/1.0": (request(b"Content-Length: 2", body=b"{}", start=b"POST /v1/x HTTP/1.0"), 1),
    "no blank behind a colon": (content(b"X-A:a"), 1),
    "blanks around a value": (content(b"X-A: \t a \t "), 1),
    "an empty value": (content(b"X-A:"), 1),
    "a value of high bytes": (content(b"X-A: \xff\xfe\xa0"), 1),
    "a name twice": (content(b"X-A: a", b"x-a: b", b"Cookie: a", b"Cookie: b"), 1),
    "a name with underscores": (content(b"rollout_hop: 1", b"X_A: b"), 1),
    "credentials for a proxy": (content(b"Proxy-Authorization: Basic eDp5"), 1),
    "two hosts": (content(b"Host: else"), 1),
    "a connection that names": (content(b"Connection: X-A, close", b"X-A: a", b"X-B: b"), 1),
    "a connection that names lengths": (content(b"Connection: content-length"), 1),
    "a connection that names the rollout": (content(b"Connection: x-session-id, host"), 1),
    "an upgrade without a body": (request(b"Connection: upgrade", b"Upgrade: h2c"), 1),
    "an upgrade and more": (request(b"Connection: upgrade", b"Upgrade: h2c") + SMUGGLED, 1),
    "an upgrade that nothing connects": (content(b"Upgrade: h2c"), 1),
    "three in a row": (content() + request() + chunked(b"1\r\nx\r\n0\r\n\r\n"), 3),
    "more behind a last one": (content(b"Connection: close") + NEXT, 1),
    "a good one before a bad one": (content() + b"NOISE\r\n\r\n", 1),
    "a body that looks like a request": (content(body=SMUGGLED) + NEXT, 2),
    "chunks that look like requests": (
        chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)) + NEXT,
        2,
    ),
    "a body that never ends": (request(b"Content-Length: 9", body=b"{}"), 0),
    "chunks that never end": (chunked(b"2\r\n{}\r\n"), 0),
    "a head that never ends": (content()[:40], 0),
    "as many headers as may be": (request(*[b"A:"] * 252), 1),
    "a target as long as may be": (request(start=b"GET /" + b"a" * 16_383 + b" HTTP/1.1"), 1),
    "a head as long as may be": (request(b"A:" + b"a" * (65_536 - 89)), 1),
    "longer than a forwarder holds": (content(body=bytes(1024**2 + 1)) + NEXT, 2),
    "chunks that a forwarder streams": (
        chunked(b"%x\r\n%b\r\n0\r\nRollout-Hop: 1\r\n\r\n" % (2**21, bytes(2**21))) + NEXT,
        2,
    ),
}
"""And how many requests of it an application sees."""

OURS = ("Hop", "Expect-Epoch", "Control", "Client", "Scheme", "Root-Path", "Worker", "Unheard-Of")


def travelled(seen: Seen) -> Seen:
    """What of a request must look the same wherever it is served."""
    named = {
        token.strip().lower()
        for name, value in seen.headers
        if name == b"connection"
        for token in value.split(b",")
    } - {b"x-session-id", b"content-type", b"cookie"}
    kept = tuple(
        (name, value)
        for name, value in seen.headers
        if name not in OF_ONE_CONNECTION | named and not name.startswith(b"rollout-")
    )
    return Seen(seen.method, seen.path, seen.query, kept, seen.body)


def check(send: Send, raw: bytes, way: str, *, may_refuse: bool = False) -> tuple[Outcome, Outcome]:
    """What every input must hold to; gives what became of it at uvicorn alone, and at *way*."""
    alone, ours = send("alone", raw), send(way, raw)
    wanted = [travelled(seen) for seen in alone.seen]
    got = [travelled(seen) for seen in ours.seen]
    if may_refuse:
        rest = iter(wanted)
        assert all(seen in rest for seen in got), "in order, and nothing that uvicorn did not see"
    else:
        assert got == wanted
    for seen in ours.seen:
        ours_named = [name for name, _ in seen.headers if name.startswith(b"rollout-")]
        assert not (seen.routed and ours_named)  # what names no rollout is not touched (R7)
        lengths = [value for name, value in seen.headers if name == b"content-length"]
        assert all(int(length) == len(seen.body) for length in lengths)
    assert ours.hopped <= max(ours.parsed, 0), "the owner parses what the forwarder parsed"
    assert not ours.failed
    return alone, ours


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", REFUSED)
def test_r2_what_is_malformed_reaches_no_application(send: Send, name: str, way: str) -> None:
    alone, ours = check(send, REFUSED[name], way, may_refuse=True)

    assert ours.seen == []
    assert ours.statuses in ([400], [431])
    assert way == "private" or ours.hopped == 0
    assert bool(alone.seen) == (name in AT_UVICORN)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LET_IN)
def test_r1_what_is_let_in_looks_the_same_at_its_owner(send: Send, name: str, way: str) -> None:
    raw, count = LET_IN[name]

    _, ours = check(send, raw, way)

    assert len(ours.seen) == count
    assert all(seen.routed for seen in ours.seen)
    if way == "hop":
        assert ours.hopped == count


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spelling", [str.title, str.lower, str.upper, str.swapcase])
@pytest.mark.parametrize("path", [b"/v1/x", b"/drain", b"/status", b"/admission?wait=9"])
def test_r1_no_private_header_of_a_client_gets_through(
    send: Send, path: bytes, spelling: Callable[[str], str], way: str
) -> None:
    ours = [f"{spelling(f'Rollout-{name}')}: 1".encode() for name in OURS]
    named = b"Connection: " + b", ".join(line[:-3] for line in ours)
    for lines in (ours, [*ours, named]):
        raw = request(*lines, start=b"POST " + path + b" HTTP/1.1")
        alone, routed = check(send, raw, way)
        assert len(alone.seen) == len(routed.seen) == 1
        assert routed.seen[0].routed


def seeds() -> list[bytes]:
    small = [raw for raw, _ in LET_IN.values() if len(raw) < 4096]
    return [*small, *(raw for raw in REFUSED.values() if len(raw) < 4096)]


PIECES = st.sampled_from(
    [
        *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"0", b"\x0b", b"\xff"),
        *(b"Content-Length: 2\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"\r\n\r\n"),
        *(b"Rollout-Hop: 1\r\n", b"Rollout-Expect-Epoch: 1\r\n", b"Rollout-Control: 1\r\n"),
        *(b"Connection: upgrade, close\r\n", b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n"),
        *(b"X-Session-ID: r2\r\n", ROLLOUT, SMUGGLED, b"HTTP/1.0", b"HTTP/1.1", b"chunked"),
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """One or two requests with some bytes cut out, put in, doubled or changed."""
    raw = b"".join(draw(st.lists(st.sampled_from(seeds()), min_size=1, max_size=2)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(raw)))
        cut = draw(st.sampled_from([0, 0, 1, 2, 8, 64]))
        put = draw(PIECES | st.binary(max_size=3))
        raw = raw[:at] + put + raw[at + cut :]
    return raw or b"\r\n"


def all_ways(send: Send, raw: bytes) -> None:
    for way in WAYS:
        check(send, raw, way, may_refuse=True)


everyday = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,  # the same examples each time; the long form looks for new ones
    suppress_health_check=[HealthCheck.too_slow],
)


@everyday
@given(raw=mutated())
def test_r2_no_mutation_of_a_request_gets_further_than_at_uvicorn(send: Send, raw: bytes) -> None:
    all_ways(send, raw)


@pytest.mark.long
@settings(everyday, max_examples=5000, derandomize=False)
@given(raw=mutated())
def test_r2_no_mutation_gets_further_in_the_long_form(send: Send, raw: bytes) -> None:
    all_ways(send, raw)
