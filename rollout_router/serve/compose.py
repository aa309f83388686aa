# SPDX-License-Identifier: Apache-2.0
"""The composition root: the one place that turns settings into an application."""

from typing import cast

from rollout_router.asgi import App
from rollout_router.claims import FileClaimStore
from rollout_router.routing import Router
from rollout_router.serve.application import load_app
from rollout_router.serve.config import ServeConfig

__all__ = ["compose"]


def compose(config: ServeConfig) -> Router:
    """Router around capture around the application.

    The store must exist: the supervisor made it before it started a worker.

    Raises:
        ClaimsError, SinkRefused, AppNotFound: what was named cannot be used.
    """
    app = _application(config)
    if config.capture_dir is not None:
        from rollout_router.gateway import Capture, CaptureSink  # noqa: PLC0415 - as below

        store_id = FileClaimStore.inspect(config.state_dir).store_id
        app = Capture(app, CaptureSink(config.capture_dir, store_id=store_id))
    return Router(app, config.settings())


def _application(config: ServeConfig) -> App:
    if config.app is not None:
        return load_app(config.app)
    # Imported where they are served: they take longer to import than everything else together.
    from rollout_router.gateway import Model, Scripted, create_app  # noqa: PLC0415

    model: Model = Scripted()
    if config.upstream is not None:
        from rollout_router.gateway import Upstream  # noqa: PLC0415

        model = Upstream(config.upstream)
    return cast("App", create_app(model))
