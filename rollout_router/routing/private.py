# SPDX-License-Identifier: Apache-2.0
"""The worker's private socket: bound by ourselves, served by uvicorn without its life (R1).

The path carries the worker's nonce and is never another worker's. The directory is private, so
nobody can connect between bind and chmod; uvicorn itself would make the socket world-writable.
Idle connections stay open: only forwarders close them, so that none closes as a request arrives.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollout_router.asgi import App
from rollout_router.claims import StoreRefused

__all__ = ["SOCKET_PATH_BYTES_MAX", "PrivateServer", "private_directory", "private_socket_path"]

SOCKET_PATH_BYTES_MAX: Final = 107
"""What fits into ``sun_path`` with its final NUL. Source: unix(7)."""

BACKLOG: Final = 2048
IDLE_S_MAX: Final = 24 * 3600  # longer than any forwarder keeps an idle connection

_listening: "WeakSet[socket.socket]" = WeakSet()


def _close_in_child() -> None:
    for listener in list(_listening):
        listener.close()


# A forked child that kept the listener would take connections that nobody answers.
os.register_at_fork(after_in_child=_close_in_child)


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, saying when a connection ends.

    It writes no access lines: the public port logged the request already.
    """

    on_lost: Callable[[], None]  # set by a subclass of each server's own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.on_lost()


def private_directory(path: Path) -> None:
    """Make *path* a directory that only we can enter.

    Raises:
        StoreRefused: it is somebody else's, open to others, or no directory.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise StoreRefused(f"the run directory {path} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StoreRefused(f"the run directory {path} is not a directory of this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreRefused(
            f"the run directory {path} is open to other users: chmod 700 it or name another"
        )


def private_socket_path(directory: Path, nonce: str) -> Path:
    """Where the worker named *nonce* listens.

    Raises:
        StoreRefused: the path is too long for a socket.
    """
    path = directory / f"{nonce}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise StoreRefused(
            f"the socket path {path} is longer than {SOCKET_PATH_BYTES_MAX} bytes:"
            " name a shorter run directory"
        )
    return path


class PrivateServer:
    """The listener of one worker, and the uvicorn server behind it."""

    def __init__(self, path: Path, app: App) -> None:
        """Bind and listen; nothing is accepted before :meth:`start`.

        Raises:
            StoreRefused: the path cannot be bound.
        """
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(str(path))
            path.chmod(0o600)
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            raise StoreRefused(f"cannot listen on {path}: {error.strerror}") from error
        _listening.add(self._socket)
        self._connection_lost = asyncio.Event()
        # The worker's life is the application's lifespan; this server has none of its own, no
        # signals, no loop, no logging set-up.
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=type("Protocol", (_Protocol,), {"on_lost": self._connection_lost.set}),
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                backlog=BACKLOG,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_S_MAX,
                timeout_graceful_shutdown=1,
            )
        )

    async def start(self) -> None:
        """Accept connections."""
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._socket])

    async def wait_no_forwarder(self) -> None:
        """Wait until no forwarder is connected. Bounded by the caller."""
        while self._server.server_state.connections:
            self._connection_lost.clear()
            await self._connection_lost.wait()

    async def stop(self) -> None:
        """Cancel what still runs, close the listener and remove the socket file."""
        await self._server.shutdown(sockets=[self._socket])
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close a listener that could not be started."""
        self._socket.close()
        self.path.unlink(missing_ok=True)
