# SPDX-License-Identifier: Apache-2.0
"""Where a streamed turn ends: an incremental scanner of server-sent events (F2). Pure; no I/O.

A client goes on to its next turn once it has the event that ends this one. :class:`TurnScanner`
lets through whole events up to that one and withholds everything from it on, byte for byte and
whatever the chunk boundaries are. It knows the three dialects by their own words:

- Chat Completions: a ``finish_reason`` that is not null, ``[DONE]``, an ``error`` object;
- Messages: a ``stop_reason`` in ``message_delta`` that is not null, ``message_stop``, ``error``;
- Responses: ``response.completed``, ``response.incomplete``, ``response.failed``, ``error``.

An event that has not arrived in full is withheld too. Keys are looked for as they are written:
``"finish_reason"``, not its escaped spellings. JSON is parsed only in events that contain a word of
the list above.
"""

import json
import re
from enum import Enum
from typing import Any, Final

__all__ = ["EVENT_BYTES_MAX", "Ending", "TurnScanner", "ending_of"]

EVENT_BYTES_MAX: Final = 8 << 20
"""Bytes of one event that are held back while its end is awaited. ``response.completed`` repeats
the whole answer and is the largest by far; 8 MiB is some two million tokens."""

# Atomic groups: a CR LF is one line end and is never read as two.
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_REASON: Final = re.compile(rb'_reason"(?!\s*:\s*null)')  # finish_reason and stop_reason
_WORDS: Final = (
    b"error",
    b"[DONE]",
    b"message_stop",
    b"response.completed",
    b"response.failed",
    b"response.incomplete",
)
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Ending(Enum):
    """How an event says that its turn ended."""

    COMPLETED = "completed"
    FAILED = "failed"


_BY_TYPE: Final = {
    "response.completed": Ending.COMPLETED,
    "response.incomplete": Ending.COMPLETED,  # a limit was reached; it is an answer all the same
    "response.failed": Ending.FAILED,
    "message_stop": Ending.COMPLETED,
    "error": Ending.FAILED,
}


class TurnScanner:
    """Lets events through until one ends the turn.

    ``ended`` says that everything from some event on is withheld. ``ending`` is what the events
    said, ``FAILED`` outweighing ``COMPLETED``; None while none said anything.

    An event longer than *event_bytes_max* is taken for one that ends the turn: what follows leaves
    late, never early. It is still read once it is whole.
    """

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._held = bytearray()
        self._event = 0  # where in _held the current event begins
        self._free = 0  # up to where _held may leave
        self._search = 0  # where in _held a blank line may begin that was not seen yet
        self.ended = False
        self.ending: Ending | None = None

    @property
    def held_bytes(self) -> int:
        """How many bytes are withheld now."""
        return len(self._held)

    def add(self, part: bytes) -> bytes:
        """Take the next bytes of the stream and return those that may leave now."""
        if not self._held and part.endswith(b"\n\n") and not _may_end(part, 0, len(part)):
            return part  # whole events that end nothing: nearly every part of a stream
        self._held += part
        self._skip_line_ends()
        for match in _BLANK_LINE.finditer(self._held, max(self._search, self._event)):
            self._judge(match.end())
            self._step_to(match.end())
        self._skip_line_ends()
        self._search = max(self._event, len(self._held) - 2)
        if len(self._held) - self._event > self._event_bytes_max:
            self.ended = True
        leaving = bytes(self._held[: self._free])
        del self._held[: self._free]
        self._event -= self._free
        self._search -= self._free
        self._free = 0
        return leaving

    def rest(self) -> bytes:
        """The stream is over: read what no blank line ended, and return all that is withheld."""
        self._judge(len(self._held))
        leaving = bytes(self._held)
        self._held.clear()
        self._event = self._search = 0
        return leaving

    def _step_to(self, event: int) -> None:
        self._event = event
        if not self.ended:
            self._free = event

    def _skip_line_ends(self) -> None:
        """Before an event they mean nothing; the LF of a divided CR LF is one of them."""
        while self._event < len(self._held) and self._held[self._event] in b"\r\n":
            self._step_to(self._event + 1)

    def _judge(self, end: int) -> None:
        if not _may_end(self._held, self._event, end):
            return
        ending = ending_of(bytes(self._held[self._event : end]))
        if ending is None:
            return
        self.ended = True
        if self.ending is not Ending.FAILED:
            self.ending = ending


def _may_end(buffer: bytes | bytearray, start: int, end: int) -> bool:
    """Whether a word between *start* and *end* makes it worth to read the event."""
    return (
        any(buffer.find(word, start, end) >= 0 for word in _WORDS)
        or _REASON.search(buffer, start, end) is not None
    )


def ending_of(event: bytes) -> Ending | None:
    """How one whole event, blank line or not, ends its turn; None where it does not."""
    name, data = _fields(event)
    if data.strip() == b"[DONE]":
        return Ending.COMPLETED
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None  # not JSON: only the event's name can speak
    if isinstance(document, dict):
        return _ending_of_document(name, document)
    return _BY_TYPE.get(name)


def _ending_of_document(name: str, document: dict[str, Any]) -> Ending | None:
    kind = document.get("type")
    if document.get("error") is not None or document.get("object") == "error":
        return Ending.FAILED
    for word in (name, kind):
        if isinstance(word, str) and word in _BY_TYPE:
            return _BY_TYPE[word]
    delta = document.get("delta")
    if isinstance(delta, dict) and delta.get("stop_reason") is not None:
        return Ending.COMPLETED
    choices = document.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
        if reason is not None:
            return Ending.FAILED if reason == "error" else Ending.COMPLETED
    return None


def _fields(event: bytes) -> tuple[str, bytes]:
    name, data = "", []
    for line in _LINE_END.split(event.removeprefix(_BYTE_ORDER_MARK)):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace")
    return name, b"\n".join(data)
