# SPDX-License-Identifier: Apache-2.0
"""The composition root: the one place that turns settings into an application."""

import importlib
from pathlib import Path
from typing import cast

from rollout_router.asgi import App
from rollout_router.claims import FileClaimStore
from rollout_router.routing import Router
from rollout_router.serve.config import ServeConfig

__all__ = ["AppNotFound", "compose", "load_app"]


class AppNotFound(ValueError):  # noqa: N818 - named by what happened
    """``--app`` names nothing that can be served; the message says what is wrong."""


def compose(config: ServeConfig) -> Router:
    """Router around capture around the application.

    The store must exist: the supervisor made it before it started a worker.

    Raises:
        ClaimsError, SinkRefused, AppNotFound: what was named cannot be used.
    """
    app = _application(config)
    if config.capture_dir is not None:
        from rollout_router.gateway import Capture, CaptureSink  # noqa: PLC0415 - as below

        store_id = FileClaimStore.inspect(Path(config.state_dir)).store_id
        app = Capture(app, CaptureSink(Path(config.capture_dir), store_id=store_id))
    return Router(app, config.settings())


def load_app(name: str) -> App:
    """Import ``module:attribute``.

    Raises:
        AppNotFound: the name has another form, or names nothing callable.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise AppNotFound(f"--app takes MODULE:ATTRIBUTE, not {name!r}")
    try:
        found = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise AppNotFound(f"--app {name}: {error}") from error
    if not callable(found):
        raise AppNotFound(f"--app {name} is no ASGI application: it cannot be called")
    return cast("App", found)


def _application(config: ServeConfig) -> App:
    if config.app is not None:
        return load_app(config.app)
    # Imported where it is served: it takes longer to import than everything else together.
    from rollout_router.gateway import Scripted, Upstream, create_app  # noqa: PLC0415

    model = Scripted() if config.upstream is None else Upstream(config.upstream)
    return cast("App", create_app(model))
