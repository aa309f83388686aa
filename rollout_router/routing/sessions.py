# SPDX-License-Identifier: Apache-2.0
"""How a stateful session is named: by its client in a request, by the application in an answer.

Pure. A session is claimed under a name of its own, which no rollout may bear where sessions are
routed: ``session.`` and its id, or ``session..`` and the sha256 of an id that cannot stand in a
claim. No id begins with a dot, so that no id can be mistaken for the digest of another.
"""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from rollout_router.claims import valid_rollout_id
from rollout_router.routing.settings import SessionSettings

__all__ = ["PREFIX", "SessionNames", "session_name"]

PREFIX: Final = "session."
_NAME_LENGTH_MAX: Final = 200  # of a rollout id, whose place the name takes in a claim

_Headers = Iterable[tuple[bytes, bytes]]


class SessionNames:
    """Finds the names of sessions in the headers of one service."""

    def __init__(self, settings: SessionSettings) -> None:
        self._cookie = (settings.cookie or "").encode("latin-1")
        self._header = (settings.header or "").lower().encode("latin-1")
        self._stable_id = settings.stable_id

    def in_request(self, headers: _Headers) -> set[str]:
        """The names that a client sent: none, one, or, where it contradicts itself, several."""
        found = self._cookies(headers) if self._cookie else _values(headers, self._header)
        return {name for raw in found if (name := self._name(raw)) is not None}

    def in_answer(self, headers: _Headers, *, now: datetime) -> str | None:
        """The name of the session that the client will know after this answer, if it names one.

        A cookie that is deleted, or that has expired by *now*, names none. The last one counts.
        """
        if not self._cookie:
            values = _values(headers, self._header)
            return self._name(values[-1]) if values else None
        name = None
        for line in _values(headers, b"set-cookie"):
            pair, *attributes = line.split(b";")
            key, _, value = pair.partition(b"=")
            if key.strip() == self._cookie:
                name = None if _is_over(attributes, now=now) else self._name(value)
        return name

    def _cookies(self, headers: _Headers) -> Iterator[bytes]:
        for line in _values(headers, b"cookie"):
            for pair in line.split(b";"):
                key, _, value = pair.partition(b"=")
                if key.strip() == self._cookie:
                    yield value

    def _name(self, raw: bytes) -> str | None:
        # Some clients take the quotes of a cookie's value off, others send them back.
        text = raw.strip().strip(b'"').decode("latin-1")
        if not text:
            return None
        try:
            return session_name(text if self._stable_id is None else self._stable_id(text))
        except ValueError:  # as stable_id says that this names no session
            return None


def session_name(stable_id: str) -> str:
    """The name that a session is claimed by.

    Raises:
        ValueError: the id cannot be encoded.
    """
    digest = hashlib.sha256(stable_id.encode()).hexdigest()
    name = PREFIX + stable_id
    fits = valid_rollout_id(stable_id) and len(name) <= _NAME_LENGTH_MAX
    return name if fits else f"{PREFIX}.{digest}"


def _values(headers: _Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def _is_over(attributes: list[bytes], *, now: datetime) -> bool:
    """Whether a cookie with these attributes is deleted. Source: RFC 6265, sections 5.2 and 5.3."""
    of = {}
    for attribute in attributes:
        key, _, value = attribute.partition(b"=")
        of[key.strip().lower()] = value.strip().decode("latin-1")
    try:
        return int(of[b"max-age"]) <= 0  # stands above Expires
    except (KeyError, ValueError):
        pass
    try:
        expires = parsedate_to_datetime(of[b"expires"])
    except (KeyError, ValueError):
        return False
    return (expires if expires.tzinfo else expires.replace(tzinfo=UTC)) <= now
