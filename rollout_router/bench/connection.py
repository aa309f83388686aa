# SPDX-License-Identifier: Apache-2.0
"""One keep-alive connection to a gateway: a bare ``http.client``, which costs little itself."""

import http.client
import uuid
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from rollout_router.transport.sandbox.wire import HISTORY_HEADER

__all__ = ["Answer", "BenchFailed", "Connection", "to_two_workers"]

_WAIT_S: Final = 60.0
_CONNECTIONS_MAX: Final = 256
"""Each lands at either worker: that one gets none of so many does not happen by chance."""


class BenchFailed(Exception):  # noqa: N818 - named by what happened
    """What should be measured did not happen; the message says what did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the benchmark looks at."""

    status: int
    worker_id: str | None  # the owner's, also over the hop
    mark: str | None  # Rollout-History


class Connection:
    """Keep-alive; closed by :meth:`close`."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._http = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_WAIT_S)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """Send, and read the answer to its end.

        Raises:
            BenchFailed: the status is another than 200, or the connection broke.
        """
        try:
            self._http.request("POST", path, body, headers)
            response = self._http.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise BenchFailed(f"POST {path} broke: {error!r}") from error
        if response.status != http.HTTPStatus.OK:
            raise BenchFailed(f"POST {path} was answered {response.status}: {content[:500]!r}")
        return Answer(
            status=response.status,
            worker_id=response.headers.get("Rollout-Worker"),
            mark=response.headers.get(HISTORY_HEADER),
        )

    def close(self) -> None:
        """Close it."""
        self._http.close()


def to_two_workers(url: str) -> tuple[Connection, Connection]:
    """Two connections that end at two workers.

    A rollout goes to the worker where it first arrives, so the first call of a new rollout on a
    connection tells which worker that connection ends at.

    Raises:
        BenchFailed: all connections ended at one worker.
    """
    first, worker = _probed(url)
    spare = []
    try:
        for _ in range(_CONNECTIONS_MAX):
            connection, other = _probed(url)
            if other != worker:
                return first, connection
            spare.append(connection)
    finally:
        for connection in spare:  # open until now, so that they kept one worker's hands full
            connection.close()
    first.close()
    raise BenchFailed(f"{_CONNECTIONS_MAX} connections ended all at worker {worker}")


def _probed(url: str) -> tuple[Connection, str]:
    connection = Connection(url)
    path = f"/sessions/probe-{uuid.uuid4().hex}/v1/chat/completions"
    answer = connection.post(path, b"{}", {"Content-Type": "application/json"})
    if answer.worker_id is None:
        raise BenchFailed("an answer names no worker: the gateway does not route")
    return connection, answer.worker_id
