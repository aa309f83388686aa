# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint asks of an environment server: copies out of it, and copies into it. Blocks."""

import http.client
import json
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from rollout_router.checkpoint.errors import CODES, CheckpointRefusal

__all__ = ["ANSWER_S", "EnvironmentServer"]

ANSWER_S: Final = 30.0
"""How long a server has for one environment: it reads or writes one row."""

_PATH: Final = "/ng-control/v1/environments"
_OK: Final = frozenset({200, 201, 204})


class EnvironmentServer:
    """One server, over one connection; a context manager closes it.

    Args:
        url: ``http://host:port``.

    Raises:
        ValueError: it is no such URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"an environment server is http://host:port, not {url!r}")
        self.url = url.rstrip("/")
        self._prefix = parts.path.rstrip("/")
        self._connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=ANSWER_S
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def export(self, environment_id: str) -> Mapping[str, Any] | None:
        """A copy of an environment; None where it cannot be carried over, or is not there.

        Raises:
            CheckpointRefusal: ``environment_unreachable``, or what the server says.
        """
        try:
            found: Mapping[str, Any] = self._ask("GET", f"{_PATH}/{environment_id}", None)
        except CheckpointRefusal as refusal:
            if refusal.outcome == "restart":
                return None
            raise
        return None if found.get("restart_only") else found

    def restore(self, document: Mapping[str, Any], *, store_id: str) -> None:
        """Give it a copy, under its own id and fenced by *store_id* from now on. Again is fine.

        Raises:
            CheckpointRefusal: ``environment_unreachable``, ``restore_conflict``: it has another
                environment of that id; or ``manifest_damaged``.
        """
        path = f"{_PATH}/{document['environment_id']}?store_id={store_id}"
        self._ask("PUT", path, json.dumps(document).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            self._connection.request(method, self._prefix + path, body, headers)
            response = self._connection.getresponse()
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next request opens another
            raise self._unreachable(f"{method} {path}: {error!r}") from error
        document = None
        with suppress(ValueError):
            document = json.loads(raw)
        if response.status in _OK:
            return document
        told = document.get("error") if isinstance(document, dict) else None
        code = told.get("code") if isinstance(told, dict) else None
        said = f"{self.url}{path} answered {response.status}: {raw[:300]!r}"
        if isinstance(code, str) and code in CODES:
            raise CheckpointRefusal(code, said)
        raise self._unreachable(said)

    def _unreachable(self, why: str) -> CheckpointRefusal:
        return CheckpointRefusal(
            "environment_unreachable", f"the environment server at {self.url}: {why}"
        )
