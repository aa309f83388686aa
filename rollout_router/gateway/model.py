# SPDX-License-Identifier: Apache-2.0
"""The port behind which a model stands, and what passes through it. No I/O.

A model is given the bytes that the client wrote and answers with bytes; the gateway changes neither
(H1). Two models implement it: ``Scripted`` and ``Upstream``.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, Self

__all__ = [
    "INLINE_BYTES_MAX",
    "Dialect",
    "Model",
    "ModelAnswer",
    "ModelRequest",
    "problem",
    "whole",
]

INLINE_BYTES_MAX: Final = 256 << 10
"""A longer body is read in a thread. To parse this much takes about 3 ms of the event loop."""

_SERVER_ERROR = 500


class Dialect(StrEnum):
    """The three ways to call a model; the value is the path."""

    RESPONSES = "/v1/responses"
    CHAT = "/v1/chat/completions"
    MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One call of a model, without what only routes it."""

    method: str
    path: str  # raw, from /v1 on
    query: bytes  # raw, without its question mark
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    dialect: Dialect | None  # None: not a call that generates
    document: Mapping[str, Any] | None  # body, read; None: encoded, or its model reads none


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """The head of an answer, and its body as it comes."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    parts: AsyncIterator[bytes]


class Model(Protocol):
    """A model; it is entered once, by the application's lifespan, and answers while it is open.

    Attributes:
        reads_documents: whether it is given the body as a document too. Where it is not, the body
            is checked, and nothing of the document is kept.
    """

    reads_documents: bool

    async def __aenter__(self) -> Self:
        """Open what answering needs."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""
        ...

    def answer(self, request: ModelRequest) -> AbstractAsyncContextManager[ModelAnswer]:
        """Begin to answer *request*; leaving the context ends the call, also in the middle.

        Raises:
            ResponseCut: from ``parts``: the answer has begun and cannot be finished.
        """
        ...


def whole(
    status: int, document: Mapping[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()
) -> ModelAnswer:
    """An answer that is one JSON document."""
    body = json.dumps(document, separators=(",", ":")).encode()
    content = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    return ModelAnswer(status=status, headers=[*content, *headers], parts=_one(body))


def problem(
    status: int,
    message: str,
    *,
    code: str,
    dialect: Dialect | None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> ModelAnswer:
    """An error in the form of *dialect*; OpenAI's where there is none."""
    kind = "invalid_request_error" if status < _SERVER_ERROR else "server_error"
    if dialect is Dialect.MESSAGES and status >= _SERVER_ERROR:
        kind = "api_error"
    error = {"message": message, "type": kind, "code": code, "param": None}
    envelope = {"type": "error"} if dialect is Dialect.MESSAGES else {}
    return whole(status, {**envelope, "error": error}, headers)


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body
