# SPDX-License-Identifier: Apache-2.0
"""Request bodies as a harness writes them, and the frames that carry them."""

import hashlib
import json
from typing import Any

from rollout_router.transport.sandbox.frame import encode_frame
from rollout_router.transport.sandbox.wire import CONTENT_TYPE

__all__ = ["FRAME_HEADERS", "body_of", "conversation", "digest", "frame"]

FRAME_HEADERS = {"content-type": CONTENT_TYPE}

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "description": f"{name} " * 80, "parameters": {}}
    for name in ("read", "write", "edit", "bash")
]


def conversation(turns: int, *, tag: str = "") -> list[dict[str, Any]]:
    """A user message, then *turns* of an assistant message and a long user message."""
    items = [{"role": "user", "content": f"{tag} begin"}]
    for turn in range(turns):
        items.append({"role": "assistant", "content": f"{tag} step {turn}"})
        items.append({"role": "user", "content": f"{tag} output {turn} " + "x" * 900})
    return items


def body_of(items: list[dict[str, Any]], **fields: Any) -> bytes:
    """A Responses request body, compact as every harness writes it, with its tools behind."""
    document = {"model": "scripted", "input": items, "tools": TOOLS, **fields}
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def digest(body: bytes) -> str:
    """The name of a base."""
    return hashlib.sha256(body).hexdigest()


def frame(base: bytes, target: bytes, *, deflate: bool = False) -> bytes:
    """The frame that carries *target* on *base*."""
    encoded = encode_frame(
        digest(base), target, base, content_type="application/json", deflate=deflate
    )
    if encoded is None:
        raise ValueError("a frame would not be smaller")
    return encoded
