# SPDX-License-Identifier: Apache-2.0
"""Reading a whole request body, up to a bound.

The router bounds the bodies of what it routes. What names no rollout, or comes while nothing is
routed, reaches the gateway as it came.
"""

from collections import deque
from typing import Final

from rollout_router.asgi import Message, Receive
from rollout_router.errors import Refusal

__all__ = ["BODY_BYTES_MAX", "whole_body"]

BODY_BYTES_MAX: Final = 64 << 20
"""The longest request body that the gateway reads; beyond it 413. As long as the router's own."""


async def whole_body(
    receive: Receive, *, bytes_max: int = BODY_BYTES_MAX, rollout_id: str | None = None
) -> deque[Message] | None:
    """All messages of the request; None when the client left before the last.

    Raises:
        Refusal: 413 ``body_too_large``; the rest of the body was not read.
    """
    messages: deque[Message] = deque()
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        messages.append(message)
        size += len(message.get("body", b""))
        if size > bytes_max:
            named = "" if rollout_id is None else f" of rollout {rollout_id}"
            raise Refusal(
                "body_too_large",
                f"the request body{named} is longer than {bytes_max} bytes; nothing ran",
                rollout_id=rollout_id,
            )
        if not message.get("more_body", False):
            return messages
