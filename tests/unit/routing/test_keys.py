# SPDX-License-Identifier: Apache-2.0
"""Rollout keys."""

import hashlib
import hmac

import pytest

from rollout_router.routing.keys import key_matches, mint_key

SECRET = b"secret"


def test_a_key_is_the_hmac_of_its_rollout() -> None:
    assert mint_key(SECRET, "r1") == hmac.new(SECRET, b"r1", hashlib.sha256).hexdigest()


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER   "])
def test_its_own_key_opens_a_rollout(scheme: bytes) -> None:
    assert key_matches(SECRET, "r1", scheme + mint_key(SECRET, "r1").encode())


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer \xff\xfe",
        mint_key(SECRET, "r1").encode(),
        b"Basic " + mint_key(SECRET, "r1").encode(),
        b"Bearer " + mint_key(SECRET, "r2").encode(),
        b"Bearer " + mint_key(b"other", "r1").encode(),
        b"Bearer " + mint_key(SECRET, "r1").encode()[:-1],
        b"Bearer " + mint_key(SECRET, "r1").upper().encode(),
    ],
)
def test_nothing_else_opens_a_rollout(authorization: bytes | None) -> None:
    assert not key_matches(SECRET, "r1", authorization)
