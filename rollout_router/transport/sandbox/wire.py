# SPDX-License-Identifier: Apache-2.0
"""The words of the wire: header names, marks, the rollout's identity. Pure; docs/wire.md explains.

Both sides use this module. It runs on the standard library of Python 3.8, as everything beside it.
"""

import hashlib
import re
from typing import List, Optional, Tuple

__all__ = [
    "CONTENT_TYPE",
    "COPY_TIMES_MAX",
    "DICTIONARY_BYTES",
    "EMPTY_SHA256",
    "HISTORY_HEADER",
    "KEEP",
    "KEPT",
    "LINE_BYTES_MAX",
    "NONE",
    "OPS_MAX",
    "RESYNC",
    "ROLLOUT_HEADER",
    "Headers",
    "header_values",
    "history_mark",
    "is_delta_type",
    "is_rollout_id",
    "is_sha256",
    "passed_on",
    "path_rollout",
    "replaced",
    "sha256_hex",
    "without",
]

Headers = List[Tuple[str, str]]
"""Header lines in the order and case they came in; values are latin-1 text."""

CONTENT_TYPE = "application/vnd.rollout-delta"
HISTORY_HEADER = "Rollout-History"
ROLLOUT_HEADER = "X-Session-ID"  # the default of the configured identity header

KEEP = "keep"  # request: hold this body as a base
KEPT = "kept="  # answer: the body with this digest is held
RESYNC = "resync"  # answer: the base is not held, send the body in full
NONE = "none"  # answer: the feature is on, but this body is not held

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
"""The base that every side always holds: no bytes."""

LINE_BYTES_MAX = 262_144
OPS_MAX = 4_096
COPY_TIMES_MAX = 16  # copies build at most so many bytes for one of the base
DICTIONARY_BYTES = 32_768  # the window of deflate: a longer dictionary could not be referred to

_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_ROLLOUT_ID = re.compile(_ID)
_ROLLOUT_PATH = re.compile(r"/(?:ng-rollout|sessions)/(" + _ID + r")(?:[/?]|\Z)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def sha256_hex(body: bytes) -> str:
    """The name of *body* as a base."""
    return hashlib.sha256(body).hexdigest()


def is_sha256(text: str) -> bool:
    """Whether *text* is a digest as it is written on the wire: 64 lower-case hex digits."""
    return _SHA256.fullmatch(text) is not None


def is_rollout_id(text: str) -> bool:
    """Whether *text* can name a rollout: 1 to 200 of ``A-Za-z0-9._-``, a letter or digit first."""
    return _ROLLOUT_ID.fullmatch(text) is not None


def path_rollout(raw_path: str) -> Optional[str]:
    """The rollout that a raw request path names, None where it names none.

    The path is not decoded: a ``%`` breaks the pattern.
    """
    match = _ROLLOUT_PATH.match(raw_path)
    return None if match is None else match.group(1)


def header_values(headers: Headers, name: str) -> List[str]:
    """All values of one header, in order. Names compare without case."""
    wanted = name.lower()
    return [value for key, value in headers if key.lower() == wanted]


def without(headers: Headers, name: str) -> Headers:
    """A copy of *headers* that lacks one header."""
    dropped = name.lower()
    return [(key, value) for key, value in headers if key.lower() != dropped]


def replaced(headers: Headers, name: str, value: str) -> Headers:
    """A copy with exactly one such header, at the place of the first one, or at the end."""
    wanted = name.lower()
    result: Headers = []
    found = False
    for key, old in headers:
        if key.lower() != wanted:
            result.append((key, old))
        elif not found:
            found = True
            result.append((key, value))
    if not found:
        result.append((name, value))
    return result


def history_mark(headers: Headers) -> Optional[str]:
    """The mark of an answer; None where there is none, or more than one."""
    values = header_values(headers, HISTORY_HEADER)
    return values[0] if len(values) == 1 else None


def is_delta_type(content_type: str) -> bool:
    """Whether a Content-Type names a delta frame, parameters aside."""
    return content_type.split(";", 1)[0].strip().lower() == CONTENT_TYPE


def passed_on(asked: Headers, status: int, answer: Headers) -> Optional[Headers]:
    """The headers of an answer to what passed as it came; None: abort it.

    The mark stays where it was asked for: another client of this kind sits before this one. A
    resync of what was no frame would end some harnesses (S1).
    """
    types = header_values(asked, "Content-Type")
    if header_values(asked, HISTORY_HEADER) or any(map(is_delta_type, types)):
        return answer
    if status == 409 and history_mark(answer) == RESYNC:  # noqa: PLR2004 - its status
        return None
    return without(answer, HISTORY_HEADER)
