# SPDX-License-Identifier: Apache-2.0
"""The client's side of one exchange: its body, its answer, and its going away (R4).

The body is read once and kept as far as it was read, so that a request that could not be handed to
its owner can be routed again. An HTTP/1.0 client gets a buffered answer with Content-Length: to
such a client the end of the connection is the end of the answer, so a cut would look clean.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.claims import Claim
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.routing.gone import GONE_KEY, Gone
from rollout_router.routing.guard import Stop
from rollout_router.routing.headers import Headers, first, without

__all__ = ["BUFFERED_ANSWER_BYTES_MAX", "READ_AHEAD_BYTES_MAX", "Client", "ClientGone"]

BUFFERED_ANSWER_BYTES_MAX: Final = 64 * 1024**2
"""The longest answer that is buffered for an HTTP/1.0 client; beyond it the answer is cut."""

READ_AHEAD_BYTES_MAX: Final = 1024**2
"""What is read of a body while its owner lets it wait: a server says that a client left only to who
has read all that came before. As much again as a forwarder holds of a body."""


class ClientGone(Exception):  # noqa: N818 - names what happened
    """The client closed its connection: there is nobody to answer, and its work is cancelled."""


class Client:
    """What the router does with the ASGI ``receive`` and ``send`` of one HTTP request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._told: Gone | None = scope.get(GONE_KEY)
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._headers: Headers = scope["headers"]
        self.handed_on = False  # the body is being streamed: it cannot be routed again
        self._whole = False
        self._filled: asyncio.Event | None = None  # set when it is whole, where somebody waits
        self._reading = asyncio.Lock()  # the rest may be asked for while it is read ahead
        self._buffer: list[bytes] | None = [] if scope["http_version"] == "1.0" else None
        self._buffered_bytes = 0
        self._is_head = scope["method"] == "HEAD"
        self._held_start: Message | None = None
        self.gone = asyncio.Event()  # set when the client left, or has its whole answer
        self.started = False
        self.complete = False
        self.status: int | None = None  # of the answer, once it has started

    @property
    def body_is_whole(self) -> bool:
        """True when every byte of the request body is in memory."""
        return self._whole and not self.handed_on

    async def read_body(self, *, bytes_max: int, claim: Claim) -> bytes:
        """The whole request body.

        Raises:
            Refusal: 413 ``body_too_large``; an announced length is believed before any of the
                body is read, and else the rest of the body was not read.
            ClientGone: the client left before its body was complete.
        """
        announced = first(self._headers, b"content-length") or b""
        announced_bytes = int(announced) if announced.isdigit() else 0
        if announced_bytes <= bytes_max:
            await self.fill(bytes_max + 1)
        if max(announced_bytes, self._size_bytes) > bytes_max:
            raise Refusal(
                "body_too_large",
                f"the request body of rollout {claim.rollout_id} is longer than {bytes_max} bytes",
                rollout_id=claim.rollout_id,
                claim_epoch=claim.claim_epoch,
            )
        return self.buffered()

    async def fill(self, bytes_enough: int) -> None:
        """Read the body until it is whole or *bytes_enough* are in memory.

        Raises:
            ClientGone: the client left before that.
        """
        while not self._whole and self._size_bytes < bytes_enough:
            async with self._reading:
                await self._read_chunk()

    async def read_ahead(self, on_gone: Callable[[], None]) -> None:
        """Read on while an owner lets the rest wait; call *on_gone* if the client leaves meanwhile.

        Ends when ``READ_AHEAD_BYTES_MAX`` more are in memory, the body is whole, or somebody
        streams the rest. May be cancelled.
        """
        enough = self._size_bytes + READ_AHEAD_BYTES_MAX
        try:
            while not self.handed_on and not self._whole and self._size_bytes < enough:
                async with self._reading:
                    await self._read_chunk()
        except ClientGone:
            on_gone()

    def buffered(self) -> bytes:
        """The bytes in memory, joined; a body that came in one piece is not copied."""
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    async def rest(self) -> AsyncIterator[bytes]:
        """Stream what :meth:`buffered` did not give; then the request cannot be routed again."""
        self.handed_on = True
        ended = False
        while not ended:
            async with self._reading:
                if len(self._chunks) == 1 and not self._whole:
                    await self._read_chunk()
                ahead, self._chunks[1:] = self._chunks[1:], []
                ended = self._whole
            for chunk in ahead:
                yield chunk

    def watching(self, on_gone: Callable[[], None]) -> Coroutine[Any, Any, None] | Stop:
        """Call *on_gone* if the client leaves before its answer is complete.

        By its server, where that one tells; else by :meth:`watch`.
        """
        if self._told is None:
            return self.watch(on_gone)

        def left() -> None:
            self._left(on_gone)

        return self._told.listen(left)

    async def watch(self, on_gone: Callable[[], None]) -> None:
        """Wait at ``receive`` for the client to leave.

        Starts to watch when the body is whole: until then whoever reads the body notices.
        """
        if not self._whole:
            self._filled = asyncio.Event()
            await self._filled.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left(on_gone)

    async def send(self, message: Message) -> None:
        """Pass one message of the answer on, and note how far the answer is."""
        if self._buffer is not None:
            await self._send_buffered(message)
            return
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._finish()

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer of the router's own; what was buffered of another is dropped."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    def _left(self, on_gone: Callable[[], None]) -> None:
        self.gone.set()
        if not self.complete:
            on_gone()

    async def _read_chunk(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone.set()
            raise ClientGone
        if not message.get("more_body", False):
            self._whole = True
            if self._filled is not None:
                self._filled.set()
        if chunk := message.get("body", b""):
            self._chunks.append(chunk)
            self._size_bytes += len(chunk)

    async def _send_buffered(self, message: Message) -> None:
        if self._buffer is None:
            raise RuntimeError("this client's answers are not buffered")
        if message["type"] == "http.response.start":
            self._held_start = message
            self._buffer.clear()  # an answer that was given up, and of which nothing was sent
            self._buffered_bytes = 0
            return
        self._buffer.append(message.get("body", b""))
        self._buffered_bytes += len(self._buffer[-1])
        if self._buffered_bytes > BUFFERED_ANSWER_BYTES_MAX:
            raise ResponseCut("the answer is too long to be buffered for an HTTP/1.0 client")
        if message.get("more_body", False) or self._held_start is None:
            return
        body = b"".join(self._buffer)
        headers = without(self._held_start["headers"], b"transfer-encoding")
        if not self._is_bodiless(self._held_start["status"]) and (
            first(headers, b"content-length") is None
        ):
            headers.append((b"content-length", str(len(body)).encode()))
        self.started = True
        self.status = self._held_start["status"]
        await self._send({**self._held_start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self._finish()

    def _is_bodiless(self, status: int) -> bool:
        """Whether a length would be wrong. Source: RFC 9110, sections 8.6 and 15."""
        return self._is_head or status in {204, 304}

    def _finish(self) -> None:
        self.complete = True
        self.gone.set()
