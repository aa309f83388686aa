# SPDX-License-Identifier: Apache-2.0
"""What a caller can be told, and whether it may send again (R2, R4, R6).

Two kinds of exception leave a room and reach HTTP:

    Exception
    ├── Refusal        part of the protocol: one row of ``ANSWERS``, sent as OpenAI-shaped JSON
    └── ResponseCut    an answer that had begun cannot be finished: the connection is aborted (R4)

This module knows no HTTP library. It is not a list of what can go wrong on disk: the claims room
has errors of its own, and the middleware translates them here, once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

__all__ = ["ANSWERS", "Answer", "Refusal", "ResponseCut"]

RETRY_AFTER_SECONDS: Final = 1
"""Sent with every 503. One second: a take-over or a restart of a worker takes about that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One public error code. Codes are never renamed."""

    status: int
    retry_after: bool = False  # True: nothing happened, and the same request may be sent again


ANSWERS: Final[Mapping[str, Answer]] = {
    "bad_request": Answer(status=400),
    "rollout_id_invalid": Answer(status=400),
    "delta_malformed": Answer(status=400),
    "rollout_token_invalid": Answer(status=401),
    "request_timeout": Answer(status=408),
    "gym_history_resync": Answer(status=409),
    "session_owner_lost": Answer(status=410),
    "body_too_large": Answer(status=413),
    "request_target_too_long": Answer(status=414),
    "delta_unsupported": Answer(status=415),
    "request_head_too_large": Answer(status=431),
    "claim_moved": Answer(status=503, retry_after=True),  # 421 between workers: Refusal.status
    "application_failed": Answer(status=500),
    "answer_cut": Answer(status=502),
    "owner_lost_in_flight": Answer(status=502),
    "record_refused": Answer(status=502),
    "session_refused": Answer(status=502),
    "owner_unreachable": Answer(status=503, retry_after=True),
    "claim_store_unavailable": Answer(status=503, retry_after=True),
    "admission_closed": Answer(status=503, retry_after=True),
    "draining": Answer(status=503, retry_after=True),
    "overloaded": Answer(status=503, retry_after=True),
    "owner_timeout": Answer(status=504),
}


class Refusal(Exception):  # noqa: N818 - a refusal is an answer of the protocol, not an error
    """An answer of the protocol that is not the application's.

    Args:
        code: a key of :attr:`answers`; ``KeyError`` otherwise.
        message: for people: what happened, to which rollout, what to do.
        rollout_id: None where the request names none.
        claim_epoch: the epoch that the refuser knows of, None where it knows of none.
        status: only ``claim_moved`` overrides it, with 421, between workers.
    """

    answers: ClassVar[Mapping[str, Answer]] = ANSWERS
    """The codes that this kind of refusal has."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        rollout_id: str | None = None,
        claim_epoch: int | None = None,
        status: int | None = None,
    ) -> None:
        answer = self.answers[code]
        super().__init__(message)
        self.code = code
        self.message = message
        self.rollout_id = rollout_id
        self.claim_epoch = claim_epoch
        self.status = answer.status if status is None else status
        self.retry_after = answer.retry_after

    def body(self) -> bytes:
        """The JSON document, in the form that OpenAI clients parse."""
        error = {
            "message": self.message,
            "type": "invalid_request_error" if self.status < 500 else "server_error",  # noqa: PLR2004
            "code": self.code,
            "param": None,
            "rollout_id": self.rollout_id,
            "claim_epoch": self.claim_epoch,
        }
        return json.dumps({"error": error}).encode()

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Content headers, and Retry-After where the same request may be sent again."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(self.body())).encode()),
        ]
        if self.retry_after:
            headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        return headers


class ResponseCut(Exception):  # noqa: N818 - names what became of the answer
    """The answer had begun and cannot be finished; raising it out of an ASGI application aborts.

    A server that sees it closes the connection without a final chunk, so that no client takes a
    cut answer for a whole one (R4).
    """
