# SPDX-License-Identifier: Apache-2.0
"""The one call that puts the router around an application.

R4  The router stands outside of every layer. A layer that passes an answer on as a response of its
    own, as everything under ``@app.middleware("http")`` does, would end a cut one cleanly.
"""

from typing import Any, Final

from starlette.applications import Starlette

from rollout_router.asgi import App
from rollout_router.routing.router import Router
from rollout_router.routing.settings import Settings

__all__ = ["check_installable", "install"]


def install(app: Any, settings: Settings) -> App:
    """Route the rollouts of *app* and return what is to be served.

    A FastAPI or Starlette application is changed in place and returned; any other ASGI callable is
    wrapped. All middleware is within the router, also what is added afterwards: a routed request
    goes through it once, at its owner.

    Raises:
        ValueError: the router is already installed on *app*, which is unchanged.
        RuntimeError: *app* has started, and is unchanged.
    """
    check_installable(app)
    if not isinstance(app, Starlette):
        return Router(app, settings)
    app.build_middleware_stack = _Layers(app, settings)  # type: ignore[method-assign]
    return app


def check_installable(app: Any) -> None:
    """Raise what :func:`install` would, for those who prepare more than the application."""
    starlette = app if isinstance(app, Starlette) else None
    outermost = app if starlette is None else starlette.build_middleware_stack
    if isinstance(outermost, Router | _Layers):
        raise ValueError("the router is already installed on this application")  # noqa: TRY004 - its type is right
    if starlette is not None and starlette.middleware_stack is not None:
        raise RuntimeError("the router cannot be installed on an application that has started")


class _Layers:
    """Builds the layers of an application when it starts, as it does itself; the router is last."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        self._app: Final = app
        self._build: Final = app.build_middleware_stack
        self._settings: Final = settings

    def __call__(self) -> App:
        return Router(self._build(), self._settings, outermost=self._app)
