# SPDX-License-Identifier: Apache-2.0
"""The server's end of a worker's connections, public and private (C3)."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollout_router.forked import close_in_children

__all__ = ["WorkersProtocol"]


class WorkersProtocol(HttpToolsProtocol):
    """uvicorn's protocol, whose connection no forked child keeps, a websocket's neither."""

    def connection_made(self, transport: Any) -> None:
        """From now on a forked child closes it."""
        super().connection_made(transport)
        close_in_children(transport)
