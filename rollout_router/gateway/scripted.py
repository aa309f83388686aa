# SPDX-License-Identifier: Apache-2.0
"""The model inside: deterministic, stateless, and able to play an agent's whole task.

Every answer carries ``Scripted-Request-Sha256``, the digest of the exact bytes that it was given,
so that anyone can check that a body arrived as it was written (H1).
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Self

from rollout_router.gateway.dialects import Turn, events, plain, usage_of
from rollout_router.gateway.model import (
    INLINE_BYTES_MAX,
    Dialect,
    ModelAnswer,
    ModelRequest,
    problem,
    whole,
)
from rollout_router.gateway.script import next_turn

__all__ = ["Scripted", "answer_with"]

_MODELS: Final = "/v1/models"
_MODEL: Final = {"id": "scripted", "object": "model", "created": 0, "owned_by": "rollout-router"}


class Scripted:
    """A model that asks for *steps* tool calls, one a turn, and then says that it is done.

    Raises:
        ValueError: *steps* is negative.
    """

    reads_documents = True

    def __init__(self, *, steps: int = 6) -> None:
        if steps < 0:
            raise ValueError(f"a script has 0 steps or more, not {steps}")
        self._steps = steps

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @asynccontextmanager
    async def answer(self, request: ModelRequest) -> AsyncIterator[ModelAnswer]:
        """Answer from the request alone."""
        if len(request.body) <= INLINE_BYTES_MAX:
            yield self._answer(request)
        else:
            yield await asyncio.to_thread(self._answer, request)

    def _answer(self, request: ModelRequest) -> ModelAnswer:
        digest = hashlib.sha256(request.body).hexdigest()
        stamp = [(b"scripted-request-sha256", digest.encode())]
        dialect, document = request.dialect, request.document
        if dialect is None:
            return _catalogue(request.path, stamp)
        if document is None:
            message = "the scripted model reads bodies without Content-Encoding only"
            return problem(
                415, message, code="encoding_unsupported", dialect=dialect, headers=stamp
            )
        said = [next_turn(dialect, document, steps=self._steps)]
        turn = Turn(
            said=said,
            model=document["model"],
            name=digest[:24],
            usage=usage_of(said, len(request.body)),
        )
        return answer_with(turn, dialect, document, stamp)


def answer_with(
    turn: Turn,
    dialect: Dialect,
    document: Mapping[str, Any],
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> ModelAnswer:
    """*turn* as *document*, the request, asks for it: streamed or not."""
    if not document.get("stream"):
        return whole(200, plain(dialect, turn), headers)
    options = document.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    head = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
    ]
    parts = _stream(events(dialect, turn, include_usage=usage))
    return ModelAnswer(status=200, headers=[*head, *headers], parts=parts)


def _catalogue(path: str, stamp: list[tuple[bytes, bytes]]) -> ModelAnswer:
    if path == _MODELS:
        listing: dict[str, Any] = {"object": "list", "data": [_MODEL]}
        return whole(200, listing, stamp)
    name = path.removeprefix(f"{_MODELS}/")
    if name != path and name:
        return whole(200, {**_MODEL, "id": name}, stamp)  # it answers for any name
    return problem(404, f"{path}: not found", code="not_found", dialect=None, headers=stamp)


async def _stream(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
