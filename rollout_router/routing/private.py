# SPDX-License-Identifier: Apache-2.0
"""The worker's private socket: bound by ourselves, served by uvicorn without its life (R1).

The path carries the worker's nonce and is never another worker's. The directory is private, so
nobody can connect between bind and chmod; uvicorn itself would make the socket world-writable.
Idle connections stay open: only forwarders close them, so that none closes as a request arrives.
A socket file that somebody removed is bound anew under another name and renamed to its path.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import uvicorn

from rollout_router.asgi import App
from rollout_router.claims import StoreRefused
from rollout_router.routing.forked import WorkersProtocol, close_in_children
from rollout_router.routing.run_dir import private_directory

__all__ = ["PrivateServer"]

BACKLOG: Final = 2048
IDLE_S_MAX: Final = 24 * 3600  # longer than any forwarder keeps an idle connection


class _Protocol(WorkersProtocol):
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


class PrivateServer:
    """The listener of one worker, and the uvicorn server behind it."""

    def __init__(self, path: Path, app: App) -> None:
        """Bind and listen; nothing is accepted before :meth:`start`.

        Raises:
            StoreRefused: the path cannot be bound.
        """
        self.path = path
        self._temporary = path.with_suffix(".new")
        self._socket, self._inode = _listen(path)
        self._retired: list[asyncio.Server | socket.socket] = []  # whose file is gone
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

    def is_reachable(self) -> bool:
        """Whether the path still leads here. One lstat: call it in a thread.

        What cannot be looked at counts as reachable: binding anew would not help.
        """
        try:
            return self.path.lstat().st_ino == self._inode
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    async def rebind(self) -> None:
        """Listen at the path again, whose file was removed. Connections that are open stay so.

        Raises:
            StoreRefused: the path cannot be bound; try again later.
        """
        self._close_retired()
        try:
            listener, inode = await asyncio.to_thread(self._listen_apart)
            self._retired += [*self._server.servers, self._socket]
            # Once more: without a lifespan of its own uvicorn only begins to accept here. What
            # waits at the old listener is accepted before the next time closes it.
            await self._server.startup(sockets=[listener])
            self._socket = listener
            await asyncio.to_thread(self._temporary.rename, self.path)
            self._inode = inode
        except OSError as error:
            raise StoreRefused(
                f"cannot listen on {self.path} again: {error.strerror}; see what stands there"
            ) from error

    async def wait_no_forwarder(self) -> None:
        """Wait until no forwarder is connected. Bounded by the caller."""
        while self._server.server_state.connections:
            self._connection_lost.clear()
            await self._connection_lost.wait()

    async def stop(self) -> None:
        """Cancel what still runs, close the listener and remove the socket file."""
        self._close_retired()
        await self._server.shutdown(sockets=[self._socket])
        if self.is_reachable():  # another file at our path is not ours to remove
            self.path.unlink(missing_ok=True)
        self._temporary.unlink(missing_ok=True)

    def close(self) -> None:
        """Close a listener that could not be started."""
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _listen_apart(self) -> tuple[socket.socket, int]:
        private_directory(self.path.parent)
        self._temporary.unlink(missing_ok=True)
        return _listen(self._temporary)

    def _close_retired(self) -> None:
        for retired in self._retired:  # each server before its socket
            retired.close()
        self._retired.clear()


def _listen(path: Path) -> tuple[socket.socket, int]:
    """A listening socket that only we can connect to, and the inode of its file."""
    try:
        with ExitStack() as undo:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(listener.close)
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(BACKLOG)
            inode = path.lstat().st_ino
            undo.pop_all()
    except OSError as error:
        raise StoreRefused(f"cannot listen on {path}: {error.strerror}") from error
    close_in_children(listener)
    return listener, inode
