# SPDX-License-Identifier: Apache-2.0
"""Finding the application that ``--app`` names."""

import importlib
from typing import cast

from rollout_router.asgi import App

__all__ = ["AppNotFound", "load_app"]


class AppNotFound(ValueError):  # noqa: N818 - named by what happened
    """``--app`` names nothing that can be served; the message says what is wrong."""


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
