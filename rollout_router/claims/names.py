# SPDX-License-Identifier: Apache-2.0
"""The names of a store: rollouts, workers, stripes, files and sockets. Pure."""

import hashlib
import os
import re
from functools import lru_cache
from typing import Final

__all__ = [
    "ROLLOUT_ID",
    "SERVICE",
    "SOCKET_PATH_BYTES_MAX",
    "STRIPES",
    "file_name",
    "new_nonce",
    "stripe_of",
    "valid_nonce",
    "valid_rollout_id",
]

ROLLOUT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
SERVICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
STRIPES: Final = 256  # a change of the count is a change of the format
SOCKET_PATH_BYTES_MAX: Final = 107
"""sun_path holds 108 bytes, one of them the NUL."""
_NONCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NAME_BYTES_MAX: Final = 180
_KEPT: Final = "abcdefghijklmnopqrstuvwxyz0123456789-"
_ESCAPES: Final = {code: f"_{code:02x}" for code in range(128) if chr(code) not in _KEPT}
_NAMES_CACHED: Final = (
    4096  # the path is needed before every dispatch, and costs more than its stat
)


def valid_rollout_id(text: str) -> bool:
    """Whether *text* may name a rollout: 1 to 200 of ``A-Za-z0-9._-``, the first alphanumeric."""
    return ROLLOUT_ID.fullmatch(text) is not None


def valid_nonce(text: str) -> bool:
    """Whether *text* may name a worker: at most 32 characters, safe in file and socket names."""
    return _NONCE.fullmatch(text) is not None


def new_nonce() -> str:
    """A random name for one worker: 20 hexadecimal digits, never used before or again."""
    return os.urandom(10).hex()


@lru_cache(maxsize=_NAMES_CACHED)
def file_name(rollout_id: str) -> str:
    """The name of a claim file: unique also where a file system folds case; at most 180 bytes."""
    encoded = "r." + rollout_id.translate(_ESCAPES)
    if len(encoded) <= _NAME_BYTES_MAX:
        return encoded
    return f"{encoded[:100]}_.h{hashlib.sha256(rollout_id.encode()).hexdigest()}"


@lru_cache(maxsize=_NAMES_CACHED)
def stripe_of(rollout_id: str) -> str:
    """The stripe of a rollout, as two hexadecimal digits."""
    return hashlib.sha256(rollout_id.encode()).hexdigest()[:2]
