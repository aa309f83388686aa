# SPDX-License-Identifier: Apache-2.0
"""Rollout keys: the bearer key of a rollout is an HMAC of its id. Pure.

Code in one sandbox holds one key, so it can neither read, extend nor hijack another's history.
"""

import hmac

__all__ = ["key_matches", "mint_key"]


def mint_key(secret: bytes, rollout_id: str) -> str:
    """The key of *rollout_id*: 64 hex digits of HMAC-SHA256 under *secret*."""
    return hmac.digest(secret, rollout_id.encode(), "sha256").hex()


def key_matches(secret: bytes, rollout_id: str, authorization: bytes | None) -> bool:
    """Whether *authorization* carries the key of *rollout_id*; compared in constant time."""
    scheme, _, key = (authorization or b"").partition(b" ")
    expected = mint_key(secret, rollout_id).encode()
    return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), expected)
