# SPDX-License-Identifier: Apache-2.0
"""The header names of the wire, and which of them may pass which way (R1, R5, R7). Pure."""

from collections.abc import Iterable
from typing import Final

__all__ = [
    "CLAIM_EPOCH",
    "CLIENT",
    "CONTROL",
    "EMPTY_BODY",
    "EXPECT_EPOCH",
    "FRAME_TYPE",
    "HISTORY",
    "HOP",
    "KEEP",
    "NEW",
    "ROOT_PATH",
    "SCHEME",
    "STAGES",
    "WORKER",
    "Headers",
    "first",
    "firsts",
    "without",
    "without_ours",
]

Headers = list[tuple[bytes, bytes]]

WORKER: Final = b"rollout-worker"
CLAIM_EPOCH: Final = b"rollout-claim-epoch"
HISTORY: Final = b"rollout-history"
CLIENT: Final = b"rollout-client"
CONTROL: Final = b"rollout-control"
ROOT_PATH: Final = b"rollout-root-path"
SCHEME: Final = b"rollout-scheme"
HOP: Final = b"rollout-hop"
STAGES: Final = b"rollout-stages"
EXPECT_EPOCH: Final = b"rollout-expect-epoch"
KEEP: Final = b"keep"
NEW: Final = b"new"
"""In place of an epoch: nobody holds the claim, and the worker that is asked takes it."""
EMPTY_BODY: Final = b"rollout-empty-body"
"""The chunks are the hop's own: the client sent no body, and this Content-Length; "" for none."""
FRAME_TYPE: Final = b"application/vnd.rollout-delta"


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The value of the first header *name* (lower case), or None."""
    size = len(name)  # most names differ in it, which costs less to see
    for key, value in headers:
        if len(key) == size and key.lower() == name:
            return value
    return None


def firsts(headers: Headers) -> dict[bytes, bytes]:
    """The value of the first header of each name, in lower case: to look for several of them."""
    return {key.lower(): value for key, value in reversed(headers)}


def without(headers: Iterable[tuple[bytes, bytes]], *names: bytes) -> Headers:
    """All headers but those named (lower case), in order."""
    return [(key, value) for key, value in headers if key.lower() not in names]


def without_ours(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """All headers but those of the router: neither a client nor an application may set them."""
    return [(key, value) for key, value in headers if not key.lower().startswith(b"rollout-")]
