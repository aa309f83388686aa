# SPDX-License-Identifier: Apache-2.0
"""Each request of a rollout or session, counted at its worker from its beginning to its end."""

from typing import Final, Literal

from rollout_router.logs import REQUEST, RequestMarks
from rollout_router.metrics import RECEIVED, REQUEST_BYTES, REQUESTS, SAVED_BYTES, STAGE_SECONDS
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.observed import Observed

__all__ = ["Port", "begin", "class_of", "end", "outcome_of"]

Port = Literal["public", "private"]

_WORDS: Final = {"5xx": "failed", "cut": "failed", "client_gone": "cancelled"}  # as records say it
_CLASSES: Final = {status: f"{status // 100}xx" for status in range(100, 600)}


def begin(exchange: Exchange, port: Port, *, received: bool = False) -> None:
    """The running task serves this request; *received*: it was counted before."""
    if not received:
        RECEIVED[port].inc()
    REQUEST.set(RequestMarks(exchange.scope["headers"]))


def end(exchange: Exchange, port: Port, observed: Observed | None) -> None:
    """It is over, however that came."""
    outcome = outcome_of(exchange)
    REQUESTS[port, outcome].inc()
    progress = exchange.progress
    for stage, spent_ms in exchange.stages.spent_ms.items():
        if stage != "hop":  # which has a metric of its own
            STAGE_SECONDS[stage].observe(spent_ms / 1000)
    if progress.sent_bytes:
        REQUEST_BYTES["delta" if exchange.is_frame else "full"].inc(progress.sent_bytes)
        if exchange.is_frame and (saved_bytes := progress.body_bytes - progress.sent_bytes) > 0:
            SAVED_BYTES.inc(saved_bytes)
    if observed is not None and progress.served is not None:
        observed.ended(
            progress.served,
            outcome="refused" if progress.refused else _WORDS.get(outcome, "completed"),
            body_bytes=progress.body_bytes,
            sent_bytes=progress.sent_bytes,
        )


def outcome_of(exchange: Exchange) -> str:
    """How a request ended: a code of ours, the class of a whole answer, client_gone, or cut."""
    client, refused = exchange.client, exchange.progress.refused
    if refused is not None:
        return refused
    if client.complete:
        return class_of(client.status)
    return "cut" if client.started or not client.gone.is_set() else "client_gone"


def class_of(status: int | None) -> str:
    """``2xx`` of 200."""
    return _CLASSES.get(status or 0, "other")
