# SPDX-License-Identifier: Apache-2.0
"""An application that tells what its request looked like: state, application, client, root path.

``app`` has the router installed as a gym would install it, below a session layer that is added
afterwards; ``plain`` is for ``serve --app``, which brings a router of its own.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rollout_router import Settings, install

__all__ = ["app", "plain"]


@asynccontextmanager
async def lifespan(application: FastAPI) -> AsyncIterator[dict[str, str]]:
    application.state.pool = "a pool"
    yield {"database": "a database"}


class Marking:
    """A layer that leaves something in the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "marked": True}, receive, send)


def make() -> FastAPI:
    application = FastAPI(lifespan=lifespan)

    @application.post("/sessions/{rollout_id}/look", name="look")
    async def look(rollout_id: str, request: Request) -> dict[str, Any]:
        return {
            "rollout": rollout_id,
            "database": request.state.database,
            "pool": request.app.state.pool,
            "client": request.client.host if request.client else None,
            "scheme": request.url.scheme,
            "root": request.scope["root_path"],
            "url": str(request.url_for("look", rollout_id="x")),
            "marked": request.scope.get("marked", False),
        }

    return application


plain = make()
app = make()
if "TEST_STATE_DIR" in os.environ:
    settings = Settings(
        state_dir=Path(os.environ["TEST_STATE_DIR"]),
        run_dir=Path(os.environ["TEST_RUN_DIR"]),
        route_always=True,
    )
    install(app, settings)
    app.add_middleware(Marking)
