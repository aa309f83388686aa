# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint asks of an environment server: copies out of it, and copies into it. Blocks."""

import http.client
import json
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from rollout_router.checkpoint.environment_control import (
    CONTROL_PATH,
    DOCUMENT_BYTES_MAX,
    read_document,
)
from rollout_router.checkpoint.errors import CODES, CheckpointRefusal

__all__ = ["ANSWER_S", "EnvironmentServer", "unnamed"]

ANSWER_S: Final = 30.0
"""How long a server has for one environment: it reads or writes one row."""

_OK: Final = frozenset({200, 201, 204})


class EnvironmentServer:
    """One server. Each request has a connection of its own: an idle one would be closed.

    Args:
        url: ``http://host:port``, and a path before those of the server.

    Raises:
        ValueError: it is no such URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"an environment server is http://host:port, not {url!r}")
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, parts.port or 80
        self._prefix = parts.path.rstrip("/") + CONTROL_PATH

    def export(self, environment_id: str) -> Mapping[str, Any] | None:
        """A copy of an environment; None where it cannot be carried over, or is not there.

        Raises:
            CheckpointRefusal: ``environment_unreachable``; ``manifest_damaged``: it is no copy; or
                what the server says.
        """
        try:
            raw = self._ask("GET", environment_id, None)
        except CheckpointRefusal as refusal:
            if refusal.outcome == "restart":
                return None
            raise
        if read_document(raw, environment_id=environment_id).state is None:
            return None
        found: Mapping[str, Any] = json.loads(raw)
        return found

    def restore(self, document: Mapping[str, Any], *, store_id: str) -> str | None:
        """Give it a copy, under its own id and fenced by *store_id* from now on. Again is fine.

        Returns:
            The name of this import, where it made the environment; None where it was there.

        Raises:
            CheckpointRefusal: ``environment_unreachable``, ``restore_conflict``: it has another
                environment of that id; or ``manifest_damaged``.
        """
        path = f"{document['environment_id']}?store_id={store_id}"
        raw = self._ask("PUT", path, json.dumps(document).encode())
        try:
            return str(json.loads(raw)["import"]) if raw else None
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreachable(f"PUT {path} answered {raw[:300]!r}") from error

    def take_back(self, environment_id: str, made: str) -> None:
        """Undo the import of that name, as if it never had been. Nothing where it is undone.

        Raises:
            CheckpointRefusal: ``environment_unreachable``; ``restore_conflict``: the environment
                was used since, and stays.
        """
        self._ask("DELETE", f"{environment_id}?import={made}", None)

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        """The body of an answer that is none of a refusal."""
        try:
            status, raw = self._sent(method, self._prefix + path, body)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(f"{method} {path}: {error!r}") from error
        if status in _OK:
            return raw
        document = None
        with suppress(ValueError):
            document = json.loads(raw)
        told = document.get("error") if isinstance(document, dict) else None
        code = told.get("code") if isinstance(told, dict) else None
        said = f"{method} {path} answered {status}: {raw[:300]!r}"
        if isinstance(code, str) and code in CODES:
            raise CheckpointRefusal(code, f"the environment server at {self.url}: {said}")
        raise self._unreachable(said)

    def _sent(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"} if body is not None else {}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        with closing(connection):
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(DOCUMENT_BYTES_MAX)

    def _unreachable(self, why: str) -> CheckpointRefusal:
        return CheckpointRefusal(
            "environment_unreachable", f"the environment server at {self.url}: {why}"
        )


def unnamed(rollout_id: str) -> CheckpointRefusal:
    """A rollout has environments, and nobody said where."""
    return CheckpointRefusal(
        "environment_unreachable",
        f"rollout {rollout_id} has an environment: name its server",
        rollout_id=rollout_id,
    )
