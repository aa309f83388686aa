# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 heads and framing: what a message says, and how long its body is. Pure and strict.

A request that two parties could read in two ways is refused: both Content-Length and
Transfer-Encoding, repeated lengths, folded lines, bare line feeds, odd codings.
"""

import enum
import re
from typing import List, NamedTuple, Tuple

from rollout_router.transport.sandbox.wire import Headers, header_values

__all__ = [
    "HEAD_BYTES_MAX",
    "BadMessage",
    "Body",
    "Framing",
    "Request",
    "Response",
    "chunk_size",
    "connection_options",
    "end_to_end",
    "is_header_name",
    "parse_request",
    "parse_response",
    "request_framing",
    "response_framing",
    "whole_chunks",
    "written_head",
]

HEAD_BYTES_MAX = 65_536  # harnesses send up to 1.4 KB; servers commonly allow 16 to 64 KB
_HEADERS_MAX = 256

_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile("(" + _NAME + r") ([!-~\x80-\xff]+) HTTP/1\.([01])")
_HEADER_NAME = re.compile(_NAME)
_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_HEADER_LINE = re.compile("(" + _NAME + r"):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_LENGTH = re.compile("[0-9]{1,15}")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_CHUNK_START = re.compile(_CHUNK_LINE.pattern + rb"\r\n")

_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


class BadMessage(ValueError):  # noqa: N818 - names what the message is
    """The bytes are not HTTP/1 as we accept it. ``status`` is what a client is told."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Body(enum.Enum):
    """How the end of a body is known."""

    EMPTY = "there is none"
    LENGTH = "by its length"
    CHUNKED = "by its last chunk"
    CLOSE = "by the end of the connection"


class Framing(NamedTuple):
    """Of one message."""

    body: Body
    length: int = 0  # bytes, for LENGTH


class Request(NamedTuple):
    """The head of a request."""

    method: str
    target: str  # raw, in origin form
    minor: int  # of the HTTP/1 version
    headers: Headers

    @property
    def keeps_alive(self) -> bool:
        """Whether the client expects to send another request on this connection."""
        return self.minor == 1 and "close" not in connection_options(self.headers)


class Response(NamedTuple):
    """The head of a response."""

    minor: int
    status: int
    reason: str
    headers: Headers

    @property
    def keeps_alive(self) -> bool:
        """Whether the server leaves the connection open after this response."""
        return self.minor == 1 and "close" not in connection_options(self.headers)


def parse_request(head: bytes) -> Request:
    """Read a request's head, its final empty line cut off.

    Raises:
        BadMessage: refuse the request and close the connection.
    """
    first, headers = _parse(head)
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadMessage("not an HTTP/1 request line")
    method, target, minor = match.group(1), match.group(2), int(match.group(3))
    if not target.startswith("/"):
        _, scheme, rest = target.partition("://")
        if not scheme:
            raise BadMessage("the request target is neither a path nor an http URL")
        _, slash, path = rest.partition("/")
        target = slash + path or "/"
    return Request(method, target, minor, headers)


def parse_response(head: bytes) -> Response:
    """Read a response's head, its final empty line cut off.

    Raises:
        BadMessage: nothing sensible can be handed on.
    """
    first, headers = _parse(head)
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadMessage("not an HTTP/1 status line")
    return Response(int(match.group(1)), int(match.group(2)), match.group(3) or "", headers)


def request_framing(request: Request) -> Framing:
    """How long a request's body is.

    Raises:
        BadMessage: its length could be read in two ways.
    """
    codings = header_values(request.headers, "Transfer-Encoding")
    lengths = header_values(request.headers, "Content-Length")
    if codings and lengths:
        raise BadMessage("both Content-Length and Transfer-Encoding")
    if codings:
        if request.minor == 0 or [coding.strip().lower() for coding in codings] != ["chunked"]:
            raise BadMessage("the only transfer coding is chunked, in HTTP/1.1")
        return Framing(Body.CHUNKED)
    if not lengths:
        return Framing(Body.EMPTY)
    return _length_framing(lengths)


def response_framing(method: str, response: Response) -> Framing:
    """How long a response's body is.

    Raises:
        BadMessage: its length could be read in two ways.
    """
    if method == "HEAD" or response.status in {204, 304}:
        return Framing(Body.EMPTY)
    codings = header_values(response.headers, "Transfer-Encoding")
    lengths = header_values(response.headers, "Content-Length")
    if codings:
        if lengths or [coding.strip().lower() for coding in codings] != ["chunked"]:
            raise BadMessage("a response's length that can be read in two ways")
        return Framing(Body.CHUNKED)
    if not lengths:
        return Framing(Body.CLOSE)
    return _length_framing(lengths)


def is_header_name(text: str) -> bool:
    """Whether *text* can stand before the colon of a header line."""
    return _HEADER_NAME.fullmatch(text) is not None


def chunk_size(line: bytes) -> int:
    """The size that a chunk's first line gives; extensions are ignored.

    Raises:
        BadMessage: it is not one.
    """
    match = _CHUNK_LINE.fullmatch(line)
    if match is None:
        raise BadMessage("not the first line of a chunk")
    return int(match.group(1), 16)


def whole_chunks(data: bytes, at: int) -> Tuple[bytes, int]:
    """What the chunks hold that stand in *data* whole, from *at* on, and where they end.

    It stops before the last chunk, one that is not there to its end, and one that is none: those
    are for who reads piece by piece.
    """
    held = bytearray()
    while True:
        match = _CHUNK_START.match(data, at)
        if match is None:
            break
        start = match.end()
        end = start + int(match.group(1), 16)
        if end == start or data[end : end + 2] != b"\r\n":
            break
        held += data[start:end]
        at = end + 2
    return bytes(held), at


def connection_options(headers: Headers) -> List[str]:
    """The options of all Connection headers, in lower case."""
    lines = header_values(headers, "Connection")
    return [option.strip().lower() for line in lines for option in line.split(",")]


def end_to_end(headers: Headers) -> Headers:
    """The headers that travel on: without those of this hop, and without what Connection names."""
    dropped = _HOP_BY_HOP.union(connection_options(headers))
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def written_head(first: str, headers: Headers) -> bytes:
    """A head as bytes, the final empty line included."""
    lines = [first]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parse(head: bytes) -> Tuple[str, Headers]:
    first, *lines = head.decode("latin-1").split("\r\n")
    if len(lines) > _HEADERS_MAX:
        raise BadMessage(f"{len(lines)} headers, the limit is {_HEADERS_MAX}", status=431)
    headers: Headers = []
    for line in lines:
        match = _HEADER_LINE.fullmatch(line)
        if match is None:
            raise BadMessage(f"not a header line: {line[:40]!r}")
        headers.append((match.group(1), match.group(2).rstrip(" \t")))
    return first, headers


def _length_framing(lengths: List[str]) -> Framing:
    if len(lengths) != 1 or _LENGTH.fullmatch(lengths[0]) is None:
        raise BadMessage(f"Content-Length: {', '.join(lengths)[:60]!r}")
    return Framing(Body.LENGTH, int(lengths[0]))
