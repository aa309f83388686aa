# SPDX-License-Identifier: Apache-2.0
"""One form for each JSON value, and digests of it. Pure.

What is recorded is what a later process reads: every value goes through this form before it is
used, so that a tuple is a list and a key is a string from the first use on. NaN and infinities have
no form: they would come back as something else, or not at all.
"""

import hashlib
import json
from typing import Any, Final

__all__ = ["GENESIS", "canonical", "chained", "digest", "link"]

GENESIS: Final = "rollout_router.checkpoint/1"
"""What every chain begins with, besides what it is the chain of."""


def canonical(value: Any) -> str:
    """The JSON text of *value*: keys sorted, no spaces, ASCII alone.

    Raises:
        TypeError, ValueError: JSON has no form for it.
    """
    return json.dumps(
        value, allow_nan=False, ensure_ascii=True, separators=(",", ":"), sort_keys=True
    )


def digest(text: str | bytes) -> str:
    """The sha256 of *text*, in hexadecimal digits."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def link(previous: str, *parts: str | int | None) -> str:
    """The next link of a chain: changed, missing or reordered parts change every later one."""
    return digest(canonical([previous, *parts]))


def chained(*parts: str | int | None) -> str:
    """The first link of a chain of what *parts* name."""
    return link(GENESIS, *parts)
