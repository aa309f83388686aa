# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of ``httpx`` or ``httpx2``, to and from what the decision looks at. Pure.

*hx* is the library; classes of the two do not mix, so whatever is made here is made of the same
one. Header lines keep order, case and number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from rollout_router.transport.sandbox.client import Abort
from rollout_router.transport.sandbox.pool import IDLE_S
from rollout_router.transport.sandbox.wire import Headers
from rollout_router.transport.sdk.decide import Asked

__all__ = [
    "CONNECTIONS_MAX",
    "IDLE_CONNECTIONS_MAX",
    "Looked",
    "aborted",
    "asked",
    "handed_on",
    "limits",
    "text",
    "written",
]

CONNECTIONS_MAX = 1_000
"""To the gateway, beyond which a call waits; as many as the SDK's own client opens."""

IDLE_CONNECTIONS_MAX = 100  # as the SDK's own client


def asked(hx: Any, request: Any) -> Asked:
    """What is asked; the body where the request has it in memory, which needs no waiting.

    Raises:
        TypeError: a client of the other library asks.
    """
    if not isinstance(request, hx.Request):
        theirs = type(request).__module__.partition(".")[0]
        raise TypeError(f"a transport for {hx.__name__} does not serve a client of {theirs}")
    url = request.url
    return Asked(
        method=request.method,
        origin=f"{url.scheme}://{url.netloc.decode('ascii')}",
        target=url.raw_path.decode("ascii"),
        headers=text(request.headers.raw),
        body=request.read() if isinstance(request.stream, hx.ByteStream) else None,
    )


def written(hx: Any, request: Any, headers: Headers, payload: bytes | None = None) -> Any:
    """The request to send in place of *request*: other headers, and *payload* if not its body.

    Its extensions, which hold the timeouts, stay.
    """
    return hx.Request(
        request.method,
        request.url,
        headers=_raw(headers),
        stream=request.stream if payload is None else hx.ByteStream(payload),
        extensions=request.extensions,
    )


@dataclass(frozen=True)
class Looked:
    """A body whose beginning was read."""

    start: bytes
    rest: Any  # an iterator, asynchronous or not; None: nothing is left


def handed_on(hx: Any, response: Any, headers: Headers, looked: Looked | None = None) -> Any:
    """The answer with other headers; *looked* is its body where that was looked at already."""
    response.headers = hx.Headers(_raw(headers))
    if looked is not None:
        response.stream = _replayed(hx, looked, response.stream)
    return response


def _replayed(hx: Any, looked: Looked, stream: Any) -> Any:
    """*stream* from its beginning on."""
    if looked.rest is None:
        return hx.ByteStream(looked.start)

    class Replayed(hx.SyncByteStream):  # type: ignore[misc]  # the library is given
        def __iter__(self) -> Iterator[bytes]:
            yield looked.start
            yield from looked.rest

        def close(self) -> None:
            stream.close()

    class AsyncReplayed(hx.AsyncByteStream):  # type: ignore[misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield looked.start
            async for piece in looked.rest:
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return AsyncReplayed() if isinstance(stream, hx.AsyncByteStream) else Replayed()


def aborted(hx: Any, request: Any, step: Abort, rollout: str | None = None) -> Exception:
    """What an SDK takes for a broken connection."""
    of = "" if rollout is None else f"rollout {rollout}: "
    message = f"{of}{step.reason}; the answer is not handed on"
    error: Exception = hx.RemoteProtocolError(message, request=request)
    return error


def limits(hx: Any) -> Any:
    """Idle connections are closed before a server closes them under the next request."""
    return hx.Limits(
        max_connections=CONNECTIONS_MAX,
        max_keepalive_connections=IDLE_CONNECTIONS_MAX,
        keepalive_expiry=IDLE_S,
    )


def text(raw: list[tuple[bytes, bytes]]) -> Headers:
    """Header lines as the decision reads them."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in raw]


def _raw(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
