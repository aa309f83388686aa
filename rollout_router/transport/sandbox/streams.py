# SPDX-License-Identifier: Apache-2.0
"""Messages from a byte stream: heads and bodies, pulled piece by piece as they arrive.

R4: the end of a body is reported only where its framing says so; a stream that ends before that
raises :class:`Cut`, so that nobody takes a cut body for a whole one.
"""

import re
from typing import Callable, Iterator, Optional

from rollout_router.transport.sandbox.http1 import (
    HEAD_BYTES_MAX,
    BadMessage,
    Body,
    Framing,
    chunk_size,
    whole_chunks,
)

__all__ = ["Cut", "Reader", "pieces"]

_RECV_BYTES = 1_048_576  # a body that has come is taken in whole: nothing is joined
_HEAD_RECV_BYTES = 16_384  # little of a body comes with a head, since that is copied once more
_LINE_BYTES_MAX = 8_192
_TRAILER_LINES_MAX = 64
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_BARE_FEED = re.compile(rb"(?<!\r)\n")


class Cut(Exception):  # noqa: N818 - names what happened to the stream
    """The other side ended in the middle of a message."""


class Reader:
    """Buffered reading.

    Args:
        recv: gives up to so many bytes, at least one, and ``b""`` at the end of the stream.
        peer: who writes, for messages.
    """

    def __init__(self, recv: Callable[[int], bytes], *, peer: str) -> None:
        self._recv = recv
        self._peer = peer
        self._data = b""
        self._at = 0

    @property
    def buffered(self) -> int:
        """Bytes that can be had without waiting."""
        return len(self._data) - self._at

    def head(self) -> Optional[bytes]:
        """The next head without its final empty line; None where the stream ended before it.

        Raises:
            Cut: it ended inside the head.
            BadMessage: the head is too long, or has a line feed without its carriage return; that
                is said at once, since the end of such a head may never come.
        """
        data = self._data[self._at :]
        self._data, self._at = b"", 0
        while True:
            empty = _EMPTY_LINES.match(data)  # some clients send them between requests
            data = data[empty.end() :] if empty else data
            end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX + 4)
            if _BARE_FEED.search(data, 0, len(data) if end < 0 else end):
                raise BadMessage("a line feed without its carriage return")
            if end >= 0:
                self._data, self._at = data, end + 4
                return data[:end]
            if len(data) > HEAD_BYTES_MAX:
                raise BadMessage(f"a head over {HEAD_BYTES_MAX} bytes", status=431)
            more = self._recv(_HEAD_RECV_BYTES)
            if not more:
                if data:
                    raise Cut(f"{self._peer} closed its connection inside a head")
                return None
            data += more

    def take(self, bytes_max: int) -> bytes:
        """At least one byte and at most *bytes_max*, as they arrive.

        Raises:
            Cut: the stream ended.
        """
        data = self._some(bytes_max)
        if not data:
            raise Cut(f"{self._peer} closed its connection inside a body")
        return data

    def until_end(self) -> Iterator[bytes]:
        """All that comes, until the stream ends."""
        while True:
            data = self._some(_RECV_BYTES)
            if not data:
                return
            yield data

    def line(self) -> bytes:
        """The next line without its CRLF.

        Raises:
            Cut: the stream ended inside the line.
            BadMessage: the line is too long, or ends with a line feed alone.
        """
        while True:
            end = self._data.find(b"\n", self._at) + 1
            if end:
                line = self._data[self._at : end]
                if not line.endswith(b"\r\n"):
                    raise BadMessage("a line feed without its carriage return")
                self._at = end
                return line[:-2]
            if self.buffered > _LINE_BYTES_MAX:
                raise BadMessage(f"a line over {_LINE_BYTES_MAX} bytes")
            more = self._recv(_RECV_BYTES)
            if not more:
                raise Cut(f"{self._peer} closed its connection inside a line")
            self._data = self._data[self._at :] + more
            self._at = 0

    def chunks(self) -> bytes:
        """What the chunks hold that have come whole: many small ones cost little more than one."""
        held, self._at = whole_chunks(self._data, self._at)
        return held

    def _some(self, bytes_max: int) -> bytes:
        if not self.buffered:
            self._data, self._at = b"", 0
            return self._recv(min(bytes_max, _RECV_BYTES))
        data = self._data[self._at : self._at + bytes_max]
        self._at += len(data)
        return data


def pieces(reader: Reader, framing: Framing) -> Iterator[bytes]:
    """The body of one message in pieces, none empty, each as soon as it arrives.

    The iterator ends where the framing says that the body ends. Then, except for CLOSE, the reader
    stands at the next message.

    Raises:
        Cut: the stream ended before the body did.
        BadMessage: the chunks are not chunks.
    """
    if framing.body is Body.LENGTH:
        return _by_length(reader, framing.length)
    if framing.body is Body.CHUNKED:
        return _by_chunks(reader)
    if framing.body is Body.CLOSE:
        return reader.until_end()
    return iter(())


def _by_length(reader: Reader, length: int) -> Iterator[bytes]:
    while length:
        data = reader.take(length)
        length -= len(data)
        yield data


def _by_chunks(reader: Reader) -> Iterator[bytes]:
    while True:
        held = reader.chunks()
        if held:
            yield held
        size = chunk_size(reader.line())
        if size == 0:
            break
        yield from _by_length(reader, size)
        if reader.line():
            raise BadMessage("a chunk that is longer than its size")
    for _ in range(_TRAILER_LINES_MAX):
        if not reader.line():
            return
    raise BadMessage(f"more than {_TRAILER_LINES_MAX} trailers")
