# SPDX-License-Identifier: Apache-2.0
"""One connection to an owner, and one exchange at a time on it.

Keeps, for its part:

* R2 of a request that asks for ``100 Continue`` nothing but its head is written before that came.
* R4 whatever was buffered is handed out first; then a lost connection raises.

State changes in the callbacks of the loop; a coroutine that waits is woken, and looks again.
"""

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final, cast

from rollout_router.forked import close_in_children
from rollout_router.transport.hop_wire import (
    AnswerMalformed,
    AnswerReader,
    BodyFramer,
    HopRequest,
)

__all__ = [
    "BUFFERED_BYTES_MAX",
    "AnswerRefused",
    "Body",
    "ConnectFailed",
    "HopConnection",
    "HopLost",
]

Body = bytes | bytearray | memoryview
"""A whole one, in the memory that it came in."""

BUFFERED_BYTES_MAX: Final = 128 * 1024
"""Body that may wait for its reader before the socket is left alone; one read may exceed it."""

_JOINED_BYTES_MAX: Final = 64 * 1024
"""Up to here copying a body behind its head is cheaper than writing twice."""

_LAST_READ_BYTES: Final = 64 * 1024


class ConnectFailed(Exception):  # noqa: N818 - names what happened, and is no fault of the caller
    """There is no connection to that socket. Nothing was sent: the caller may route again.

    Attributes:
        errno: of the system, as ENOENT, ECONNREFUSED, or EAGAIN for a full backlog; None where it
            gave none.
    """

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"no connection to the owner at {path}: {error}")
        self.errno = error.errno


class HopLost(Exception):  # noqa: N818 - names what happened, and is no fault of the caller
    """The connection broke, or what came on it was not an answer.

    The owner's application may have begun, but for a request of whose ``rest`` nothing was taken:
    not one byte of that was written, and an owner begins only on a whole body (R6).
    """


class AnswerRefused(HopLost):
    """What came is not an answer that can be passed on. The connection was fine, and is dropped."""


class HopConnection(asyncio.Protocol):
    """A connection to one owner, made by the loop.

    Attributes:
        path: of the owner's socket.
        idle_since: loop time at which it was last given back.
        closed: set once the transport is gone.
    """

    def __init__(
        self,
        path: str,
        loop: asyncio.AbstractEventLoop,
        on_lost: Callable[["HopConnection"], None],
    ) -> None:
        self.path = path
        self.idle_since = 0.0
        self.closed = asyncio.Event()
        self._loop = loop
        self._on_lost = on_lost
        self._answer: AnswerReader | None = None  # None: nothing was asked, nothing may come
        self._lost = False
        self._cause: Exception | None = None
        self._reading = True
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None
        self._writable: asyncio.Future[None] | None = None  # None: write on
        self._transport: asyncio.Transport
        self._descriptor: int
        self._poll = select.poll()

    def start(self, head: bytes, body: Body, *, bodiless: bool = False) -> AnswerReader:
        """Send a whole request; gives its answer, of which nothing is known yet."""
        self._answer = answer = AnswerReader(bodiless=bodiless)
        if len(body) <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join((head, body)))
        else:
            self._transport.writelines([head, body])  # nobody waits for its end
        return answer

    async def exchange(self, head: bytes, request: HopRequest) -> AnswerReader:
        """Send *request* and wait for the head of its final answer.

        Whatever it raises, the connection is of no use any more, and the caller aborts it.
        """
        bodiless = request.method == "HEAD"
        if request.rest is None:
            return await self.answered(self.start(head, request.body, bodiless=bodiless))
        self._answer = answer = AnswerReader(bodiless=bodiless)
        self._transport.write(head)
        while not (answer.status or answer.continued):
            await self.progress()
        framer = BodyFramer(request.content_length)
        if not answer.status:
            await self._until_answered(self._send_body(request.body, request.rest, framer))
        if not framer.done:
            answer.reusable = False  # answered before it was asked in full
        return await self.answered(answer)

    async def answered(self, answer: AnswerReader) -> AnswerReader:
        """Wait until the head of *answer*, which is expected here, is there."""
        while not answer.status:
            await self.progress()
        self.check_asked(answer)
        return answer

    def check_asked(self, answer: AnswerReader) -> None:
        """Keep no connection whose owner answered before it was asked in full."""
        if self._transport.get_write_buffer_size():
            answer.reusable = False

    def listen(self, then: Callable[[], None] | None) -> None:
        """Call *then* once, at the next change of the answer; None: nobody listens any more."""
        self._listener = then

    async def progress(self) -> None:
        """Wait until the answer has changed.

        Raises:
            HopLost: it will not change any more.
        """
        if isinstance(self._cause, AnswerMalformed):
            raise AnswerRefused(str(self._cause)) from self._cause
        if self._lost:
            raise HopLost(
                f"the connection to the owner at {self.path} broke before the answer was complete"
                f" ({self._cause or 'it was closed'})"
            ) from self._cause
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def resume_reading(self) -> None:
        """What was buffered has been taken."""
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    @property
    def idle_s(self) -> float:
        """How long it has been unused."""
        return self._loop.time() - self.idle_since

    def finish(self) -> bool:
        """End the exchange. True: the connection is as good as new."""
        answer, self._answer = self._answer, None
        self.idle_since = self._loop.time()
        self.resume_reading()
        return answer is not None and answer.reusable and not self._is_gone()

    def is_quiet(self) -> bool:
        """Nothing waits on the socket that the loop has not seen yet: no end, no stray bytes."""
        return not self._is_gone() and not self._poll.poll(0)

    def abort(self) -> None:
        """Drop the connection now, with what is unsent. The owner sees its client go away."""
        self._lost = True
        self._transport.abort()

    def _is_gone(self) -> bool:
        return self._lost or self._transport.is_closing()

    async def _until_answered(self, sending: Coroutine[Any, Any, None]) -> None:
        """Let a body be sent, until its owner answers."""
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(sending)
                while self._answer is not None and not self._answer.status:
                    await self.progress()
                sender.cancel()
        except ExceptionGroup as failures:
            failure = failures.exceptions[0]  # one child: the sender's own, or the loss
        if failure is not None:
            raise failure

    async def _send_body(self, body: bytes, rest: AsyncIterator[bytes], framer: BodyFramer) -> None:
        await self._write(framer.frame(body))
        async for piece in rest:
            await self._write(framer.frame(piece))
        await self._write(framer.end())

    async def _write(self, data: bytes) -> None:
        if not self._is_gone():  # uvloop raises on a closed transport; the loss is on its way
            self._transport.write(data)  # not writelines: some CPython 3.12 and 3.13 never pause it
        if self._writable is not None:
            await self._writable
        else:
            await asyncio.sleep(0)  # a rest that never waits would keep us from hearing the owner

    def _hear_out(self) -> None:
        """Read what the owner said before it closed under our writing; a refusal, usually.

        It is what its kernel buffer held, so it is little. Its end is no proof of a clean one.
        """
        answer = self._answer
        try:
            while answer is not None and (data := os.read(self._descriptor, _LAST_READ_BYTES)):
                answer.feed(data)
        except (OSError, AnswerMalformed) as error:
            self._cause = error

    def _wake(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The owner's kernel took the connection."""
        self._transport = cast("asyncio.Transport", transport)
        close_in_children(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._poll.register(self._descriptor, select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer, or stray ones."""
        answer = self._answer
        if answer is None:
            self.abort()  # nobody asked
            return
        try:
            answer.feed(data)
        except AnswerMalformed as error:
            self._cause = error
            self.abort()
        if answer.buffered_bytes > BUFFERED_BYTES_MAX and self._reading and not self._is_gone():
            self._reading = False
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """The owner closed its end in order."""
        if self._answer is not None:
            self._answer.eof()
        self.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone, for whatever reason; its descriptor goes after this."""
        if exc is not None:
            self._hear_out()
        self._lost = True
        self._cause = self._cause or exc
        self.closed.set()
        self._on_lost(self)
        self._wake()

    def pause_writing(self) -> None:
        """The owner reads more slowly than we write."""
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        """It has caught up."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)
