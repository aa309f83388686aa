# SPDX-License-Identifier: Apache-2.0
"""The bytes of a hop: a request's head and framing, an answer's parser. Pure: no sockets, no loop.

Keeps, for its part:

* R2 a request is framed so that its end cannot be mistaken: exactly the bytes that were announced,
  or chunks and a last one.
* R4 an answer is complete only when its own framing says so.

It is not a general HTTP library: the peer is another worker of the same service.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import httptools

__all__ = [
    "ANSWER_HEAD_BYTES_MAX",
    "HOP_BY_HOP",
    "AnswerMalformed",
    "AnswerReader",
    "BodyFramer",
    "HopRequest",
    "end_to_end",
    "request_head",
]

ANSWER_HEAD_BYTES_MAX: Final = 1024**2
"""The head of an answer, and while it is incomplete all that came before it. It protects memory. No
server bounds what its application says, and what passes at the owner must pass over a hop; so it is
more than a client reads: curl stops at 300 KiB, httpx at 100 KiB, Node at 16 KiB."""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that end at the next worker (RFC 9110, 7.6.1), in lower case. Proxy-Authorization and
Proxy-Authenticate are not among them: no worker is the proxy that they are for, and what a client
and an application say to each other must not depend on a hop."""

_OURS: Final = HOP_BY_HOP | {b"content-length", b"expect"}
_TOKEN: Final = (
    b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # RFC 9110
)
_NOT_IN_TARGET: Final = bytes(range(0x21)) + b"\x7f"

_TOO_MUCH: Final = f"a head of more than {ANSWER_HEAD_BYTES_MAX} bytes"
_FINAL_MIN: Final = 200
_CONTINUE: Final = 100
_SWITCHING_PROTOCOLS: Final = 101
_BODILESS: Final = frozenset({204, 304})


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRequest:
    """One request for an owner. The owner's application sees these headers, names as given."""

    method: str
    target: bytes  # raw path and query, as they came
    headers: Sequence[tuple[bytes, bytes]]  # none of HOP_BY_HOP, content-length, expect
    body: bytes = b""  # what is in memory
    rest: AsyncIterator[bytes] | None = None  # what follows; None: `body` is whole
    content_length: int | None = None  # of body and rest together; None: not known


def request_head(request: HopRequest) -> bytes:
    """Request line, headers and framing, up to and including the empty line.

    With ``rest`` the head asks for ``100 Continue``, and is chunked where the length is not known.
    A whole body is announced with Content-Length; no body and no length announces nothing.

    Raises:
        ValueError: a name, value or target could be read as something else (CR, LF, NUL, a name
            that is no token), a header belongs to this hop, or a whole body has another length
            than announced. Nothing was sent.
    """
    names = [name.lower() for name, _ in request.headers]
    if not _OURS.isdisjoint(names):
        raise ValueError(f"headers of the hop itself: {sorted(_OURS.intersection(names))}")
    method = request.method.encode("ascii")
    if not method or b"" in names or b"".join((method, *names)).translate(None, _TOKEN):
        raise ValueError("a method or header name is not a token")
    target = request.target
    if not target or len(target.translate(None, _NOT_IN_TARGET)) != len(target):
        raise ValueError("a target is empty, or has blanks or control characters")
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines.extend([b": ".join(header) for header in request.headers])
    lines.extend(_framing(request))
    head = b"\r\n".join(lines) + b"\r\n\r\n"
    ends_bytes = 2 * (len(lines) + 1)
    if len(head) - len(head.translate(None, b"\r\n\0")) != ends_bytes:
        raise ValueError("a header value has CR, LF or NUL")
    return head


def _framing(request: HopRequest) -> list[bytes]:
    length = request.content_length
    if length is not None and length < 0:
        raise ValueError(f"a content length of {length} bytes")
    if request.rest is not None:
        framing = (
            b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        )
        return [framing, b"expect: 100-continue"]
    if length is None:
        return [b"content-length: %d" % len(request.body)] if request.body else []
    if length != len(request.body):
        raise ValueError(f"a body of {len(request.body)} bytes was announced with {length}")
    return [b"content-length: %d" % length]


class BodyFramer:
    """Frames a body that is sent piece by piece, and holds it to the length that was announced.

    Attributes:
        done: all was framed that the owner needs to take the body for whole.
    """

    __slots__ = ("_left", "done")

    def __init__(self, content_length: int | None) -> None:
        self._left = content_length
        self.done = content_length == 0

    def frame(self, piece: bytes) -> bytes:
        """What carries *piece*; nothing for an empty one, which would be an end as a chunk.

        Raises:
            ValueError: the body is longer than announced.
        """
        if not piece:
            return b""
        if self._left is None:
            return b"%x\r\n%b\r\n" % (len(piece), piece)
        self._left -= len(piece)
        if self._left < 0:
            raise ValueError(f"a body is {-self._left} bytes longer than announced")
        self.done = self._left == 0
        return piece

    def end(self) -> bytes:
        """What ends the body; nothing where its length was announced.

        Raises:
            ValueError: the body is shorter than announced.
        """
        if self._left:
            raise ValueError(f"a body is {self._left} bytes shorter than announced")
        self.done = True
        return b"0\r\n\r\n" if self._left is None else b""


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that travel on: not :data:`HOP_BY_HOP`, nor what ``Connection`` names.

    Names are expected in lower case.
    """
    kept, named = [], b""
    for header in headers:
        if header[0] not in HOP_BY_HOP:
            kept.append(header)
        elif header[0] == b"connection":
            named += b"," + header[1]
    if not named:
        return kept
    dropped = {token.strip().lower() for token in named.split(b",")}
    return [header for header in kept if header[0] not in dropped]


class AnswerMalformed(Exception):  # noqa: N818 - names what became of the answer
    """What the owner sent is not an answer that this hop understands."""


class AnswerReader:
    """The parser of one answer. Fed with bytes as they come; says what is known so far.

    Attributes:
        status: of the final answer; 0 until its head is complete. Interim ones are ignored.
        headers: of the final answer, end to end, names in lower case.
        continued: a ``100 Continue`` came.
        complete: the answer's own framing says that it has ended.
        reusable: nothing odd came, and both sides keep the connection.
        buffered_bytes: of body, waiting for :meth:`take`.
    """

    __slots__ = (
        "_bodiless",
        "_fed_bytes",
        "_lines",
        "_parser",
        "_pieces",
        "buffered_bytes",
        "complete",
        "continued",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self, *, bodiless: bool) -> None:
        """*bodiless*: the answer ends with its head whatever that says, as to a HEAD request."""
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.continued = False
        self.complete = False
        self.reusable = False
        self.buffered_bytes = 0
        self._bodiless = bodiless
        self._fed_bytes = 0
        self._lines: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take in what arrived. Bytes after the end only make the connection unfit for reuse.

        Raises:
            AnswerMalformed: this is no answer, or its head is over a bound. What is known stays.
        """
        had_ended = self.complete
        if had_ended:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise AnswerMalformed(str(error.__context__ or error)) from error
        if self.complete:
            del self._parser  # it holds our methods: a cycle that only the collector would end
        elif not self.status:
            self._fed_bytes += len(data)  # a line that never ends is nowhere else seen to grow
            if self._fed_bytes > ANSWER_HEAD_BYTES_MAX:
                raise AnswerMalformed(_TOO_MUCH)

    def eof(self) -> None:
        """The owner closed in order. That ends no answer: each has a length or chunks (R4)."""
        self.reusable = False

    def take(self) -> bytes:
        """All of the body that waits, in one piece."""
        pieces, self._pieces = self._pieces, []
        self.buffered_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A head begins: an interim one, the final one, or one too many."""
        self._refuse_if_complete()
        self._lines = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        if self.status:
            raise AnswerMalformed("a trailer")  # nobody here sends one; none could be passed on
        self._lines.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is there; the first that is not interim is the answer's."""
        status: int = self._parser.get_status_code()
        if status < _FINAL_MIN:
            if status == _SWITCHING_PROTOCOLS:
                raise AnswerMalformed("101, and nobody asked for another protocol")
            self.continued = self.continued or status == _CONTINUE
            return
        size_bytes, codings, sized = 0, b"", False
        for name, value in self._lines:
            size_bytes += len(name) + len(value)
            if name == b"transfer-encoding":
                codings += value.strip().lower()
            elif name == b"content-length":
                sized = True
        if size_bytes > ANSWER_HEAD_BYTES_MAX:
            raise AnswerMalformed(_TOO_MUCH)
        if codings not in (b"", b"chunked"):
            raise AnswerMalformed(f"transfer codings {codings!r}")  # passed on undecoded otherwise
        self._bodiless = self._bodiless or status in _BODILESS
        if not (self._bodiless or codings or sized):
            # Only the end of the connection would end it, and a death ends connections too (R4).
            raise AnswerMalformed("neither a length nor chunks")
        self.reusable = (
            self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        )
        self.headers = end_to_end(self._lines)
        self.status = status
        self.complete = self._bodiless

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._refuse_if_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._refuse_if_complete()
        self._pieces.append(body)
        self.buffered_bytes += len(body)

    def on_message_complete(self) -> None:
        """An answer ended, interim or final."""
        self.complete = self.status >= _FINAL_MIN

    def _refuse_if_complete(self) -> None:
        if self.complete:
            raise AnswerMalformed("bytes after the end of the answer")
