# SPDX-License-Identifier: Apache-2.0
"""What a worker says of itself and its rollouts, read tolerantly. Pure.

Another version of the product may have written it: unknown fields are passed over, a field of
another type is null, a row without a name or epoch is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["TEXT_LENGTH_MAX", "Changes", "Row", "read_changes", "unreported_row"]

TEXT_LENGTH_MAX: Final = 400
"""Characters of one text that a worker says; a reason has 300, an id 200."""

Row = dict[str, Any]
"""A rollout as the API shows it: the keys of :func:`unreported_row`."""

_NUMBERS: Final = ("turns", "body_bytes", "sent_bytes", "in_flight", "resyncs")
_TEXTS: Final = ("kind", "claimed_at", "how", "last_outcome", "last_at")
_EVENT_TEXTS: Final = ("at", "event", "rollout_id", "request_id", "reason", "from_worker")
_STATUS_NUMBERS: Final = ("claims", "sessions", "in_flight", "parked", "bases", "base_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """One answer of a worker.

    Attributes:
        cursor: what to ask with next.
        reset: the worker tells everything anew: what is not told again is gone.
        more: there is more behind *cursor* now.
        status: of the worker, by the keys of the API.
        rollouts: the rows that changed.
        gone: rollouts that it does not have any more, with the claim epoch that it had.
        events: what happened, oldest first.
    """

    cursor: int
    reset: bool
    more: bool
    status: Mapping[str, Any]
    rollouts: list[Row] = field(default_factory=list)
    gone: list[tuple[str, int]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)


def read_changes(worker_id: str, document: Mapping[str, Any]) -> Changes:
    """What *document*, an answer of that worker, says.

    Raises:
        ValueError: it is no such answer.
    """
    cursor = _number(document.get("cursor"))
    if document.get("id") != worker_id or cursor is None:
        raise ValueError(f"worker {worker_id} did not say what changed: {str(document)[:200]}")
    rows = (_row(worker_id, told) for told in _objects(document, "rollouts"))
    return Changes(
        cursor=cursor,
        reset=document.get("reset") is True,
        more=document.get("more") is True,
        status=_status(document.get("status")),
        rollouts=[row for row in rows if row is not None],
        gone=[
            (told["rollout_id"], told["claim_epoch"])
            for told in _objects(document, "gone")
            if _is_named(told)
        ],
        events=[_event(worker_id, told) for told in _objects(document, "events")],
    )


def unreported_row(
    rollout_id: str, claim_epoch: int, worker_id: str, *, state: str, verdict: str | None
) -> Row:
    """A rollout of which no worker told anything."""
    return {
        "rollout_id": rollout_id,
        "kind": None,
        "state": state,
        "claim_epoch": claim_epoch,
        "worker_id": worker_id,
        "verdict": verdict,
        "turns": None,
        "body_bytes": None,
        "sent_bytes": None,
        "in_flight": None,
        "resyncs": None,
        "claimed_at": None,
        "how": None,
        "last_outcome": None,
        "last_at": None,
    }


def _row(worker_id: str, told: Mapping[str, Any]) -> Row | None:
    """There may be thousands a second: the checks stand where they are made."""
    if not _is_named(told):
        return None
    row = unreported_row(
        told["rollout_id"], told["claim_epoch"], worker_id, state="owned", verdict="alive"
    )
    for name in _NUMBERS:
        number = told.get(name)
        if type(number) is int and number >= 0:
            row[name] = number
    for name in _TEXTS:
        text = told.get(name)
        if type(text) is str:
            row[name] = text if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX]
    return row


def _status(told: object) -> dict[str, Any]:
    """Of the keys of the API all that can be understood."""
    if not isinstance(told, dict):
        return {}
    lag_ms = told.get("lag_ms")
    return {
        **{name: _number(told.get(name)) for name in _STATUS_NUMBERS},
        "leaving": told.get("leaving") is True,
        "lag_ms": lag_ms if type(lag_ms) in {int, float} else None,
        "started_at": _text(told.get("started_at")),
    }


def _event(worker_id: str, told: Mapping[str, Any]) -> dict[str, Any]:
    epoch = _number(told.get("claim_epoch"))
    texts = {name: _text(told.get(name)) for name in _EVENT_TEXTS}
    return {**texts, "claim_epoch": epoch, "worker_id": worker_id}


def _objects(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    told = document.get(name)
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []


def _is_named(told: Mapping[str, Any]) -> bool:
    rollout_id, epoch = told.get("rollout_id"), told.get("claim_epoch")
    return type(rollout_id) is str and len(rollout_id) <= TEXT_LENGTH_MAX and type(epoch) is int


def _number(told: object) -> int | None:
    return told if type(told) is int and told >= 0 else None


def _text(told: object) -> str | None:
    return told[:TEXT_LENGTH_MAX] if type(told) is str else None
