# SPDX-License-Identifier: Apache-2.0
"""Performing an operation over HTTP, and telling what became of it.

    answer                                       what it means
    2xx, 4xx of the application                  performed: the answer is the result
    503 with Retry-After, 429, no connection     not performed: refused before anything happened
    409 checkpoint_parked                        likewise, as gyms say it
    500 environment_failed                       not performed: it was begun and set back
    4xx or 5xx with a code of ours               a refusal of the environment, with its outcome
    any other, a cut or late answer, no JSON     lost: it may have been performed

Nothing is sent again here: an operation is, by its run, under the same id.
"""

import json
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp

from rollout_router.checkpoint.effects import Lost, NotPerformed
from rollout_router.checkpoint.errors import CODES, CheckpointRefusal
from rollout_router.checkpoint.wire import REVISION, Operation, declined, error_of

__all__ = ["ANSWER_BYTES_MAX", "CONNECT_S", "Answer", "Caller"]

ANSWER_BYTES_MAX: Final = 64 << 20
"""Bytes of one answer; it protects memory. A longer one cannot be recorded and counts as lost."""

CONNECT_S: Final = 10.0
"""How long a server has to take a connection; then nothing was sent."""

_ALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""In seconds, and tries: a host that vanished without a word is noticed, a slow server never."""

_ERRORS: Final = (4, 5)  # the first digit of a status
_ANSWERED: Final = (2, 4)
_REVISION: Final = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server answered to an operation that it performed."""

    status: int
    document: Any
    cookies: Mapping[str, str]  # those that it set
    revision: int | None


class Caller:
    """Sends operations to one server; an asynchronous context manager opens its connections.

    Args:
        url: of the server, without a slash at its end.
        timeout_s: for one answer; None waits as long as it takes.
    """

    def __init__(self, url: str, *, timeout_s: float | None = None) -> None:
        self.url = url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            timeout=self._timeout,
            connector=aiohttp.TCPConnector(limit=0, socket_factory=_noticing),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def post(
        self,
        operation: Operation,
        path: str,
        document: Any,
        *,
        cookies: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one operation.

        Raises:
            NotPerformed, Lost, CheckpointRefusal: as the module says.
        """
        headers = operation.headers()
        if cookies:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
        return await self._sent("POST", path, document, headers)

    async def forget(self, environment_id: str) -> None:
        """Tell an environment server that an environment is no longer needed; again is fine.

        Raises:
            CheckpointRefusal: ``environment_unreachable``.
        """
        try:
            await self._sent("DELETE", f"/ng-control/v1/environments/{environment_id}", None, {})
        except (NotPerformed, Lost) as error:
            raise CheckpointRefusal(
                "environment_unreachable",
                f"environment {environment_id} could not be given up at {self.url}: {error}",
            ) from error

    async def _sent(
        self, method: str, path: str, document: Any, headers: Mapping[str, str]
    ) -> Answer:
        if self._client is None:
            raise RuntimeError("a caller is used within its context")
        try:
            async with self._client.request(
                method,
                self.url + path,
                json=document,
                headers=headers,
                allow_redirects=False,
            ) as response:
                raw = await _whole(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotPerformed(f"{self.url} takes no connection: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(f"{method} {path}: {error!r}") from error
        return _judged(path, response, raw)


def _noticing(info: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices when its other end is gone, also while nothing is said."""
    family, kind, protocol, *_ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _ALIVE.items():
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    raw = bytearray()
    async for chunk in response.content.iter_any():
        raw += chunk
        if len(raw) > ANSWER_BYTES_MAX:
            raise Lost(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(raw)


def _judged(path: str, response: aiohttp.ClientResponse, raw: bytes) -> Answer:
    """What became of the operation, from the whole answer."""
    try:
        document = json.loads(raw) if raw else None
    except (ValueError, RecursionError):
        document = None
    status, kind = response.status, response.status // 100
    code, message = error_of(document) if kind in _ERRORS else ("", "")
    said = f"{path}: {status} {code or raw[:200]!r} {message}".rstrip()
    retry_after_s = _seconds(response.headers.get("retry-after"))
    refused = declined(status, code, retry_after=retry_after_s is not None)
    if refused or code == "environment_failed":
        tried = code == "environment_failed"
        raise NotPerformed(said, retry_after_s=retry_after_s or 0.0, tried=tried)
    if code in CODES:
        raise CheckpointRefusal(code, said)
    if kind not in _ANSWERED or (raw and document is None):
        raise Lost(said)
    revision = response.headers.get(REVISION, "")
    return Answer(
        status=status,
        document=document,
        # As they came: a value in quotes may hold what ends one without them.
        cookies={name: morsel.coded_value for name, morsel in response.cookies.items()},
        revision=int(revision) if _REVISION.fullmatch(revision) else None,
    )


def _seconds(text: str | None) -> float | None:
    """Retry-After in seconds; None without one, and for a date, which our servers do not send."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
