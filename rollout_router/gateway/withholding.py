# SPDX-License-Identifier: Apache-2.0
"""What of an answer may leave before its record is written (F2). Pure; no I/O.

===============================  =========================================================
the answer                       withheld
===============================  =========================================================
event stream                     from the first event that ends the turn (``turn_end``)
event stream, encoded            all of it: its events cannot be seen
anything asked over HTTP/1.0     all of it: it leaves with a Content-Length
JSON                             all of it up to 4 MiB, for a clean 502; nobody can use it
                                 before its last byte. Above that, the last byte
anything else                    the last byte
===============================  =========================================================

The terminator is always withheld; that is the caller's part.
"""

import sys
from collections.abc import Iterable
from typing import Final, Protocol

from rollout_router.gateway.turn_end import Ending, TurnScanner

__all__ = ["JSON_WHOLE_BYTES_MAX", "Tail", "Withheld", "is_json", "withheld_of"]

JSON_WHOLE_BYTES_MAX: Final = 4 << 20


class Withheld(Protocol):
    """The part of an answer that waits for the record."""

    @property
    def held_bytes(self) -> int:
        """How many bytes wait now."""
        ...

    @property
    def ending(self) -> Ending | None:
        """How the turn ended, as far as the bytes say; meant to be read after ``rest``."""
        ...

    def add(self, part: bytes) -> bytes:
        """Take the next bytes of the answer and return those that may leave now."""
        ...

    def rest(self) -> bytes:
        """Return all that waits; the answer is over."""
        ...


class Tail:
    """Holds a whole answer of up to *whole_bytes_max*, and the last byte of a longer one."""

    ending: Ending | None = Ending.COMPLETED  # it has a terminator; no more can be known of it

    def __init__(self, whole_bytes_max: int) -> None:
        self._whole_bytes_max = whole_bytes_max
        self._parts: list[bytes] = []
        self.held_bytes = 0

    def add(self, part: bytes) -> bytes:
        """Take the next bytes and return those that may leave now."""
        self._parts.append(part)
        self.held_bytes += len(part)
        if self.held_bytes <= self._whole_bytes_max:
            return b""
        joined = self.rest()
        self._whole_bytes_max = 0
        self._parts = [joined[-1:]]
        self.held_bytes = len(self._parts[0])
        return joined[:-1]

    def rest(self) -> bytes:
        """Return all that waits."""
        joined = b"".join(self._parts)
        self._parts = []
        self.held_bytes = 0
        return joined


def withheld_of(headers: Iterable[tuple[bytes, bytes]], *, http_version: str) -> Withheld:
    """Choose by the head of the answer; see the table above."""
    content_type, encoding = b"", b"identity"
    for name, value in headers:
        if name.lower() == b"content-type":
            content_type = value.partition(b";")[0].strip().lower()
        elif name.lower() == b"content-encoding":
            encoding = value.strip().lower()
    events = content_type == b"text/event-stream"
    if http_version == "1.0":
        # TurnScanner would let events through; only its verdict on the whole is missing here.
        return _WholeEvents() if events and encoding == b"identity" else Tail(sys.maxsize)
    if events:
        return TurnScanner() if encoding == b"identity" else Tail(sys.maxsize)
    if is_json(content_type):
        return Tail(JSON_WHOLE_BYTES_MAX)
    return Tail(0)


def is_json(content_type: bytes) -> bool:
    """Whether the value of a Content-Type header says JSON."""
    media_type = content_type.partition(b";")[0].strip().lower()
    return media_type == b"application/json" or media_type.endswith(b"+json")


class _WholeEvents(Tail):
    """A buffered event stream: nothing leaves, and its ending is read at the end."""

    def __init__(self) -> None:
        super().__init__(sys.maxsize)
        self.ending = None

    def rest(self) -> bytes:
        joined = super().rest()
        scanner = TurnScanner()
        scanner.add(joined)
        scanner.rest()
        self.ending = scanner.ending
        return joined
