# SPDX-License-Identifier: Apache-2.0
"""Server-Sent Events: what is known, sent at once and then whenever anything changed.

A stream has one view in hand at a time: a client that reads slowly sees fewer of them, and nothing
waits for it. None keeps the process from its end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from starlette.responses import StreamingResponse

from rollout_router.admin.access import AdminRefusal
from rollout_router.asgi import Receive, Scope, Send

__all__ = ["PAUSE_S", "SILENT_S", "STREAMS_MAX", "Streams"]

STREAMS_MAX: Final = 64
"""Streams at one time: a page has one. Each costs some milliseconds, twice a second."""

PAUSE_S: Final = 0.5
"""The least pause between two views of one stream; longer where many make much work."""

SILENT_S: Final = 15.0
"""After so long without a view a comment is sent, so that no proxy takes the stream for dead."""

_HEADERS: Final = {"x-accel-buffering": "no"}  # nginx passes each event on as it comes


class Streams:
    """All streams of one process."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self._max = streams_max
        self._open = 0
        self._woken: set[asyncio.Event] = set()
        self._stopping = asyncio.Event()

    def tell(self) -> None:
        """Something changed."""
        for changed in self._woken:
            changed.set()

    def stop(self) -> None:
        """End every stream, and those to come."""
        self._stopping.set()
        self.tell()

    def response(self, view: Callable[[], bytes]) -> StreamingResponse:
        """A stream of what *view* gives.

        Raises:
            AdminRefusal: ``overloaded``: there are as many as there may be.
        """
        if self._open >= self._max:
            said = f"there are {self._open} streams already: close a page, or ask /api/overview"
            raise AdminRefusal("overloaded", said)
        self._open += 1
        return _Stream(self._follow(view), self._closed)

    def _closed(self) -> None:
        self._open -= 1

    async def _follow(self, view: Callable[[], bytes]) -> AsyncIterator[bytes]:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self._woken.add(changed)
        try:
            while not self._stopping.is_set():
                changed.clear()
                began_s = loop.time()
                sent = view()
                # All streams together have half of the interpreter, however many ask for what.
                pause_s = max(PAUSE_S, 2 * self._open * (loop.time() - began_s))
                yield sent
                if await _within(self._stopping, pause_s):
                    return
                while not await _within(changed, SILENT_S):
                    yield b": nothing changed\n\n"
        finally:
            self._woken.discard(changed)


class _Stream(StreamingResponse):
    """Says when it is over, however that comes about."""

    def __init__(self, parts: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(parts, media_type="text/event-stream", headers=_HEADERS)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for *event*; False where it did not come in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
