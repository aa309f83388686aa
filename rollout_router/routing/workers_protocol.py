# SPDX-License-Identifier: Apache-2.0
"""The server's end of a worker's connections, public and private (C3)."""

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollout_router.forked import close_in_children

__all__ = ["WorkersProtocol", "protocol_noting"]


class WorkersProtocol(HttpToolsProtocol):
    """uvicorn's protocol, whose connection no forked child keeps, a websocket's neither.

    It writes no access lines: at a private socket they would repeat those of the public port.
    """

    on_lost: Callable[[], None]  # of each server's own subclass

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False

    def connection_made(self, transport: Any) -> None:
        """From now on a forked child closes it."""
        super().connection_made(transport)
        close_in_children(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is among the server's connections no longer."""
        super().connection_lost(exc)
        self.on_lost()


def protocol_noting(on_lost: Callable[[], None]) -> type[WorkersProtocol]:
    """The protocol of one server, which calls *on_lost* whenever one of its connections ended."""
    return type("Protocol", (WorkersProtocol,), {"on_lost": staticmethod(on_lost)})
