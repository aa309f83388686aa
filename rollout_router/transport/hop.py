# SPDX-License-Identifier: Apache-2.0
"""The hop: one request to the private socket of the worker that owns its rollout.

Keeps, for its part:

* R2 nothing is sent twice. Only a connection on which not one byte of this request was written is
  replaced; after that every loss is the caller's to judge, who knows whether its body was asked
  for: until the owner's ``100 Continue`` nothing is taken from ``rest``.
* R4 an answer that was cut raises :class:`HopLost` at its reader; it never ends like a whole one.

What it is not: it does not route, retry, time out or read claims. It waits as long as the owner
lives; whoever waits for it asks the life lock meanwhile, and cancels.

Connections are kept per socket path, last in first out, and reused only when nothing odd came.
"""

import asyncio
import errno
import socket as sockets
from collections.abc import AsyncIterator, Callable
from typing import Final

from rollout_router.transport.hop_connection import (
    AnswerRefused,
    Body,
    ConnectFailed,
    HopConnection,
    HopLost,
)
from rollout_router.transport.hop_wire import AnswerReader, HopRequest, request_head

__all__ = [
    "CONNECT_TIMEOUT_S",
    "IDLE_CONNECTIONS_MAX",
    "IDLE_S",
    "AnswerRefused",
    "Body",
    "ConnectFailed",
    "HopClient",
    "HopLost",
    "HopRequest",
    "HopResponse",
    "HopStarted",
]

IDLE_S: Final = 5.0
"""An unused connection is closed after this. Owners wait longer, so that only forwarders close; a
worker that leaves waits for it, so it is short."""

IDLE_CONNECTIONS_MAX: Final = 256
"""Unused connections kept per owner: a descriptor at both ends each. With 64, and 256 calls in
flight, most calls made one: a forwarder took half as much again."""

CONNECT_TIMEOUT_S: Final = 5.0
"""A Unix socket connects at once or not at all; this bounds a loop that does not turn."""


class HopResponse:
    """An answer whose head is there.

    Read :meth:`body` to its end, or call :meth:`aclose`; otherwise the connection stays taken.
    One reader at a time.
    """

    __slots__ = ("_answer", "_connection", "_keep", "headers", "status")

    def __init__(
        self,
        answer: AnswerReader,
        connection: HopConnection,
        keep: Callable[[HopConnection], None],
    ) -> None:
        self.status = answer.status
        self.headers = answer.headers  # end to end, names in lower case; content-length is kept
        self._answer = answer
        self._connection: HopConnection | None = connection
        self._keep = keep
        if answer.complete and not answer.buffered_bytes:
            self._settle()

    def body(self) -> AsyncIterator[bytes]:
        """The body as it comes, in pieces of no particular size and none of them empty.

        While it is not read, at most ``BUFFERED_BYTES_MAX`` and one read of the socket wait here;
        then the owner waits.

        Raises:
            HopLost: the answer was cut; it must not be ended for the client either (R4).
        """
        return self

    def whole(self) -> bytes | None:
        """The body, in place of reading it, where all of it is here already; else None."""
        if not self._answer.complete:
            return None
        body = self._answer.take()
        self._settle()
        return body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        answer, connection = self._answer, self._connection
        while not answer.buffered_bytes:
            if answer.complete:
                self._settle()
                raise StopAsyncIteration
            if connection is None:
                raise HopLost("the answer was given up before its end")
            try:
                await connection.progress()
            except BaseException:
                self._settle()
                raise
        piece = answer.take()
        if answer.complete:
            self._settle()
        elif connection is not None:
            connection.resume_reading()
        return piece

    async def aclose(self) -> None:
        """Be done with it. An answer that was not read to its end is aborted, and so is its work.

        Calling it again does nothing.
        """
        self._settle()

    def _settle(self) -> None:
        """Keep the connection, if the answer was read to its end, or abort it. Once."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._answer.complete and not self._answer.buffered_bytes:
            self._keep(connection)
        else:
            connection.abort()


class HopStarted:
    """A whole request that is on its way.

    Its answer is heard of through :meth:`listen`, or waited for through :meth:`response`. One of
    :meth:`response`, :meth:`body` and :meth:`abort` is called, or its connection stays taken.

    Attributes:
        answer: what of it is there.
    """

    __slots__ = ("_connection", "_keep", "answer")

    def __init__(
        self,
        answer: AnswerReader,
        connection: HopConnection,
        keep: Callable[[HopConnection], None],
    ) -> None:
        self.answer = answer
        self._connection = connection
        self._keep = keep

    def listen(self, then: Callable[[], None] | None) -> None:
        """Call *then* once, from the loop: when the answer has changed, or will not change."""
        self._connection.listen(then)

    def body(self) -> bytes:
        """That of an answer that is complete; this is over."""
        self._connection.check_asked(self.answer)
        body = self.answer.take()
        self._keep(self._connection)
        return body

    async def response(self) -> HopResponse:
        """The answer, once its head is there. Raises, and is cancelled, as a :meth:`send`."""
        try:
            await self._connection.answered(self.answer)
        except BaseException:
            self.abort()
            raise
        return HopResponse(self.answer, self._connection, self._keep)

    def abort(self) -> None:
        """Give it up, which tells the owner to stop; nobody is called any more."""
        self._connection.listen(None)
        self._connection.abort()


class HopClient:
    """The connections of one worker to the private sockets of others. Lives on one loop."""

    def __init__(self, *, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._idle: dict[str, list[HopConnection]] = {}  # by socket path, oldest first
        self._retirement: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(self, socket: str, request: HopRequest) -> HopResponse:
        """Send *request* to the owner that listens at path *socket*; wait for its answer's head.

        A whole body goes out with its head. With ``request.rest`` nothing of the body goes out
        before the owner's ``100 Continue``; a final answer that comes instead, or while the body
        is being sent, is the answer, and ``rest`` is left where it is. Closing ``rest`` is up to
        whoever made it; what it raises is raised here.

        A cancelled call aborts its connection, which tells the owner to stop.

        Raises:
            ConnectFailed: nothing was sent.
            HopLost: the connection broke; AnswerRefused, which is one: what came was no answer.
            ValueError: the request cannot be sent as it is; see ``request_head`` and
                ``BodyFramer``. The owner cannot take what it saw of it for a whole one.
        """
        if self._closed:
            raise RuntimeError("this hop client was closed")
        head = request_head(request)
        connection = self._unused(socket) or await self._connect(socket)
        try:
            answer = await connection.exchange(head, request)
        except BaseException:
            connection.abort()
            raise
        return HopResponse(answer, connection, self._keep)

    def start(self, socket: str, head: bytes, body: Body) -> HopStarted | None:
        """Send a whole request at once, where a connection to *socket* is idle; else None.

        Its *head* is right, and not that of a HEAD.
        """
        connection = None if self._closed else self._unused(socket)
        if connection is None:
            return None
        return HopStarted(connection.start(head, body), connection, self._keep)

    async def close(self) -> None:
        """Close what is idle, and keep nothing from now on. Answers in hand can be read on."""
        self._closed = True
        if self._retirement is not None:
            self._retirement.cancel()
            self._retirement = None
        idle = [connection for path in self._idle.values() for connection in path]
        self._idle.clear()
        for connection in idle:
            connection.abort()
        for connection in idle:
            await connection.closed.wait()

    def _unused(self, path: str) -> HopConnection | None:
        idle = self._idle.get(path)
        if idle is None:
            return None
        found = None
        while idle and found is None:
            connection = idle.pop()
            if connection.idle_s < self._idle_s and connection.is_quiet():
                found = connection
            else:
                connection.abort()
        self._drop_empty(path)
        return found

    async def _connect(self, path: str) -> HopConnection:
        try:
            sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        except OSError as error:
            raise ConnectFailed(path, error) from error
        try:
            sock.settimeout(0)
            # Not the loop's connect: asyncio takes EAGAIN, a full backlog, for a connection that
            # is being made, and fails later and elsewhere. Without blocking this is one call.
            sock.connect(path)
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_unix_connection(
                    lambda: HopConnection(path, loop, self._forget), sock=sock
                )
        except OSError as error:
            sock.close()
            raise ConnectFailed(path, error) from error
        except BaseException:
            sock.close()
            raise
        if not connection.is_quiet():
            connection.abort()
            reset = ConnectionResetError(errno.ECONNRESET, "closed before anything was sent")
            raise ConnectFailed(path, reset)
        return connection

    def _keep(self, connection: HopConnection) -> None:
        idle = self._idle.setdefault(connection.path, [])
        if self._closed or len(idle) >= IDLE_CONNECTIONS_MAX or not connection.finish():
            connection.abort()
            self._drop_empty(connection.path)
            return
        idle.append(connection)
        if self._retirement is None:
            loop = asyncio.get_running_loop()
            self._retirement = loop.call_later(self._idle_s, self._retire)

    def _retire(self) -> None:
        self._retirement = None
        loop = asyncio.get_running_loop()
        due = loop.time() - self._idle_s
        for path, idle in list(self._idle.items()):
            while idle and idle[0].idle_since <= due:
                idle.pop(0).abort()
            self._drop_empty(path)
        if self._idle:
            oldest = min(idle[0].idle_since for idle in self._idle.values())
            self._retirement = loop.call_at(oldest + self._idle_s, self._retire)

    def _forget(self, connection: HopConnection) -> None:
        """The connection was lost; if it was idle, it is so no longer."""
        idle = self._idle.get(connection.path, [])
        if connection in idle:
            idle.remove(connection)
            self._drop_empty(connection.path)

    def _drop_empty(self, path: str) -> None:
        if not self._idle.get(path):
            self._idle.pop(path, None)
