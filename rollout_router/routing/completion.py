# SPDX-License-Identifier: Apache-2.0
"""The end of an answer leaves when the application is done with it (F2). Pure.

A client that has a whole answer hangs up when it likes, and a server tells the application, which
may be about to record the call: some give up there, and the record is lost. So the bytes that make
an answer with a Content-Length whole wait until the application says that nothing follows, or has
returned. Any other answer is whole with its terminator, which leaves then in any case.
"""

from typing import Final

from rollout_router.asgi import Message
from rollout_router.routing.headers import first

__all__ = ["HELD_S_MAX", "Completion"]

HELD_S_MAX: Final = 5.0
"""The last bytes wait no longer: an application that never says that it is done may be waiting for
its client to leave, who waits for them. Recording a call takes milliseconds."""

_BODILESS = frozenset((204, 304))  # RFC 9110, section 8.6: their length is of another answer


class Completion:
    """Passes the messages of one answer on, and at most one message's bytes later than they came.

    Args:
        method: of the request; an answer to HEAD has no body whatever its length says.
    """

    def __init__(self, method: str) -> None:
        self._has_body = method != "HEAD"
        self._left_bytes: int | None = None  # None: no length was announced
        self._held = b""

    def take(self) -> bytes:
        """What was held back, to leave now; empty where nothing is."""
        held, self._held = self._held, b""
        return held

    def passing(self, message: Message) -> Message | None:
        """What leaves now in place of *message*; None where nothing does."""
        if message["type"] == "http.response.start":
            length = first(message.get("headers", []), b"content-length") or b""
            if self._has_body and message["status"] not in _BODILESS and length.isdigit():
                self._left_bytes = int(length)
            return message
        if message["type"] != "http.response.body" or self._left_bytes is None:
            return message
        body: bytes = message.get("body", b"")
        self._left_bytes -= len(body)
        if message.get("more_body", False) and self._left_bytes == 0:
            self._held = self._held or body
            return None
        held = self.take()
        return {**message, "body": held + body} if held else message
