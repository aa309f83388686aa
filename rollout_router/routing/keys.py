# SPDX-License-Identifier: Apache-2.0
"""Rollout keys: the key of a rollout is an HMAC of its id. Pure.

Code in one sandbox holds one key, so it can neither read, extend nor hijack another's history. A
client sends it as its API key: OpenAI's clients as a bearer token, those of the Messages dialect as
``x-api-key``.
"""

import hmac
from collections.abc import Iterable, Iterator
from typing import Final

from rollout_router.claims import valid_rollout_id

__all__ = ["KEY_HEADERS", "key_matches", "mint_key"]

KEY_HEADERS: Final = (b"authorization", b"x-api-key")
"""Where a key is looked for. With keys on, neither header of a rollout's call goes any further."""

_Headers = Iterable[tuple[bytes, bytes]]


def mint_key(secret: bytes, rollout_id: str) -> str:
    """The key of *rollout_id*: 64 hex digits of HMAC-SHA256 under *secret*.

    Raises:
        ValueError: no rollout can have this id.
    """
    if not valid_rollout_id(rollout_id):
        raise ValueError(f"{rollout_id!r} is no rollout id")
    return hmac.digest(secret, rollout_id.encode(), "sha256").hex()


def key_matches(secret: bytes, rollout_id: str, headers: _Headers) -> bool:
    """Whether *headers* carry the key of *rollout_id*; each is compared in constant time."""
    expected = mint_key(secret, rollout_id).encode()
    return any(hmac.compare_digest(key, expected) for key in _keys(headers))


def _keys(headers: _Headers) -> Iterator[bytes]:
    bearer, plain = KEY_HEADERS
    for name, value in headers:
        if name.lower() == plain:
            yield value.strip()
        elif name.lower() == bearer:
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()
