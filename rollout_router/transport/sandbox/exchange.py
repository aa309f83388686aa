# SPDX-License-Identifier: Apache-2.0
"""One request and its response over one connection to the gateway.

S2: the connection is the exchange's own until the response is consumed or the exchange is closed.
S3: nothing is sent twice. Only a kept connection that turns out to be closed before any byte of
the request went out is replaced by a fresh one. R4: a response that was cut raises ``Cut``.
"""

import socket
from typing import Iterator, List, Optional

from rollout_router.transport.sandbox.http1 import (
    BadMessage,
    Body,
    Framing,
    Response,
    parse_response,
    response_framing,
)
from rollout_router.transport.sandbox.pool import Connection, Pool, SendFailed, Watch
from rollout_router.transport.sandbox.streams import Cut, Reader, pieces

__all__ = ["Exchange", "GatewayUnreachable"]


class GatewayUnreachable(Exception):  # noqa: N818 - names what happened
    """No connection to the gateway could be made; nothing was sent."""


class Exchange:
    """Write the request, then read the response.

    Args:
        pool: where the connection comes from, and goes back to.
        method: of the request; it decides whether the response has a body.
        harness: the socket to watch: when it ends, every wait here raises ``HarnessGone``.
    """

    def __init__(self, pool: Pool, method: str, harness: Optional[socket.socket]) -> None:
        self._pool = pool
        self._method = method
        self._harness = harness
        self._watch = Watch(harness)
        self._connection: Optional[Connection] = None
        self._whole = True  # all of the request went out, so the connection may live on
        self._reader = Reader(self._recv, peer="the gateway")
        self._framing = Framing(Body.EMPTY)
        self._keeps_alive = False

    @property
    def framing(self) -> Framing:
        """Of the response."""
        return self._framing

    @property
    def answered_early(self) -> bool:
        """The gateway answered, or closed, before the request was out: write no more of it."""
        return not self._whole

    def begin(self, buffers: List[bytes]) -> None:
        """Send the head, and what there is of the body.

        Raises:
            GatewayUnreachable: nothing was sent.
            Cut: the connection failed while it was sent.
            HarnessGone: the harness closed its connection.
        """
        kept = self._pool.acquire()
        if kept is not None:
            self._connection = kept
            if self._send(buffers):
                return
            kept.close()
        try:
            self._connection = self._pool.connect()
        except OSError as error:
            raise GatewayUnreachable(str(error)) from error
        self._send(buffers)

    def write(self, buffers: List[bytes]) -> None:
        """Send more of the body."""
        if self._whole:
            self._send(buffers)

    def read_head(self) -> Response:
        """The head of the final response; interim ones are dropped.

        Raises:
            Cut: the connection ended before it, or it is not HTTP/1.
            HarnessGone: the harness closed its connection.
        """
        self._watch = Watch(self._harness)
        while True:
            response = self._next_head()
            if response.status >= 200:  # noqa: PLR2004 - below are interim responses
                break
            if response.status == 101:  # noqa: PLR2004 - no upgrade was asked for
                raise Cut("the gateway switched protocols")
        self._keeps_alive = response.keeps_alive and self._framing.body is not Body.CLOSE
        return response

    def body(self) -> Iterator[bytes]:
        """The response's body as it arrives; at its end the connection goes back to the pool.

        Raises:
            Cut: the body ended early, or its framing is broken.
            HarnessGone: the harness closed its connection.
        """
        left = self._framing.length
        try:
            for piece in pieces(self._reader, self._framing):
                left -= len(piece)
                if left == 0:  # of a body with a length, the last piece: free before it goes on
                    self._finish()
                yield piece
        except BadMessage as error:
            raise Cut(f"the gateway's answer is not HTTP/1: {error}") from error
        self._finish()

    @property
    def buffered(self) -> bool:
        """Whether bytes after the head are here already."""
        return self._reader.buffered > 0

    def close(self) -> None:
        """Close the connection, unless it went back to the pool. May be called again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _finish(self) -> None:
        connection = self._connection
        more = self._reader.buffered  # the gateway sent more than it announced
        if connection is not None and self._keeps_alive and self._whole and not more:
            self._connection = None
            self._pool.release(connection)
        self.close()

    def _send(self, buffers: List[bytes]) -> bool:
        """Send; False where not one byte went out, because the connection was closed before.

        A connection that fails later may still hold the gateway's early answer: reading goes on.
        """
        try:
            self._whole = self._open().send(buffers, self._watch)
        except SendFailed as error:
            self._whole = False
            return error.bytes_sent > 0
        except OSError as error:
            raise Cut(f"the gateway's connection failed: {error}") from error
        return True

    def _next_head(self) -> Response:
        try:
            head = self._reader.head()
            if head is None:
                raise Cut("the gateway closed the connection before it answered")
            response = parse_response(head)
            self._framing = response_framing(self._method, response)
        except BadMessage as error:
            raise Cut(f"the gateway's answer is not HTTP/1: {error}") from error
        return response

    def _recv(self, bytes_max: int) -> bytes:
        try:
            return self._open().recv(bytes_max, self._watch)
        except OSError as error:
            raise Cut(f"the gateway's connection failed: {error}") from error

    def _open(self) -> Connection:
        if self._connection is None:
            raise Cut("the exchange is closed")
        return self._connection
