# SPDX-License-Identifier: Apache-2.0
"""Whole requests and whole answers over ASGI: an operation is recorded before its answer leaves.

An answer is what the application said, byte for byte, but for how it was cut into pieces: it is
sent whole, with its length.
"""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.wire import declined, error_of
from rollout_router.errors import Refusal

__all__ = ["Declined", "Reply", "collect", "refused", "send_reply", "whole_body"]

_OF_A_CONNECTION: Final = frozenset({"connection", "keep-alive", "transfer-encoding"})
_BODILESS: Final = frozenset({204, 304})
_ERROR: Final = 400
_FAILED: Final = 500  # and above: the application did not do what was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One whole answer. Header names and values are Latin-1 text, in their order."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Declined(Exception):  # noqa: N818 - what became of the operation
    """The application refused before anything happened: the same may be sent again.

    Args:
        reply: which says so; it is passed on, and not kept.
    """

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"the environment answered {reply.status}")
        self.reply = reply


def refused(refusal: Refusal) -> Reply:
    """The answer that *refusal* is."""
    headers = tuple((name.decode(), value.decode()) for name, value in refusal.headers())
    return Reply(status=refusal.status, headers=headers, body=refusal.body())


async def whole_body(receive: Receive, *, bytes_max: int) -> bytes | None:
    """The body of a request, or None where its client left before the end.

    Raises:
        Refusal: 413 ``body_too_large``; the rest was not read.
    """
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > bytes_max:
            raise Refusal(
                "body_too_large", f"the body is larger than {bytes_max} bytes: send a smaller one"
            )
        if not message.get("more_body", False):
            return b"".join(parts)


async def collect(app: App, scope: Scope, body: bytes, *, bytes_max: int) -> Reply:
    """Give *body* to *app*, and take its whole answer once it has returned.

    It is not told that its client left: what was begun is finished.

    Raises:
        Declined: it says that nothing happened.
        CheckpointRefusal: ``environment_failed``: it answered 500 or above, more than *bytes_max*,
            or not to the end.
        Exception: what it raised.
    """
    answer = _Answer(bytes_max)
    asked = False

    async def receive() -> Message:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}
        await answer.whole.wait()
        return {"type": "http.disconnect"}

    # Without extensions: an answer comes in messages that can be kept.
    await app({**scope, "extensions": {}}, receive, answer.take)
    return answer.reply(bodiless=scope["method"] == "HEAD")


async def send_reply(reply: Reply, send: Send) -> None:
    """Send it."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


class _Answer:
    """An answer as it comes."""

    def __init__(self, bytes_max: int) -> None:
        self.whole = asyncio.Event()
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._length = 0
        self._bytes_max = bytes_max

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            self._length += len(part)
            if self._length <= self._bytes_max:  # what is beyond is counted, not kept
                self._parts.append(part)
            if not message.get("more_body", False):
                self.whole.set()

    def reply(self, *, bodiless: bool) -> Reply:
        if self._start is None or not self.whole.is_set():
            raise CheckpointRefusal("environment_failed", "the environment's answer has no end")
        status: int = self._start["status"]
        if self._length > self._bytes_max:
            raise CheckpointRefusal(
                "environment_failed",
                f"the environment answered {self._length} bytes, of at most {self._bytes_max}",
            )
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in self._start.get("headers", ())
        ]
        headers = [one for one in headers if one[0].lower() not in _OF_A_CONNECTION]
        named = any(name.lower() == "content-length" for name, _ in headers)
        if not (named or bodiless or status in _BODILESS):
            headers.append(("content-length", str(self._length)))
        reply = Reply(status=status, headers=tuple(headers), body=b"".join(self._parts))
        if _is_declined(reply):
            raise Declined(reply)
        if status >= _FAILED:
            raise CheckpointRefusal("environment_failed", f"the environment answered {status}")
        return reply


def _is_declined(reply: Reply) -> bool:
    if reply.status < _ERROR:
        return False
    code = ""
    with suppress(ValueError, RecursionError):
        code, _ = error_of(json.loads(reply.body))
    retry_after = any(name.lower() == "retry-after" for name, _ in reply.headers)
    return declined(reply.status, code, retry_after=retry_after)
