# SPDX-License-Identifier: Apache-2.0
"""Which rollout or session a request names: path, header, session (R7). Pure.

Ids are read from the raw path, so that a percent sign breaks the pattern instead of hiding
another spelling of the same id. A path that names a rollout only once it is decoded, as an
application may read it, names it by an invalid id.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from rollout_router.asgi import Scope
from rollout_router.claims.record import Kind
from rollout_router.routing.sessions import PREFIX, SessionNames

__all__ = ["InvalidIdentity", "Rollout", "identify", "path_of", "path_within"]

_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PATH: Final = re.compile(rb"/(?:ng-rollout|sessions)/([^/?#]*)(?:[/?#]|$)")
_CONTROL: Final = b"/ng-control/"  # NeMo Gym's own; never claimed or forwarded


@dataclass(frozen=True, slots=True)
class Rollout:
    """What a request belongs to: a rollout, or a session under the name that it is claimed by."""

    rollout_id: str
    kind: Kind = "rollout"


@dataclass(frozen=True, slots=True)
class InvalidIdentity:
    """The request names a rollout by an id outside the pattern, or more than one session."""

    text: str


def path_of(scope: Scope) -> bytes:
    """The whole path, still percent-encoded; encoded anew where the server does not say."""
    raw: bytes | None = scope.get("raw_path")
    return raw or quote(scope["path"], safe="/:@!$&'()*+,;=~").encode()


def path_within(scope: Scope) -> bytes:
    """The path below the root path that the server was given."""
    path, given = path_of(scope), scope.get("root_path")
    if not given:
        return path
    root = quote(given.rstrip("/")).encode()
    return path[len(root) :] if root and path.startswith(root + b"/") else path


def identify(
    raw_path: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    header: bytes,
    sessions: SessionNames | None = None,
) -> Rollout | InvalidIdentity | None:
    """Find the identity of a request; None where it names no rollout.

    Args:
        raw_path: the path as it came over the wire, still percent-encoded.
        headers: names in any case.
        header: the configured header's name, in lower case.
        sessions: how sessions are named; None where none are routed.
    """
    if raw_path.startswith(_CONTROL):
        return None
    found = _rollout(raw_path, headers, header)
    if sessions is None:
        return found
    if isinstance(found, Rollout) and found.rollout_id.startswith(PREFIX):
        return InvalidIdentity(found.rollout_id)  # the name of a session's claim
    return found or _session(sessions.in_request(headers))


def _rollout(
    raw_path: bytes, headers: Iterable[tuple[bytes, bytes]], header: bytes
) -> Rollout | InvalidIdentity | None:
    match = _PATH.match(raw_path)
    if match:
        return _checked(match.group(1))
    if b"%" in raw_path and _PATH.match(unquote_to_bytes(raw_path)):
        return InvalidIdentity(raw_path.decode("latin-1"))
    named = {value for key, value in headers if key.lower() == header}
    if not named:
        return None
    if len(named) > 1:  # two names for one request: which one is meant cannot be known
        return InvalidIdentity(", ".join(sorted(value.decode("latin-1") for value in named)))
    return _checked(named.pop())


def _session(names: set[str]) -> Rollout | InvalidIdentity | None:
    if len(names) > 1:
        return InvalidIdentity(", ".join(sorted(names)))
    return Rollout(names.pop(), kind="session") if names else None


def _checked(raw_id: bytes) -> Rollout | InvalidIdentity:
    if _ID.fullmatch(raw_id):
        return Rollout(raw_id.decode("ascii"))
    return InvalidIdentity(raw_id.decode("latin-1"))
