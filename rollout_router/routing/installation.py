# SPDX-License-Identifier: Apache-2.0
"""The one call that puts the router around an application."""

from typing import Any, cast

from starlette.applications import Starlette

from rollout_router.asgi import App
from rollout_router.routing.router import Router
from rollout_router.routing.settings import Settings

__all__ = ["install"]


def install(app: Any, settings: Settings) -> App:
    """Route the rollouts of *app* and return what is to be served.

    A FastAPI or Starlette application is changed in place and returned; any other ASGI callable is
    wrapped. Middleware that is added afterwards stands outside of the router; a forwarded request
    goes through it twice, at the worker that took it and at its owner.

    Raises:
        ValueError: the router is already installed on *app*, which is unchanged.
    """
    if isinstance(app, Router) or (
        isinstance(app, Starlette)
        and any(cast("object", layer.cls) is Router for layer in app.user_middleware)
    ):
        raise ValueError("the router is already installed on this application")
    if isinstance(app, Starlette):
        app.add_middleware(Router, settings=settings, outermost=app)
        return app
    return Router(app, settings)
