# SPDX-License-Identifier: Apache-2.0
"""The documents of the commands that read: each reads the store, in a thread."""

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Response

from rollout_router.admin.access import AdminRefusal
from rollout_router.admin.address import AdminAddress
from rollout_router.admin.query import Q_LENGTH_MAX
from rollout_router.claims import valid_rollout_id
from rollout_router.documents.admission import admission_document
from rollout_router.documents.claim import claim_document
from rollout_router.documents.claims import claims_document
from rollout_router.documents.workers import workers_document
from rollout_router.routing.sweeping import Pace

__all__ = ["named_rollout", "store_routes"]

_SECONDS_MAX: Final = 1e9

_Id = Annotated[str, Path(max_length=Q_LENGTH_MAX)]
_Document = dict[str, Any]


def store_routes(address: AdminAddress) -> APIRouter:
    """The routes of this topic."""
    router = APIRouter(prefix="/api", redirect_slashes=False)
    store, state_dir = address.store, address.state_dir

    @router.get("/claims", response_model=_Document)
    async def claims(
        worker: Annotated[str | None, Query(max_length=Q_LENGTH_MAX)] = None,
        verdict: Literal["alive", "dead", "unknown"] | None = None,
        older_than_s: Annotated[float | None, Query(ge=0, le=_SECONDS_MAX)] = None,
    ) -> Response:
        """As `claims list --json`."""
        age = None if older_than_s is None else timedelta(seconds=older_than_s)
        return await address.read(
            lambda: claims_document(
                store, worker=worker, verdict=verdict, older_than=age, step=Pace()
            )
        )

    @router.get("/claims/{rollout_id}", response_model=_Document)
    async def claim(rollout_id: _Id) -> Response:
        """As `claims show --json`; `claim` is null where there is none."""
        named = named_rollout(rollout_id)
        return await address.read(lambda: claim_document(store, named))

    @router.get("/workers", response_model=_Document)
    async def workers() -> Response:
        """As `workers list --json`."""
        return await address.read(lambda: workers_document(store, step=Pace()))

    @router.get("/admission", response_model=_Document)
    async def admission() -> Response:
        """As `admission status --json`."""
        return await address.read(lambda: admission_document(state_dir))

    return router


def named_rollout(rollout_id: str) -> str:
    """*rollout_id*, which is one.

    Raises:
        AdminRefusal: it is none.
    """
    if not valid_rollout_id(rollout_id):
        raise AdminRefusal("rollout_id_invalid", f"{rollout_id!r} is no rollout id")
    return rollout_id
