# SPDX-License-Identifier: Apache-2.0
"""Where the three rooms meet: the decision, the middleware, the worker's life, admission.

Each name is imported on first use: a supervisor needs the settings, and no web server.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rollout_router.routing.installation import install
    from rollout_router.routing.key_file import new_secret, read_secret
    from rollout_router.routing.keys import mint_key
    from rollout_router.routing.making import close_session
    from rollout_router.routing.router import Router
    from rollout_router.routing.settings import SessionSettings, Settings

__all__ = [
    "Router",
    "SessionSettings",
    "Settings",
    "close_session",
    "install",
    "mint_key",
    "new_secret",
    "read_secret",
]

_HOME: Final[Mapping[str, str]] = {
    "Router": "router",
    "SessionSettings": "settings",
    "Settings": "settings",
    "close_session": "making",
    "install": "installation",
    "mint_key": "keys",
    "new_secret": "key_file",
    "read_secret": "key_file",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
