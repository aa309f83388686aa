# SPDX-License-Identifier: Apache-2.0
"""A gateway that understands histories, answers what a test scripts, and remembers what it saw."""

import http.client
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.frame import parse_frame, rebuild
from rollout_router.transport.sandbox.shim import Shim

JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Received:
    """One request as it came over the wire."""

    connection: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    raw: bytes

    def header(self, name: str) -> str | None:
        values = wire.header_values(self.headers, name)
        return values[0] if values else None

    @property
    def framed(self) -> bool:
        return self.header("Content-Type") == wire.CONTENT_TYPE

    @property
    def kept(self) -> bool:
        return self.header(wire.HISTORY_HEADER) == wire.KEEP


Script = Callable[["Handler", Received], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "FakeGateway"

    def setup(self) -> None:
        super().setup()
        self.number = self.server.count_connection()

    def finish(self) -> None:
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it overrides
        del format, args

    def serve(self) -> None:
        received = Received(
            connection=self.number,
            method=self.command,
            path=self.path,
            headers=list(self.headers.items()),
            raw=self._body(),
        )
        script = self.server.remember(received)
        script(self, received)

    do_GET = do_POST = do_HEAD = do_DELETE = serve  # noqa: N815 - the names that http.server calls

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self, status: int, body: bytes = b"{}", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def answer_unsized(self, framing: str, status: int, body: bytes, **headers: str) -> None:
        """*framing*: ``chunked``, or ``close`` where the end of the connection ends the body."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if framing == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(body), 10_000):
            piece = body[at : at + 10_000]
            self.chunk(piece) if framing == "chunked" else self.wfile.write(piece)
        if framing == "chunked":
            self.chunk(b"")
        else:
            self.close_connection = True

    def begin_stream(self, received: Received | None = None) -> None:
        """Begin to stream; that the body of the frame *received* is held is said, too."""
        self.send_response(200)
        if received is not None:
            target = parse_frame(received.raw, length_max=1 << 26).target
            self.send_header(wire.HISTORY_HEADER, wire.KEPT + target)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def cut(self) -> None:
        """End the connection where it stands."""
        self.close_connection = True


class FakeGateway(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scripts: deque[Script] = deque()
        self.received: list[Received] = []
        self.bodies: list[bytes] = []  # what an application would have been given
        self.bases: dict[str, dict[str, bytes]] = {}
        self.connections = 0
        self.closed = threading.Semaphore(0)  # released as each connection is closed here
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count_connection(self) -> int:
        with self._lock:
            self.connections += 1
            return self.connections

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed.release()

    def remember(self, received: Received) -> Script:
        """The script for this request: the next one, or to understand it."""
        with self._lock:
            self.received.append(received)
            return self.scripts.popleft() if self.scripts else understand

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request, client_address  # a harness that went away is what some tests are about


def understand(handler: Handler, received: Received) -> None:
    """Keep and rebuild, as the owner of a rollout does."""
    gateway = handler.server
    rollout = wire.path_rollout(received.path) or received.header(wire.ROLLOUT_HEADER) or ""
    bases = gateway.bases.setdefault(rollout, {wire.EMPTY_SHA256: b""})
    body = received.raw
    if received.framed:
        frame = parse_frame(body, length_max=1 << 26)
        if frame.base not in bases:
            handler.answer(409, Rollout_History=wire.RESYNC)
            return
        body = rebuild(frame, bases[frame.base])
    gateway.bodies.append(body)
    if received.framed or received.kept:
        bases[wire.sha256_hex(body)] = body
        handler.answer(200, b'{"ok":1}', Rollout_History=wire.KEPT + wire.sha256_hex(body))
    else:
        handler.answer(200, b'{"ok":1}')


@dataclass(frozen=True)
class Harness:
    """What a harness does: one request on a connection of its own."""

    port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def post(
        self, body: bytes, path: str = "/ng-rollout/r1/v1/chat/completions", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("POST", path, body, {"Content-Type": JSON, **named})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    server = FakeGateway()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Said:
    """What the shim told its operator, which may be after it answered."""

    def __init__(self) -> None:
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def say(self, message: str) -> None:
        self._said.put(message)

    def next(self) -> str:
        return self._said.get(timeout=30)

    @property
    def is_empty(self) -> bool:
        return self._said.empty()


@pytest.fixture
def reports() -> Said:
    return Said()


@pytest.fixture
def start_shim(gateway: FakeGateway, reports: Said) -> Iterator[Callable[..., Shim]]:
    shims: list[Shim] = []

    def start(url: str | None = None, **settings: Any) -> Shim:
        shim = Shim(url or gateway.url, report=reports.say, **settings)
        shims.append(shim)
        shim.start()
        return shim

    yield start
    for shim in shims:
        shim.stop()


@pytest.fixture
def harness(start_shim: Callable[..., Shim]) -> Harness:
    return Harness(start_shim().port)
