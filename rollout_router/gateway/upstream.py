# SPDX-License-Identifier: Apache-2.0
"""A real model server, behind the ``Model`` port (R2, R4, H1).

The body goes out as the bytes that came in, and the answer comes back as the bytes that were sent,
with the upstream's own errors among them. Nothing is retried, not even by the client library. There
is no time-out but the one for connecting: a model may think for hours, and whoever waits can hang
up. Leaving the context of an answer closes its connection unless the answer was read to its end.

A JSON answer begins when it is here in full, up to a bound: nobody can use it before its last byte,
and one that was cut on the way is still answered with an error instead of a cut.
"""

import asyncio
import base64
import io
import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final, Self

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from rollout_router.errors import ResponseCut
from rollout_router.gateway.model import Dialect, ModelAnswer, ModelRequest, problem
from rollout_router.gateway.withholding import JSON_WHOLE_BYTES_MAX, is_json

__all__ = ["Upstream"]

CONNECT_TIMEOUT_S: Final = 10.0
_IDLE_TIMEOUT_S: Final = 3.0
"""Idle connections are retired before common servers would (uvicorn: 5 s): a POST that meets a
closing connection is lost, because it is not sent again."""
_HEADER_BYTES_MAX: Final = 1 << 16
_RAW_BYTES_MAX: Final = 1 << 20  # above it, aiohttp wants a body as a stream
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"expect",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# An answer that is not encoded can be recorded as text, and its events can be seen (F2).
_NOT_FORWARDED: Final = _HOP_BY_HOP | {b"host", b"content-length", b"accept-encoding"}

_log = logging.getLogger(__name__)


class Upstream:
    """The model server at *base_url*, for example ``http://127.0.0.1:8000/v1``.

    Args:
        base_url: http or https; ends in ``/v1`` or not; without query. Credentials in it are sent
            as Basic authorization, in the place of the caller's own, and shown nowhere.
        connect_timeout_s: for name, connection and TLS together.

    Raises:
        ValueError: *base_url* is not such a URL.
    """

    reads_documents = False

    def __init__(self, base_url: str, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        url = _base(base_url)
        self._authorization = _basic(url)
        # Messages and logs are made from this one: a password must not reach them.
        self._shown = str(url.with_user(None))
        self._url = self._shown.rstrip("/").removesuffix("/v1")
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_TIMEOUT_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_s),
            response_class=_Response,
            cookie_jar=aiohttp.DummyCookieJar(),  # one rollout's cookies are not another's
            trust_env=False,
            auto_decompress=False,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
        )
        session._retry_connection = False  # noqa: SLF001 - no public switch; R2 forbids the retry
        self._session = session
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def answer(self, request: ModelRequest) -> AsyncIterator[ModelAnswer]:
        """Send *request* on; the answer begins with the upstream's head."""
        if self._session is None:
            raise RuntimeError("the upstream is not open")
        try:
            response = await self._session.request(
                request.method,
                self._target(request),
                data=_payload(request.body),
                headers=_outgoing(request.headers, self._authorization),
                skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            _log.warning("upstream %s: %s", self._shown, error)
            yield problem(
                502,
                f"the model server {self._shown} cannot be reached ({error}); nothing ran: check "
                "its address and that it is up, then send again",
                code="upstream_unreachable",
                dialect=request.dialect,
            )
            return
        except aiohttp.ClientError as error:
            why = str(error) or type(error).__name__
            yield _disconnected(
                f"the model server {self._shown} closed the connection without an answer ({why})",
                request.dialect,
            )
            return
        async with response:
            yield await self._begun(response, request.dialect)

    async def _begun(
        self, response: aiohttp.ClientResponse, dialect: Dialect | None
    ) -> ModelAnswer:
        headers, parts = _passed_on(response.raw_headers), self._parts(response)
        if any(name == b"content-type" and is_json(value) for name, value in headers):
            try:
                parts = await _held(parts, JSON_WHOLE_BYTES_MAX)
            except ResponseCut as cut:
                return _disconnected(str(cut), dialect)
        return ModelAnswer(status=response.status, headers=headers, parts=parts)

    async def _parts(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for part in response.content.iter_any():
                yield part
            if isinstance(response, _Response):
                response.raise_if_reset()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ResponseCut(f"the model server {self._shown} cut its answer: {error}") from error

    def _target(self, request: ModelRequest) -> URL:
        query = "?" + request.query.decode("latin-1") if request.query else ""
        return URL(f"{self._url}{request.path}{query}", encoded=True)


def _disconnected(what: str, dialect: Dialect | None) -> ModelAnswer:
    _log.warning("%s", what)
    message = f"{what}; the call may have run, and was not sent again"
    return problem(502, message, code="upstream_disconnected", dialect=dialect)


async def _held(parts: AsyncIterator[bytes], bytes_max: int) -> AsyncIterator[bytes]:
    """*parts* again, when they have ended or more than *bytes_max* of them are here."""
    held: list[bytes] = []
    held_bytes = 0
    async for part in parts:
        held.append(part)
        held_bytes += len(part)
        if held_bytes > bytes_max:
            break
    return _chain(held, parts)


async def _chain(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for part in first:
        yield part
    async for part in rest:
        yield part


def _base(text: str) -> URL:
    """The URL in *text*; ValueError does not show what it may hold of a password."""
    shown = re.sub(r"^([^/]*//)?.*@", r"\1…@", text, flags=re.DOTALL)
    wanted = "the upstream has to be an http or https URL, like http://127.0.0.1:8000/v1"
    if not text.isprintable() or " " in text:
        raise ValueError(f"{wanted}, and without spaces, not {shown!r}")
    try:
        url = URL(text)
        (url.raw_host or "").encode("idna")  # as the look-up of the name will do
    except ValueError:  # it may quote the text, password included
        raise ValueError(f"{wanted}, not {shown!r}") from None
    if url.scheme not in {"http", "https"} or not url.host or url.query or url.fragment:
        raise ValueError(f"{wanted}, not {shown!r}")
    if ":" in (url.user or ""):
        raise ValueError(f"{wanted}; the user name of {shown!r} holds a colon, which ends it")
    return url


def _basic(url: URL) -> str | None:
    if url.user is None and url.password is None:
        return None
    credentials = f"{url.user or ''}:{url.password or ''}"
    return "Basic " + base64.b64encode(credentials.encode()).decode()


class _Response(aiohttp.ClientResponse):
    """Tells a reset from an end where only the connection's end ends the answer.

    Without a length and without chunks, the library takes both for the end of the body (R4).
    """

    _lost: asyncio.Future[None] | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        if connection.protocol is not None:
            self._lost = connection.protocol.closed
        if self._lost is not None:
            self._lost.add_done_callback(_look)
        return await super().start(connection)

    def raise_if_reset(self) -> None:
        """Raise what ended the connection, if the body ended with it and it was not its end."""
        framed = "Content-Length" in self.headers or "Transfer-Encoding" in self.headers
        if not framed and self._lost is not None and self._lost.done():
            self._lost.result()


def _look(lost: asyncio.Future[None]) -> None:
    """A connection that breaks while nobody uses it is no news."""
    if not lost.cancelled():
        lost.exception()


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    if not body:
        return None
    return body if len(body) <= _RAW_BYTES_MAX else io.BytesIO(body)


def _outgoing(
    headers: Iterable[tuple[bytes, bytes]], authorization: str | None
) -> list[tuple[str, str]]:
    ours = [("Accept-Encoding", "identity")]
    dropped = _NOT_FORWARDED
    if authorization is not None:
        ours.append(("Authorization", authorization))
        dropped |= {b"authorization"}
    kept = _without(dropped, headers)
    return [*((name.decode("latin-1"), _text(value)) for name, value in kept), *ours]


def _passed_on(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in _without(_HOP_BY_HOP, headers)]


def _without(
    dropped: frozenset[bytes], headers: Iterable[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """*headers* without *dropped*, what Connection names, and ``Rollout-*``."""
    pairs = list(headers)
    named = {
        token.strip().lower()
        for name, value in pairs
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    return [
        (name, value)
        for name, value in pairs
        if (low := name.lower()) not in dropped
        and low not in named
        and not low.startswith(b"rollout-")
    ]


def _text(value: bytes) -> str:
    """A header value for aiohttp, which writes UTF-8; older bytes are the best that can be done."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
