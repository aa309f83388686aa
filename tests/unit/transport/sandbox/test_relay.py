# SPDX-License-Identifier: Apache-2.0
"""What passes the shim, and how: heads, bodies, streams, ends, refusals."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.frame import encode_frame
from rollout_router.transport.sandbox.relay import _collected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from unit.transport.sandbox.conftest import FakeGateway, Handler, Harness, Received, Said

    from rollout_router.transport.sandbox.shim import Shim

WAIT_S = 30.0
ROLLOUT = "/ng-rollout/r1/v1/x"
LARGE = b"0123456789" * 30_000


def raw(harness: Harness, request: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", harness.port), timeout=WAIT_S)
    sock.sendall(request)
    return sock


def read_all(sock: socket.socket) -> bytes:
    with sock:
        return b"".join(iter(lambda: sock.recv(65_536), b""))


def read_until(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        more = sock.recv(1)
        assert more, data
        data += more
    return data


def code_of(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


def write(data: bytes, *, cut: bool = True) -> Callable[..., None]:
    """A script that sends these bytes and ends the connection."""

    def script(handler: Handler, _: Received) -> None:
        handler.wfile.write(data)
        if cut:
            handler.cut()

    return script


def test_headers_travel_in_order_and_case_and_as_often_as_they_came(
    harness: Harness, gateway: FakeGateway
) -> None:
    gateway.scripts.append(
        write(
            b"HTTP/1.1 200 Fine by me\r\nSET-cookie: a\r\nX-Odd:  b \r\nSet-Cookie: c\r\n"
            b"Content-Length: 2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n\r\nok"
        )
    )
    request = (
        f"POST {ROLLOUT} HTTP/1.1\r\nx-B: 2\r\nHOST: 127.0.0.1\r\nX-b: 1\r\ncontent-length: 2\r\n"
        "TE: trailers\r\nConnection: close, x-hop, Content-Length\r\n"
        "X-Hop: 1\r\nX-Last: z\r\n\r\n{}"
    )

    answer = read_all(raw(harness, request.encode()))

    assert answer == (
        b"HTTP/1.1 200 Fine by me\r\nSET-cookie: a\r\nX-Odd: b\r\nSet-Cookie: c\r\n"
        b"Content-Length: 2\r\nConnection: close\r\n\r\nok"
    )
    host = gateway.url.removeprefix("http://")
    assert gateway.received[0].raw == b"{}"
    assert gateway.received[0].headers[:3] == [("x-B", "2"), ("HOST", host), ("X-b", "1")]
    assert sorted(gateway.received[0].headers[3:]) == [
        ("Content-Length", "2"),
        (wire.HISTORY_HEADER, "keep"),
        ("X-Last", "z"),
    ]


@pytest.mark.parametrize(
    "path", ["/v1/models", "/api/v1/models?x=%20", ROLLOUT], ids=["models", "query", "rollout"]
)
def test_a_get_passes_through(harness: Harness, gateway: FakeGateway, path: str) -> None:
    connection = harness.connect()
    connection.request("GET", path)
    response = connection.getresponse()

    assert (response.status, response.read()) == (200, b'{"ok":1}')
    assert (gateway.received[0].method, gateway.received[0].path) == ("GET", path)
    assert not gateway.received[0].kept
    connection.close()


def test_a_head_has_the_length_and_no_body(harness: Harness) -> None:
    connection = harness.connect()
    for _ in range(2):
        connection.request("HEAD", "/x")
        response = connection.getresponse()
        assert (response.getheader("Content-Length"), response.read()) == ("8", b"")
    connection.close()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        pytest.param("/v1/x", {}, id="no identity"),
        pytest.param(ROLLOUT, {"Content-Encoding": "zstd"}, id="encoded"),
        pytest.param(ROLLOUT, {"Content-Type": wire.CONTENT_TYPE + ";x=1"}, id="a frame already"),
    ],
)
def test_s4_what_is_not_eligible_passes_as_it_came(
    harness: Harness, gateway: FakeGateway, path: str, headers: dict[str, str]
) -> None:
    for _ in range(2):
        assert harness.post(LARGE, path, **headers)[0] == 200

    for received in gateway.received:
        assert received.raw == LARGE
        assert received.header(wire.HISTORY_HEADER) is None
        assert received.header("Content-Length") == str(len(LARGE))


def test_a_client_of_this_kind_before_the_shim_keeps_its_marks(
    harness: Harness, gateway: FakeGateway
) -> None:
    _, headers, _ = harness.post(LARGE, Rollout_History="keep")

    assert headers[wire.HISTORY_HEADER] == wire.KEPT + wire.sha256_hex(LARGE)
    assert wire.header_values(gateway.received[0].headers, wire.HISTORY_HEADER) == ["keep"]


def test_a_client_of_this_kind_before_the_shim_may_send_frames(
    harness: Harness, gateway: FakeGateway
) -> None:
    gateway.bases["r1"] = {wire.EMPTY_SHA256: b""}
    frame = encode_frame(wire.EMPTY_SHA256, LARGE, b"", content_type="a/b", deflate=True)
    assert frame is not None

    status, headers, _ = harness.post(frame, Content_Type=wire.CONTENT_TYPE)

    assert (status, gateway.bodies) == (200, [LARGE])
    assert headers[wire.HISTORY_HEADER] == wire.KEPT + wire.sha256_hex(LARGE)


def test_s1_a_resync_that_nobody_asked_for_is_not_handed_on(
    harness: Harness, gateway: FakeGateway, reports: Said
) -> None:
    def lose(handler: Handler, _: Received) -> None:
        handler.answer(409, Rollout_History=wire.RESYNC)

    gateway.scripts.append(lose)

    with pytest.raises(ConnectionError):
        harness.post(b"{}", "/v1/x")

    assert "aborted" in reports.next()


def test_a_mark_that_nobody_asked_for_is_removed(harness: Harness, gateway: FakeGateway) -> None:
    def mark(handler: Handler, _: Received) -> None:
        handler.answer(200, Rollout_History=wire.NONE)

    gateway.scripts.append(mark)

    assert wire.HISTORY_HEADER not in harness.post(b"{}", "/v1/x")[1]


def test_s4_a_body_over_the_cap_passes_without_keep(
    start_shim: Callable[..., Shim], harness: Harness, gateway: FakeGateway
) -> None:
    shim = start_shim(body_bytes_max=len(LARGE) - 1)

    assert type(harness)(shim.port).post(LARGE)[0] == 200

    assert gateway.received[0].raw == LARGE
    assert not gateway.received[0].kept
    tally = shim.statistics()["rollouts"]["r1"]
    assert (tally["bytes_sent"], tally["bytes_full"]) == (len(LARGE), len(LARGE))


@pytest.mark.parametrize("cap", [len(LARGE), len(LARGE) - 1], ids=["within", "over"])
def test_s4_chunks_within_the_cap_are_collected_and_over_it_streamed(
    start_shim: Callable[..., Shim], harness: Harness, gateway: FakeGateway, cap: int
) -> None:
    connection = type(harness)(start_shim(body_bytes_max=cap).port).connect()
    body = (LARGE[at : at + 70_000] for at in range(0, len(LARGE), 70_000))
    connection.request("POST", ROLLOUT, body, encode_chunked=True)
    response = connection.getresponse()

    assert (response.status, response.read()) == (200, b'{"ok":1}')
    received = gateway.received[0]
    assert received.raw == LARGE
    assert received.kept is (cap == len(LARGE))
    streamed = received.header("Transfer-Encoding"), received.header("Content-Length")
    assert streamed == ((None, str(len(LARGE))) if received.kept else ("chunked", None))
    connection.close()


def test_s4_a_body_of_small_pieces_takes_no_more_memory_than_a_whole_one() -> None:
    size = 1 << 17
    pieces = (b"%c%c" % (number & 127, number >> 8 & 127) for number in range(size // 2))
    tracemalloc.start()
    try:
        body, whole = _collected(pieces, size)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (len(body), whole) == (size, True)
    assert peak_bytes < 3 * size


def test_s4_expect_is_answered_here(harness: Harness, gateway: FakeGateway) -> None:
    head = f"POST {ROLLOUT} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n"
    sock = raw(harness, (head + "Connection: close\r\n\r\n").encode())

    assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert gateway.received == []
    sock.sendall(b"{}")

    assert read_all(sock).startswith(b"HTTP/1.1 200 OK\r\n")
    assert gateway.received[0].header("Expect") is None


def test_requests_that_come_together_are_answered_in_turn(
    harness: Harness, gateway: FakeGateway
) -> None:
    one = f"POST {ROLLOUT} HTTP/1.1\r\nContent-Length: 1\r\n\r\n".encode()
    last = one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

    answers = read_all(raw(harness, one + b"1" + one + b"2" + last + b"3"))

    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert gateway.bodies == [b"1", b"2", b"3"]


def test_events_pass_without_waiting_for_the_next(harness: Harness, gateway: FakeGateway) -> None:
    seen = threading.Event()

    def stream(handler: Handler, _: Received) -> None:
        handler.begin_stream()
        handler.chunk(b"data: 1\n\n")
        assert seen.wait(WAIT_S)
        handler.chunk(b"data: 2\n\n")
        handler.wfile.write(b"0\r\n\r\n")

    gateway.scripts.append(stream)
    connection = harness.connect()
    connection.request("POST", ROLLOUT, b"{}")
    response = connection.getresponse()

    assert response.read1() == b"data: 1\n\n"
    seen.set()
    assert response.read() == b"data: 2\n\n"
    connection.close()


def test_an_http_1_0_harness_gets_the_end_of_the_connection(
    harness: Harness, gateway: FakeGateway
) -> None:
    gateway.scripts.append(
        write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    )

    answer = read_all(raw(harness, f"POST {ROLLOUT} HTTP/1.0\r\n\r\n".encode()))

    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok"


def test_interim_answers_are_dropped(harness: Harness, gateway: FakeGateway) -> None:
    gateway.scripts.append(
        write(
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        )
    )

    assert harness.post(b"{}")[::2] == (200, b"ok")


def test_an_answer_that_ends_with_the_connection_is_chunked_again(
    harness: Harness, gateway: FakeGateway
) -> None:
    gateway.scripts.append(write(b"HTTP/1.0 200 OK\r\n\r\nuntil the end"))

    status, headers, body = harness.post(b"{}")

    assert (status, headers, body) == (200, {"Transfer-Encoding": "chunked"}, b"until the end")


CUT = [
    pytest.param(b"Content-Length: 9\r\n\r\nshort", id="short"),
    pytest.param(b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", id="no last chunk"),
    pytest.param(b"Transfer-Encoding: chunked\r\n\r\n9\r\nshort", id="inside a chunk"),
    pytest.param(b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n", id="no last line"),
    pytest.param(b"Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nx\r\n", id="no chunk"),
]


@pytest.mark.parametrize("rest", CUT)
@pytest.mark.parametrize("path", [ROLLOUT, "/v1/x"], ids=["rollout", "no rollout"])
def test_r4_a_cut_answer_never_ends_cleanly(
    harness: Harness, gateway: FakeGateway, path: str, rest: bytes
) -> None:
    gateway.scripts.append(write(b"HTTP/1.1 200 OK\r\n" + rest))

    with pytest.raises((http.client.IncompleteRead, ConnectionError)) as caught:
        harness.post(b"{}", path)

    if isinstance(caught.value, http.client.IncompleteRead):
        assert caught.value.partial == b"short"  # what came is not withheld
    assert len(gateway.received) == 1


@pytest.mark.parametrize("rest", CUT[1:])
def test_r4_a_cut_answer_that_would_end_with_the_connection_is_reset(
    harness: Harness, gateway: FakeGateway, rest: bytes
) -> None:
    gateway.scripts.append(write(b"HTTP/1.1 200 OK\r\n" + rest))

    with pytest.raises(ConnectionResetError):
        read_all(raw(harness, f"POST {ROLLOUT} HTTP/1.0\r\n\r\n".encode()))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nCont", id="half a head"),
        pytest.param(b"nonsense\r\n\r\n", id="nonsense"),
        pytest.param(b"HTTP/1.1 101 Switching\r\n\r\n", id="an upgrade"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="two lengths",
        ),
    ],
)
def test_r4_what_is_no_answer_ends_the_harness_connection(
    harness: Harness, gateway: FakeGateway, reports: Said, answer: bytes
) -> None:
    gateway.scripts.append(write(answer))

    with pytest.raises(http.client.RemoteDisconnected):
        harness.post(b"{}")

    assert reports.next().startswith("the gateway")


RESET = [
    pytest.param(b"1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", id="a length"),
    pytest.param(b"1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", id="chunks"),
    pytest.param(b"1.1 200 OK\r\n\r\nshort", id="until the end"),
    pytest.param(b"1.0 200 OK\r\n\r\nshort", id="until the end, HTTP/1.0"),
]


@pytest.mark.parametrize("answer", RESET)
@pytest.mark.parametrize("minor", [0, 1])
def test_r4_a_reset_within_an_answer_cuts_it(
    harness: Harness, gateway: FakeGateway, reports: Said, *, answer: bytes, minor: int
) -> None:
    seen = threading.Event()

    def reset(handler: Handler, _: Received) -> None:
        handler.wfile.write(b"HTTP/" + answer)
        assert seen.wait(WAIT_S)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.server.close_request(handler.connection)
        handler.cut()

    gateway.scripts.append(reset)
    sock = raw(harness, f"POST {ROLLOUT} HTTP/1.{minor}\r\nContent-Length: 0\r\n\r\n".encode())
    response = http.client.HTTPResponse(sock, method="POST")
    response.begin()
    assert response.read1(5) == b"short"  # what came is not withheld
    seen.set()

    with sock, pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    response.close()
    assert reports.next().startswith("the gateway")
    assert reports.is_empty


def test_when_the_harness_goes_away_so_does_the_request(
    harness: Harness, gateway: FakeGateway
) -> None:
    arrived, gone = threading.Event(), threading.Event()

    def wait_for_the_end(handler: Handler, _: Received) -> None:
        arrived.set()
        if handler.connection.recv(1) == b"":
            gone.set()
        handler.cut()

    gateway.scripts.append(wait_for_the_end)
    connection = harness.connect()
    connection.request("POST", ROLLOUT, b"{}")
    assert arrived.wait(WAIT_S)

    connection.close()

    assert gone.wait(WAIT_S)


def test_when_the_harness_goes_away_within_a_stream_so_does_the_stream(
    harness: Harness, gateway: FakeGateway
) -> None:
    gone = threading.Event()

    def stream(handler: Handler, _: Received) -> None:
        handler.begin_stream()
        handler.chunk(b"data: 1\n\n")
        with contextlib.suppress(ConnectionError):
            handler.connection.recv(1)
        gone.set()
        handler.cut()

    gateway.scripts.append(stream)
    connection = harness.connect()
    connection.request("POST", ROLLOUT, b"{}")
    response = connection.getresponse()
    assert response.read1() == b"data: 1\n\n"

    response.close()
    connection.close()

    assert gone.wait(WAIT_S)


def test_a_body_that_the_harness_cut_is_never_finished(
    harness: Harness, gateway: FakeGateway
) -> None:
    sock = raw(harness, b"POST /v1/x HTTP/1.1\r\nContent-Length: 900000\r\n\r\n" + LARGE)
    sock.shutdown(socket.SHUT_WR)

    assert read_all(sock) == b""
    assert gateway.closed.acquire(timeout=WAIT_S)
    assert all(len(received.raw) < 900_000 for received in gateway.received)


@pytest.mark.parametrize("path", [ROLLOUT, "/v1/x"], ids=["collected", "streamed"])
def test_an_early_answer_reaches_a_harness_that_is_still_sending(
    start_shim: Callable[..., Shim], harness: Harness, path: str
) -> None:
    delivered = threading.Event()

    def refuse_at_once(server: socket.socket) -> None:
        peer, _ = server.accept()
        with peer:
            read_until(peer, b"\r\n\r\n")
            peer.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
            delivered.wait(WAIT_S)  # and the body is never read

    with socket.create_server(("127.0.0.1", 0)) as server:
        shim = start_shim(f"http://127.0.0.1:{server.getsockname()[1]}", body_bytes_max=1 << 25)
        answering = threading.Thread(target=refuse_at_once, args=(server,))
        answering.start()
        body = bytes(1 << 25)
        sock = raw(type(harness)(shim.port), b"")
        head = f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        sending = threading.Thread(target=send_what_is_taken, args=(sock, head.encode() + body))
        sending.start()
        answer = read_until(sock, b"big")
        delivered.set()
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        for thread in (answering, sending):
            thread.join()
        sock.close()

    assert answer.startswith(b"HTTP/1.1 413 Too Large\r\n")


def send_what_is_taken(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        sock.sendall(data)


def test_a_websocket_is_told_to_come_back_with_http(harness: Harness, gateway: FakeGateway) -> None:
    request = f"GET {ROLLOUT} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    answer = read_all(raw(harness, request.encode()))

    assert answer.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert code_of(answer) == "upgrade_unsupported"
    assert gateway.received == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"nonsense\r\n\r\n", id="no request line"),
        pytest.param(
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            id="two lengths",
        ),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", id="no length"),
        pytest.param(
            b"POST /sessions/s HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
            id="no chunk, collected",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
            id="no chunk, streamed",
        ),
        pytest.param(b"GET / HTTP/1.1\r\nA : 1\r\n\r\n", id="space before the colon"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", id="bare line feeds"),
    ],
)
def test_a_request_that_can_be_read_in_two_ways_is_refused(
    harness: Harness, gateway: FakeGateway, request_bytes: bytes
) -> None:
    answer = read_all(raw(harness, request_bytes))

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert code_of(answer) == "bad_request"
    assert gateway.received == []


@pytest.mark.parametrize("path", [ROLLOUT, "/v1/x"])
def test_a_gateway_that_refuses_is_said_to_the_harness(
    start_shim: Callable[..., Shim], harness: Harness, path: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    connection = type(harness)(start_shim(f"http://127.0.0.1:{port}").port).connect()

    for body in (b"{}", LARGE):
        connection.request("POST", path, body)
        response = connection.getresponse()
        error = json.loads(response.read())["error"]
        assert (response.status, error["code"]) == (502, "gateway_unreachable")
        assert str(port) in error["message"]
    connection.close()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Connection: close\r\n", 502),
        (b"", 502),
        (b"Upgrade: websocket\r\n", 426),
        (b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400),
    ],
)
def test_a_head_that_is_refused_gets_no_body(
    start_shim: Callable[..., Shim], harness: Harness, head: bytes, status: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shim = start_shim(f"http://127.0.0.1:{port}")
    sock = raw(type(harness)(shim.port), b"HEAD / HTTP/1.1\r\n" + head + b"\r\n")
    sock.shutdown(socket.SHUT_WR)

    answer = read_all(sock)

    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.partition(b"\r\n\r\n")[2] == b""


def test_a_report_comes_after_the_answer(
    start_shim: Callable[..., Shim],
    harness: Harness,
    reports: Said,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    answered = threading.Event()
    waits: list[bool] = []
    real = reports.say

    def say(message: str) -> None:
        waits.append(answered.wait(WAIT_S))  # as a writer that is held up would
        real(message)

    monkeypatch.setattr(reports, "say", say)
    plain = type(harness)(start_shim(f"http://127.0.0.1:{port}").port)

    assert plain.post(b"{}")[0] == 502

    answered.set()
    assert str(port) in reports.next()
    assert waits == [True]


def test_proxy_settings_of_the_environment_are_not_looked_at(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert harness.post(b"{}")[0] == 200


def test_a_gateway_behind_tls(
    start_shim: Callable[..., Shim],
    harness: Harness,
    gateway: FakeGateway,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    gateway.socket = context.wrap_socket(gateway.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    secure = type(harness)(start_shim(gateway.url.replace("http:", "https:")).port)

    body = LARGE
    for _ in range(3):
        body += b"a little more"
        assert secure.post(body)[0] == 200

    assert [received.framed for received in gateway.received] == [False, True, True]
    assert gateway.connections == 1
