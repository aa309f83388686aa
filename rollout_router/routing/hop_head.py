# SPDX-License-Identifier: Apache-2.0
"""The head of a hop: what of a request's is passed on, and what is added (R1, R5). Pure."""

from typing import Final

from rollout_router.asgi import Scope
from rollout_router.routing import headers as wire
from rollout_router.routing.headers import Headers
from rollout_router.routing.hop_scope import scope_headers
from rollout_router.routing.identity import path_of
from rollout_router.transport.hop_wire import HOP_BY_HOP

__all__ = [
    "begin_of_head",
    "end_of_head",
    "lines_of_connection",
    "of_the_claim",
    "of_the_message",
    "target_of",
]

_KEPT: Final = frozenset({b"content-type", b"cookie", wire.HISTORY})
_OF_EVERY_CONNECTION: Final = (b"keep-alive", b"close")
_OF_THE_HOP: Final = HOP_BY_HOP | {b"content-length", b"expect"}


def begin_of_head(scope: Scope, *, identity: bytes, claim_epoch: int) -> bytes | None:
    """What a hop's head begins with, of one request and claim; None where it takes more care.

    With :func:`end_of_head` it is what :class:`Hop` sends of a whole request, made for speed of
    what our server's parser has checked.

    Args:
        scope: of that server: no name in capitals, no line break in a value or in the target.
        identity: the header that may name the rollout, in lower case.
        claim_epoch: under which its owner is expected to hold it.
    """
    method: str = scope["method"]
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target_of(scope))]
    for name, value in scope["headers"]:
        if name in _KEPT or name == identity:
            lines.append(name + b": " + value)
        elif name == b"connection":
            if value.lower() not in _OF_EVERY_CONNECTION:
                return None
        elif not (name in _OF_THE_HOP or name.startswith(b"rollout-")):
            lines.append(name + b": " + value)
    lines += [b": ".join(header) for header in of_the_claim(b"%d" % claim_epoch)]
    return b"\r\n".join(lines)


def lines_of_connection(scope: Scope) -> bytes:
    """What a hop's head says of its client, scheme and root path, which are all that is read."""
    return b"".join([b"\r\n" + b": ".join(header) for header in scope_headers(scope)])


def end_of_head(lines: bytes, body_bytes: int | None) -> bytes:
    """What a hop's head ends with.

    Args:
        lines: of :func:`lines_of_connection`.
        body_bytes: of the body; None: of a request that announced none and has none.
    """
    length = b"" if body_bytes is None else b"\r\ncontent-length: %d" % body_bytes
    return lines + length + b"\r\n\r\n"


def of_the_claim(epoch: bytes) -> Headers:
    """What says that it is a hop, and which claim epoch it means; ``new`` of a new rollout."""
    return [(wire.HOP, b"1"), (wire.EXPECT_EPOCH, epoch)]


def of_the_message(headers: Headers, identity: bytes) -> Headers:
    """What a hop passes on: no header of one connection, of ours, or named by Connection.

    What tells a frame from a body, asks for history or names the rollout is never dropped. Of ours
    nothing else may pass: the private socket believes what it is told.
    """
    passed, named = [], b""
    kept = _KEPT | {identity}
    for header in headers:
        name = header[0].lower()
        if name in kept:
            passed.append(header)
        elif name == b"connection":
            named += b"," + header[1]
        elif not (name in _OF_THE_HOP or name.startswith(b"rollout-")):
            passed.append(header)
    if not named:
        return passed
    dropped = {token.strip().lower() for token in named.split(b",")} - kept
    return [header for header in passed if header[0].lower() not in dropped]


def target_of(scope: Scope) -> bytes:
    """Path and query, as they came."""
    path = path_of(scope)
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path
