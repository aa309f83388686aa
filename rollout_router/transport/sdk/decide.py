# SPDX-License-Identifier: Apache-2.0
"""What an SDK's request becomes on its way out, whatever HTTP library carries it. Pure.

S1, S4, S5: each decision about history is the sandbox side's own (sandbox/client.py); here a
request is only read for it. Eligible is a body that the SDK holds whole: a stream passes as it is.
Runs on the standard library of Python 3.9.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple, TypedDict

from rollout_router.transport.sandbox.client import (
    BASES_BYTES_MAX,
    BODY_BYTES_MAX,
    SHORT_BYTES,
    Abort,
    Client,
    Deliver,
    Outgoing,
    ResendFull,
    is_eligible,
)
from rollout_router.transport.sandbox.http1 import is_header_name
from rollout_router.transport.sandbox.wire import (
    ROLLOUT_HEADER,
    Headers,
    header_values,
    is_rollout_id,
    passed_on,
    path_rollout,
)

__all__ = ["Asked", "Pass", "Sender", "Settings", "is_short"]

_logger = logging.getLogger(__name__)


class Settings(TypedDict, total=False):
    """What a transport can be told. See :class:`Sender`."""

    rollout: str | None
    rollout_header: str
    deflate: bool
    bases_bytes_max: int
    body_bytes_max: int


class Asked(NamedTuple):
    """A request, as far as the decision looks."""

    method: str
    origin: str  # scheme, host and port
    target: str  # raw path and query
    headers: Headers
    body: bytes | None  # None: a stream, which can be read once


class Pass(NamedTuple):
    """Send it as it came, with these headers."""

    headers: Headers

    def settle(self, status: int, headers: Headers) -> Deliver | Abort:
        """Decide what becomes of the answer."""
        passed = passed_on(self.headers, status, headers)
        if passed is None:
            return Abort("the gateway asked for a body that it has")
        return Deliver(passed)


class Sender:
    """The sending side of one transport. Safe for threads.

    Args:
        rollout: the id that goes into the header where a request names none.
        rollout_header: the header that names a rollout where the path does not.
        deflate: whether inserted bytes are compressed where that is shorter.
        bases_bytes_max: memory for bodies that the gateway holds.
        body_bytes_max: a longer body passes through.

    Raises:
        ValueError: *rollout* is no id, or *rollout_header* no name of a header.
    """

    def __init__(
        self,
        *,
        rollout: str | None = None,
        rollout_header: str = ROLLOUT_HEADER,
        deflate: bool = True,
        bases_bytes_max: int = BASES_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        if rollout is not None and not is_rollout_id(rollout):
            raise ValueError(f"not a rollout id: {rollout!r}")
        if not is_header_name(rollout_header):
            raise ValueError(f"not the name of a header: {rollout_header!r}")
        self._rollout = rollout
        self._rollout_header = rollout_header
        self._body_bytes_max = body_bytes_max
        self._client = Client(
            clock=time.monotonic,
            bases_bytes_max=bases_bytes_max,
            deflate=deflate,
            on_failure=lambda error: _logger.warning("no frame, sent in full: %r", error),
        )

    def plan(self, asked: Asked) -> Outgoing | Pass:
        """Decide how a request goes out. Hashes and encodes: some milliseconds a megabyte."""
        rollout, headers = self._named(asked)
        body = asked.body
        if (
            rollout is not None
            and body
            and len(body) <= self._body_bytes_max
            and not header_values(headers, "Transfer-Encoding")
            and is_eligible(asked.method, asked.headers)
        ):
            return self._client.prepare(asked.origin, rollout, headers, body)
        if rollout is not None and asked.method == "POST":
            size = _length(headers) or 0 if body is None else len(body)
            self._client.tally(rollout, bytes_sent=size, bytes_full=size)
        return Pass(headers)

    def settle(
        self, outgoing: Outgoing, status: int, headers: Headers, body: bytes
    ) -> Deliver | ResendFull | Abort:
        """Decide what becomes of an answer; *body* where ``wants_body`` says so and it is short."""
        return self._client.settle(outgoing, status, headers, body)

    def statistics(self) -> dict[str, Any]:
        """What each rollout has sent: ``{"rollouts": {id: {"calls", "bytes_sent", …}}}``.

        A body that passes as a stream counts with the length that it announces.
        """
        tallies = self._client.statistics()
        return {"rollouts": {rollout: tally._asdict() for rollout, tally in tallies.items()}}

    def _named(self, asked: Asked) -> tuple[str | None, Headers]:
        """The rollout that a request names, and the headers that go out."""
        rollout = path_rollout(asked.target)
        if rollout is not None:
            return rollout, asked.headers
        named = header_values(asked.headers, self._rollout_header)
        if not named and self._rollout is not None:
            return self._rollout, [*asked.headers, (self._rollout_header, self._rollout)]
        known = len(named) == 1 and is_rollout_id(named[0])
        return named[0] if known else None, asked.headers


def is_short(headers: Headers) -> bool | None:
    """Whether an answer's body is small enough to be read and dropped; None: it does not say."""
    length = _length(headers)
    return None if length is None else length <= SHORT_BYTES


def _length(headers: Headers) -> int | None:
    values = header_values(headers, "Content-Length")
    return int(values[0]) if len(values) == 1 and values[0].isdecimal() else None
