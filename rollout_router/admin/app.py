# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of the admin address, and its page. FastAPI, behind a guard of its own."""

from importlib import resources
from typing import Final

from fastapi import APIRouter, FastAPI, Response

from rollout_router import __version__
from rollout_router.admin.access import AdminRefusal
from rollout_router.admin.address import AdminAddress
from rollout_router.admin.answering import answer_errors
from rollout_router.admin.guarded import Guarded
from rollout_router.admin.routes_change import claim_change_routes, worker_change_routes
from rollout_router.admin.routes_known import health_routes, known_routes
from rollout_router.admin.routes_store import store_routes

__all__ = ["create_app"]

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def create_app(address: AdminAddress) -> Guarded:
    """The application of *address*. Whoever serves it runs its ``watching``."""
    app = FastAPI(
        title="rollout-router admin",
        version=__version__,
        description="Reading is open; changing needs `Authorization: Bearer`, the admin token.",
        docs_url=None,  # its page loads from elsewhere
        redoc_url=None,
        openapi_url="/api/openapi.json",
        redirect_slashes=False,
    )
    answer_errors(app)
    for router in (
        health_routes(address),
        known_routes(address),
        store_routes(address),
        claim_change_routes(address),
        worker_change_routes(address),
        _page_routes(),
    ):
        app.include_router(router)
    return Guarded(app, address.access)


def _page_routes() -> APIRouter:
    """The page, from this package."""
    router = APIRouter(include_in_schema=False, redirect_slashes=False)
    folder = resources.files("rollout_router.admin") / "page"
    files = {
        file.name: (file.read_bytes(), _TYPES[suffix])
        for file in folder.iterdir()
        if (suffix := file.name.rpartition(".")[2]) in _TYPES
    }

    @router.get("/")
    async def index() -> Response:
        return sent("index.html")

    @router.get("/static/{name}")
    async def static(name: str) -> Response:
        return sent(name)

    def sent(name: str) -> Response:
        if name not in files:
            raise AdminRefusal("not_found", f"there is no file {name!r}")
        content, kind = files[name]
        return Response(content, media_type=kind)

    return router
