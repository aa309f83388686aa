# SPDX-License-Identifier: Apache-2.0
"""Three clients for one Unix socket: a bare connection, the hop's own, and httpx.

Each keeps as many connections as it has calls in flight, and checks every answer: one that is not
the expected one ends the benchmark instead of being counted.
"""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from rollout_router.bench.app import ANSWER
from rollout_router.bench.connection import BenchFailed
from rollout_router.transport.hop import HopClient, HopRequest
from rollout_router.transport.hop_wire import request_head

__all__ = ["BARE", "WORKS", "Call", "Work", "clients_of"]

BARE: Final = "bare"
_IN_FLIGHT: Final = 64
_IDLE_S: Final = 3600.0  # no connection is made anew between two rounds
_OK: Final = b"HTTP/1.1 200 "
_HEADERS: Final = [
    (b"host", b"owner"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"rollout-router-bench"),
    (b"rollout-hop", b"1"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What each client does in one measurement: *calls*, of which *in_flight* at a time."""

    name: str
    request: HopRequest
    calls: int
    in_flight: int


Call = Callable[[Work], Awaitable[None]]
"""Makes one call, and reads its answer to the end."""


def _work(name: str, body_bytes: int, *, calls: int, in_flight: int = 1) -> Work:
    request = HopRequest(
        method="POST", target=b"/v1/responses", headers=_HEADERS, body=bytes(body_bytes)
    )
    return Work(name=name, request=request, calls=calls, in_flight=in_flight)


WORKS: Final = [
    _work("5kb", 5_000, calls=16),
    _work("1mb", 1_000_000, calls=4),
    _work("5kb_in_flight", 5_000, calls=_IN_FLIGHT, in_flight=_IN_FLIGHT),
]


def clients_of(socket: str, closing: AsyncExitStack) -> tuple[dict[str, Call], list[str]]:
    """The clients by name, the bare one first; and which one is missing, and why.

    *closing* closes their connections, on the loop on which they were used.
    """
    clients = {BARE: _bare(socket, closing), "hop": _hop(socket, closing)}
    if importlib.util.find_spec("httpx") is None:
        return clients, ["httpx is not installed: it is not among the clients of the hop"]
    return {**clients, "httpx": _httpx(socket, closing)}, []


class _Connection(asyncio.Protocol):
    """Parses nothing: an answer is over with the bytes that are known to be its last."""

    def __init__(self) -> None:
        self._answer = bytearray()
        self._over: asyncio.Future[bytes] | None = None

    def ask(self, transport: asyncio.Transport, wire: bytes) -> asyncio.Future[bytes]:
        self._answer = bytearray()
        self._over = asyncio.get_running_loop().create_future()
        transport.write(wire)
        return self._over

    def data_received(self, data: bytes) -> None:
        self._answer += data
        refused = not self._answer.startswith(_OK)  # a head comes in one piece
        if (refused or self._answer.endswith(ANSWER)) and self._over and not self._over.done():
            self._over.set_result(bytes(self._answer))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._over and not self._over.done():
            self._over.set_exception(exc or ConnectionResetError("the owner closed"))


def _bare(socket: str, closing: AsyncExitStack) -> Call:
    """The reference: bytes that are ready go out, and an answer comes in."""
    idle: list[tuple[asyncio.Transport, _Connection]] = []
    wires = {work.name: request_head(work.request) + work.request.body for work in WORKS}

    async def call(work: Work) -> None:
        if idle:
            transport, connection = idle.pop()
        else:
            loop = asyncio.get_running_loop()
            transport, connection = await loop.create_unix_connection(_Connection, socket)
            closing.callback(transport.abort)
        if transport.is_closing():
            raise ConnectionResetError("the owner closed between two calls")
        answer = await connection.ask(transport, wires[work.name])
        if not answer.startswith(_OK):
            raise BenchFailed(f"a call of {work.name} was answered {answer[:500]!r}")
        idle.append((transport, connection))

    return call


def _hop(socket: str, closing: AsyncExitStack) -> Call:
    """Our own, as a forwarder uses it."""
    client = HopClient(idle_s=_IDLE_S)
    closing.push_async_callback(client.close)

    async def call(work: Work) -> None:
        answer = await client.send(socket, work.request)
        _check(work, answer.status, b"".join([piece async for piece in answer.body()]))

    return call


def _httpx(socket: str, closing: AsyncExitStack) -> Call:
    """Its pool keeps as many connections as the others keep; like them it has no time-outs."""
    import httpx  # noqa: PLC0415 - a development dependency, which may be missing

    limits = httpx.Limits(max_keepalive_connections=_IN_FLIGHT, keepalive_expiry=_IDLE_S)
    transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits)
    client = httpx.AsyncClient(transport=transport, timeout=None)  # noqa: S113 - a batch has one
    closing.push_async_callback(client.aclose)

    async def call(work: Work) -> None:
        asked = work.request
        url = "http://owner" + asked.target.decode()
        try:
            async with client.stream(
                asked.method, url, headers=asked.headers, content=asked.body
            ) as answer:
                body = b"".join([piece async for piece in answer.aiter_raw()])
        except httpx.TransportError as error:
            raise ConnectionError(repr(error)) from error
        _check(work, answer.status_code, body)

    return call


def _check(work: Work, status: int, body: bytes) -> None:
    if (status, body) != (200, ANSWER):
        raise BenchFailed(f"a call of {work.name} was answered {status}: {body[:500]!r}")
