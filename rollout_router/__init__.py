# SPDX-License-Identifier: Apache-2.0
"""Several gym worker processes that behave as one.

``install(app, settings)`` puts the router around any ASGI application.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollout_router.routing import SessionSettings, Settings, close_session, install

__all__ = ["SessionSettings", "Settings", "__version__", "close_session", "install"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import on first use: a command that reads the store needs no web server."""
    if name in {"SessionSettings", "Settings", "close_session", "install"}:
        from rollout_router import routing  # noqa: PLC0415 - what this function is for

        return getattr(routing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
