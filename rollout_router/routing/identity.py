# SPDX-License-Identifier: Apache-2.0
"""Which rollout a request names: path before header (R7). Pure.

Ids are read from the raw path, so that a percent sign breaks the pattern instead of hiding
another spelling of the same id.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["InvalidIdentity", "Rollout", "identify"]

_ID: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_PATH: Final = re.compile(rb"/(?:ng-rollout|sessions)/([^/?#]*)(?:[/?#]|$)")
_CONTROL: Final = b"/ng-control/"  # NeMo Gym's own; never claimed or forwarded


@dataclass(frozen=True, slots=True)
class Rollout:
    """The rollout that a request belongs to."""

    rollout_id: str


@dataclass(frozen=True, slots=True)
class InvalidIdentity:
    """The request names a rollout by an id outside the pattern."""

    text: str


def identify(
    raw_path: bytes, headers: Iterable[tuple[bytes, bytes]], *, header: bytes
) -> Rollout | InvalidIdentity | None:
    """Find the identity of a request; None where it names no rollout.

    Args:
        raw_path: the path as it came over the wire, still percent-encoded.
        headers: names in any case.
        header: the configured header's name, in lower case.
    """
    if raw_path.startswith(_CONTROL):
        return None
    match = _PATH.match(raw_path)
    if match:
        return _checked(match.group(1))
    named = {value for key, value in headers if key.lower() == header}
    if not named:
        return None
    if len(named) > 1:  # two names for one request: which one is meant cannot be known
        return InvalidIdentity(", ".join(sorted(value.decode("latin-1") for value in named)))
    return _checked(named.pop())


def _checked(raw_id: bytes) -> Rollout | InvalidIdentity:
    if _ID.fullmatch(raw_id):
        return Rollout(raw_id.decode("ascii"))
    return InvalidIdentity(raw_id.decode("latin-1"))
