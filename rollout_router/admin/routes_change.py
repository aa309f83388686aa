# SPDX-License-Identifier: Apache-2.0
"""What changes anything: it needs the token, and is a dry run without ``yes`` where it clears.

Each is what the command of the same name does, in a thread, and answers with its document.
"""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from rollout_router.admin.access import AdminRefusal
from rollout_router.admin.address import AdminAddress
from rollout_router.admin.models import Closing, Draining, Forcing, Opening, Reaping
from rollout_router.admin.query import Q_LENGTH_MAX
from rollout_router.admin.routes_store import named_rollout
from rollout_router.claims import FileClaimStore, valid_nonce
from rollout_router.documents import SCHEMA
from rollout_router.documents.admission import OPERATOR, admission_document, blockers_document
from rollout_router.documents.changes import force_document, open_store, reap_document
from rollout_router.operate import close_admission, drain, open_admission
from rollout_router.routing.sweeping import Pace

__all__ = ["claim_change_routes", "worker_change_routes"]

_Id = Annotated[str, Path(max_length=Q_LENGTH_MAX)]
_Document = dict[str, Any]


def claim_change_routes(address: AdminAddress) -> APIRouter:
    """Changes of claims."""
    router = APIRouter(prefix="/api", redirect_slashes=False)

    @router.post("/claims/reap", response_model=_Document)
    async def reap(asked: Reaping) -> Response:
        """As `claims reap --json`."""
        if asked.owner_missing is not None and not valid_nonce(asked.owner_missing):
            raise AdminRefusal("bad_request", f"{asked.owner_missing!r} is no worker's nonce")
        if asked.owner_missing is not None and asked.tombstones_older_than_s is not None:
            raise AdminRefusal(
                "bad_request", "owner_missing and tombstones_older_than_s exclude each other"
            )
        age_s = asked.tombstones_older_than_s

        def act() -> _Document:
            return reap_document(
                _opened(address, yes=asked.yes),
                owner_missing=asked.owner_missing,
                tombstones_older_than=None if age_s is None else timedelta(seconds=age_s),
                yes=asked.yes,
                step=Pace(),
            )

        return await address.change(act)

    @router.post("/claims/{rollout_id}/force", response_model=_Document)
    async def force(rollout_id: _Id, asked: Forcing) -> Response:
        """As `claims force --json`."""
        named = named_rollout(rollout_id)

        def act() -> _Document:
            return force_document(
                _opened(address, yes=asked.yes),
                named,
                expect_epoch=asked.expect_epoch,
                reason=asked.reason,
                yes=asked.yes,
            )

        return await address.change(act)

    return router


def worker_change_routes(address: AdminAddress) -> APIRouter:
    """What is asked of workers, and their gate."""
    router = APIRouter(prefix="/api", redirect_slashes=False)
    state_dir = address.state_dir

    @router.post("/workers/{worker_id}/drain", response_model=_Document)
    async def drain_worker(worker_id: _Id, asked: Draining) -> Response:
        """As `workers drain`; `gone`: whether it is."""

        def act() -> _Document:
            gone = drain(state_dir, worker_id, wait_s=asked.wait_s)
            return {"schema": SCHEMA, "worker_id": worker_id, "gone": gone}

        return await address.change(act)

    @router.post("/admission/close", response_model=_Document)
    async def close(asked: Closing) -> Response:
        """As `admission close --json`."""

        def act() -> _Document:
            blockers = close_admission(state_dir, by=OPERATOR, why=asked.why, wait_s=asked.wait_s)
            return blockers_document(blockers)

        return await address.change(act)

    @router.post("/admission/open", response_model=_Document)
    async def open_gate(asked: Opening) -> Response:  # noqa: ARG001 - its form is checked
        """As `admission open`; answers how the gate stands."""

        def act() -> _Document:
            open_admission(state_dir, by=OPERATOR)
            return admission_document(state_dir)

        return await address.change(act)

    return router


def _opened(address: AdminAddress, *, yes: bool) -> FileClaimStore:
    return open_store(address.state_dir, to_change=yes, allow_network_fs=address.allow_network_fs)
