# SPDX-License-Identifier: Apache-2.0
"""The forms of the admin address's documents, as its OpenAPI page tells them.

What is sent is written from what is known, not through these: they cost nothing for a view. A test
holds the two together. Fields may be added to every document.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollout_router.claims import WHY_LENGTH_MAX
from rollout_router.operate import WAIT_S_MAX

__all__ = [
    "Closing",
    "Draining",
    "EventsDocument",
    "Forcing",
    "Opening",
    "OverviewDocument",
    "Reaping",
    "RolloutDocument",
    "RolloutsDocument",
]

_REASON_LENGTH_MAX: Final = 1000  # the log has all of it, a tombstone the first 200
_Verdict = Literal["alive", "dead", "unknown"]


class _Sent(BaseModel):
    schema_: Literal[1] = Field(alias="schema")


class _Worker(BaseModel):
    id: str
    pid: int
    socket: str
    verdict: _Verdict
    answers: bool
    leaving: bool
    claims: int | None
    sessions: int | None
    in_flight: int | None
    parked: int | None
    bases: int | None
    base_bytes: int | None
    lag_ms: float | None
    started_at: str


class _Gate(BaseModel):
    open: bool
    by: str
    why: str


class _Totals(BaseModel):
    rollouts: int
    in_flight: int
    turns: int
    body_bytes: int
    sent_bytes: int
    saved_bytes: int
    takeovers: int
    resyncs: int
    releases: int
    left_out: int
    unreadable: int


class _Step(BaseModel):
    at: str
    takeovers: int
    saved_bytes: int
    sent_bytes: int
    turns: int


class OverviewDocument(_Sent):
    """The service as a whole. Totals count since the admin process began."""

    service: str
    store_id: str
    url: str | None
    at: str
    workers: list[_Worker]
    gate: _Gate
    totals: _Totals
    series: list[_Step]


class _Rollout(BaseModel):
    rollout_id: str
    kind: str | None
    state: Literal["owned", "owner_dead", "lost"]
    claim_epoch: int
    worker_id: str
    verdict: _Verdict | None
    turns: int | None
    body_bytes: int | None
    sent_bytes: int | None
    in_flight: int | None
    resyncs: int | None
    claimed_at: str | None
    how: str | None
    last_outcome: str | None
    last_at: str | None


class RolloutsDocument(_Sent):
    """A page of rollouts."""

    total: int
    matching: int
    offset: int
    rollouts: list[_Rollout]


class _Event(BaseModel):
    number: int
    at: str
    event: str | None
    rollout_id: str | None
    claim_epoch: int | None
    worker_id: str
    request_id: str | None
    reason: str | None
    from_worker: str | None


class RolloutDocument(_Sent):
    """One rollout: what workers say, what is on disk, and what happened to it."""

    rollout: _Rollout | None
    claim: dict[str, Any] | None
    timeline: list[_Event]


class EventsDocument(_Sent):
    """What happened, oldest first; ask again with *cursor*."""

    cursor: int
    events: list[_Event]


class _Asked(BaseModel):
    """What a change is asked with: a key that is not known is an error, not passed over."""

    model_config = ConfigDict(extra="forbid")


class Reaping(_Asked):
    """A dry run without *yes*."""

    yes: bool = False
    owner_missing: str | None = None
    tombstones_older_than_s: Annotated[float, Field(ge=0, le=1e9)] | None = None


class Forcing(_Asked):
    """A dry run without *yes*. Without *expect_epoch* the claim has to be unreadable."""

    expect_epoch: int | None = None
    reason: Annotated[str, Field(max_length=_REASON_LENGTH_MAX)]
    yes: bool = False


class Draining(_Asked):
    """*wait_s*: how long to wait until it is gone."""

    wait_s: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 0.0


class Closing(_Asked):
    """*wait_s*: how long calls in flight may take to end."""

    why: Annotated[str, Field(max_length=WHY_LENGTH_MAX)]
    wait_s: Annotated[float, Field(ge=0, le=WAIT_S_MAX)] = 0.0


class Opening(_Asked):
    """Nothing is asked."""
