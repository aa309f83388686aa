# SPDX-License-Identifier: Apache-2.0
"""What is written down of one call: the fields of a capture record, as one line of JSON. Pure."""

import base64
import codecs
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from rollout_router.call import Call

__all__ = ["Outcome", "Record"]

_SLICE_CHARS: Final = 1 << 15
# The control characters among them are escaped in JSON anyway.
_LINE_ENDS: Final = (("\x85", r"\u0085"), ("\u2028", r"\u2028"), ("\u2029", r"\u2029"))


class Outcome(StrEnum):
    """What became of a dispatched call.

    ``FAILED``: the application raised or left its answer unfinished, the status is 500 or more, or
    an event stream ended with an error or without an event that ends the turn. A 4xx is an answer,
    so it is ``COMPLETED``. ``CANCELLED``: the client went away, or the call was cancelled.
    """

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One call of one rollout.

    ``request`` is the exact body. ``response`` is the body of the answer as the application sent
    it, the part of it that was seen where the call failed; at most a bounded head, and then
    ``response_bytes`` is larger than its length. Times are UTC. ``status`` is None where the
    application had not answered.
    """

    call: Call
    model_call_id: str
    method: str
    path: str  # as received: raw, with the query
    started_at: datetime  # the request was complete and went to the application
    completed_at: datetime  # the answer was complete, or it was clear that it never would be
    status: int | None
    outcome: Outcome
    request: bytes
    response: bytes
    response_bytes: int

    def line(self) -> bytes:
        """The record as JSON without a line end of any kind; some milliseconds a megabyte."""
        truncated = self.response_bytes > len(self.response)
        fields: dict[str, object] = {
            "model_call_id": self.model_call_id,
            "rollout_id": self.call.rollout_id,
            "store_id": self.call.store_id,
            "claim_epoch": self.call.claim_epoch,
            "worker_id": self.call.worker_id,
            "method": self.method,
            "path": self.path,
            "started_at": self.started_at.isoformat(),
            "completed_at": self.completed_at.isoformat(),
            "status": self.status,
            "outcome": self.outcome.value,
            "request_sha256": hashlib.sha256(self.request).hexdigest(),
        }
        if truncated:
            fields["response_truncated"] = True
            fields["response_bytes"] = self.response_bytes
        request_key, request = _text_or_base64("request", "request_text", self.request)
        response_key, response = _text_or_base64(
            "response", "response", self.response, truncated=truncated
        )
        head = json.dumps(fields, separators=(",", ":"))[:-1]
        return (
            f'{head},"{request_key}":{_quoted(request)},"{response_key}":{_quoted(response)}}}'
        ).encode()


def _text_or_base64(
    name: str, text_key: str, content: bytes, *, truncated: bool = False
) -> tuple[str, str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # A head may end inside a character, which is then left out; a whole body may not.
        return text_key, decoder.decode(content, final=not truncated)
    except UnicodeDecodeError:
        return f"{name}_base64", base64.b64encode(content).decode("ascii")


def _quoted(text: str) -> str:
    """*text* as a JSON string, in slices: one call would keep the event loop from running."""
    slices = (text[at : at + _SLICE_CHARS] for at in range(0, len(text), _SLICE_CHARS))
    return '"' + "".join(map(_escaped, slices)) + '"'


def _escaped(text: str) -> str:
    """*text* inside a JSON string, also without the line ends that only ``str.splitlines`` sees."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    for character, escape in _LINE_ENDS:
        escaped = escaped.replace(character, escape)
    return escaped
