# SPDX-License-Identifier: Apache-2.0
"""Health, metrics, and what is known of workers and rollouts: answered from memory."""

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Path, Response
from fastapi import Query as Parameter

from rollout_router.admin.access import AdminRefusal
from rollout_router.admin.address import AdminAddress, json_response
from rollout_router.admin.models import (
    EventsDocument,
    OverviewDocument,
    RolloutDocument,
    RolloutsDocument,
)
from rollout_router.admin.query import LIMIT_MAX, Q_LENGTH_MAX, Query
from rollout_router.admin.views import written
from rollout_router.claims import valid_rollout_id
from rollout_router.documents import SCHEMA
from rollout_router.documents.claim import claim_document

__all__ = ["health_routes", "known_routes"]

_OFFSET_MAX: Final = 2**31
_NUMBER_MAX: Final = 2**63

_Text = Annotated[str, Parameter(max_length=Q_LENGTH_MAX)]


def _query(
    *,
    q: _Text = "",
    worker: _Text = "",
    state: Literal["", "owned", "owner_dead", "lost"] = "",
    outcome: _Text = "",
    sort: _Text = "last_at",
    order: Literal["asc", "desc"] = "desc",
    offset: Annotated[int, Parameter(ge=0, le=_OFFSET_MAX)] = 0,
    limit: Annotated[int, Parameter(ge=0, le=LIMIT_MAX)] = 100,
) -> Query:
    """What is empty asks for nothing."""
    return Query(
        q=q or None,
        worker=worker or None,
        state=state or None,
        outcome=outcome or None,
        sort=sort or "last_at",
        descending=order == "desc",
        offset=offset,
        limit=limit,
    )


def health_routes(address: AdminAddress) -> APIRouter:
    """For whoever watches the process and the service from outside."""
    router = APIRouter(redirect_slashes=False)
    known = address.known

    @router.get("/healthz")
    async def healthz() -> Response:
        """This process answers."""
        return json_response(written({"schema": SCHEMA, "status": "ok"}))

    @router.get("/readyz")
    async def readyz() -> Response:
        """200 where calls would be answered: a worker answers, the store is read, the gate open."""
        why = known.not_ready()
        document = {"schema": SCHEMA, "ready": not why, "why": why}
        return json_response(written(document), 503 if why else 200)

    @router.get("/metrics")
    async def metrics() -> Response:
        """The metrics of all workers, in Prometheus's text."""
        if address.scrape is None:
            raise AdminRefusal("not_found", "the metrics of workers are not collected here")
        try:
            text = await address.reads.run(address.scrape)
        except OSError as error:
            said = f"the folder in which workers count cannot be read: {error}"
            raise AdminRefusal("metrics_unavailable", said) from error
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def known_routes(address: AdminAddress) -> APIRouter:
    """What is known of workers and rollouts."""
    router = APIRouter(redirect_slashes=False)
    views = address.views

    @router.get("/api/overview", response_model=OverviewDocument)
    async def overview() -> Response:
        """The service as a whole."""
        return json_response(written(views.overview()))

    @router.get("/api/rollouts", response_model=RolloutsDocument)
    async def rollouts(query: Annotated[Query, Depends(_query)]) -> Response:
        """A page of rollouts: `q` is a part of the id."""
        return json_response(written(views.rollouts(query)))

    @router.get("/api/rollouts/{rollout_id}", response_model=RolloutDocument)
    async def rollout(rollout_id: Annotated[str, Path(max_length=Q_LENGTH_MAX)]) -> Response:
        """One rollout: what workers say, what is on disk, and what happened to it."""
        if not valid_rollout_id(rollout_id):
            raise AdminRefusal("rollout_id_invalid", f"{rollout_id!r} is no rollout id")
        found = await address.reads.run(lambda: claim_document(address.store, rollout_id))
        stands = found["claim"] is not None or found["unreadable"] is not None
        document = views.rollout(rollout_id, found if stands else None)
        if not stands and document["rollout"] is None and not document["timeline"]:
            said = f"rollout {rollout_id} has no claim, and nothing of it is remembered"
            raise AdminRefusal("not_found", said, rollout_id=rollout_id)
        return json_response(written(document))

    @router.get("/api/events", response_model=EventsDocument)
    async def events(
        after: Annotated[int, Parameter(ge=0, le=_NUMBER_MAX)] = 0,
    ) -> Response:
        """What happened behind the event of that number, oldest first."""
        return json_response(written(views.events(after)))

    @router.get("/api/stream")
    async def stream(query: Annotated[Query, Depends(_query)]) -> Response:
        """Server-Sent Events: `view`, with overview and page, at once and whenever they change."""
        return address.streams.response(lambda: views.view(query))

    return router
