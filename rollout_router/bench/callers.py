# SPDX-License-Identifier: Apache-2.0
"""Many keep-alive connections on one loop, as cheap as can be.

They share the processors with what is measured, so they write bytes that are ready, and parse next
to nothing.
"""

import asyncio
import re
import resource
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from urllib.parse import urlsplit

from rollout_router.bench.connection import BenchFailed

__all__ = ["Caller", "callers", "header", "many_descriptors", "wire"]

_OK: Final = b"HTTP/1.1 200 "
_SHOWN_BYTES: Final = 500


class Caller(asyncio.Protocol):
    """One connection, one call at a time. Nothing is parsed: an answer ends with known bytes."""

    def __init__(self) -> None:
        self._answer = bytearray()
        self._end = b""
        self._over: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for the first call."""
        self._transport = transport

    def ask(self, request: bytes, end: bytes) -> asyncio.Future[bytes]:
        """Send *request*; the answer so far, once it ends with *end*.

        The future raises BenchFailed: the status is another than 200, or the connection broke.
        """
        self._answer = bytearray()
        self._transport.write(request)  # type: ignore[attr-defined]  # a TCP transport
        return self.hear(end)

    def hear(self, end: bytes) -> asyncio.Future[bytes]:
        """The answer from its beginning, once more has come and it ends with *end*."""
        self._end = end
        self._over = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            self._over.set_exception(BenchFailed("a connection was closed between two calls"))
        return self._over

    def data_received(self, data: bytes) -> None:
        """Some of the answer."""
        self._answer += data
        if self._over is None or self._over.done():
            return
        if not self._answer.startswith(_OK):  # the first line comes in one piece
            self._fail(f"a call was answered {bytes(self._answer[:_SHOWN_BYTES])!r}")
        elif self._answer.endswith(self._end):
            self._over.set_result(bytes(self._answer))

    def connection_lost(self, exc: Exception | None) -> None:
        """An answer that is waited for will not come."""
        if self._over is not None and not self._over.done():
            self._fail(f"a connection broke before its answer was whole: {exc!r}")

    def close(self) -> None:
        """Close it."""
        self._transport.close()

    def _fail(self, what: str) -> None:
        if self._over is not None:
            self._over.set_exception(BenchFailed(what))


@asynccontextmanager
async def callers(url: str, count: int) -> AsyncIterator[Sequence[Caller]]:
    """So many connections to *url*; closed afterwards.

    Raises:
        BenchFailed: one could not be made.
    """
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    made: list[Caller] = []
    try:
        for _ in range(count):
            _, caller = await loop.create_connection(Caller, parts.hostname or "", parts.port or 0)
            made.append(caller)
        yield made
    except OSError as error:
        raise BenchFailed(f"connection {len(made)} to {url} cannot be made: {error}") from error
    finally:
        for each in made:
            each.close()


def wire(rollout_id: str, body: bytes, *headers: str) -> bytes:
    """A call of a rollout in Chat Completions, as it goes over a connection."""
    lines = [
        f"POST /sessions/{rollout_id}/v1/chat/completions HTTP/1.1",
        "Host: bench",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def header(answer: bytes, name: bytes) -> bytes:
    """The value of a header of *answer*.

    Raises:
        BenchFailed: it has none of that name.
    """
    found = re.search(rb"^%b: ([^\r]*)\r$" % name, answer, re.IGNORECASE | re.MULTILINE)
    if found is None:
        raise BenchFailed(f"an answer has no {name!r}: {answer[:_SHOWN_BYTES]!r}")
    return found[1]


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Allow this process as many descriptors as it may have, for a while; workers do it alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
