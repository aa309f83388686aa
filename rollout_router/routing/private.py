# SPDX-License-Identifier: Apache-2.0
"""The worker's private socket: bound by ourselves, served by uvicorn without its life (R1).

The path carries the worker's nonce and is never another worker's. The directory is private, so
nobody can connect between bind and chmod; uvicorn itself would make the socket world-writable.
Idle connections stay open: only forwarders close them, so that none closes as a request arrives.
A socket file that somebody removed is bound anew under another name and renamed to its path.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import uvicorn

from rollout_router.asgi import App
from rollout_router.claims import StoreRefused
from rollout_router.forked import close_in_children
from rollout_router.routing.limits import INSTALLED, Limits
from rollout_router.routing.run_dir import private_directory
from rollout_router.routing.workers_protocol import protocol_noting

__all__ = ["PrivateServer"]

BACKLOG: Final = 2048
RETIRED_MAX: Final = 2 * 16
"""Listeners without a file, and their servers, that stay open: what waits at one is accepted one by
one, and is lost where it is closed before."""

IDLE_S_MAX: Final = 24 * 3600  # longer than any forwarder keeps an idle connection

_logger = logging.getLogger(__name__)


class PrivateServer:
    """The listener of one worker, and the uvicorn server behind it."""

    def __init__(self, path: Path, app: App, *, limits: Limits | None = None) -> None:
        """Bind and listen; nothing is accepted before :meth:`start`.

        *limits* are those of the public port, from which the hop's own follow; None: they are
        another server's business.

        Raises:
            StoreRefused: the path cannot be bound.
        """
        self.path = path
        self._temporary = path.with_suffix(".new")
        self._socket, self._inode = _listen(path)
        # Whose file is gone. Oldest first; each server stands before its socket.
        self._retired: deque[asyncio.Server | socket.socket] = deque()
        self._binding = asyncio.Lock()
        self._stopped = False
        self._connection_lost = asyncio.Event()
        # The worker's life is the application's lifespan; this server has none of its own, no
        # signals, no loop, no logging set-up.
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=protocol_noting(
                    self._connection_lost.set, INSTALLED if limits is None else limits.hop()
                ),
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

    async def rebind(self, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]) -> bool:
        """Listen at the path again, whose file was removed. Connections that are open stay so.

        Args:
            in_thread: runs what touches the disk, and not in threads that an application shares.

        Returns:
            False: the server was stopped meanwhile, and nothing was bound.

        Raises:
            StoreRefused: the path cannot be bound; try again later.
        """
        async with self._binding:
            if self._stopped:
                return False
            try:
                listener, inode = await in_thread(self._listen_apart)
                self._retired += [*self._server.servers, self._socket]
                # Once more: without a lifespan of its own uvicorn only begins to accept here.
                await self._server.startup(sockets=[listener])
                self._socket = listener
                await in_thread(lambda: self._temporary.rename(self.path))
                self._inode = inode
            except OSError as error:
                raise StoreRefused(
                    f"cannot listen on {self.path} again: {error.strerror}; see what stands there"
                ) from error
            finally:
                self._close_retired(but=RETIRED_MAX)
            return True

    async def wait_no_forwarder(self) -> None:
        """Wait until no forwarder is connected. Bounded by the caller."""
        while self._server.server_state.connections:
            self._connection_lost.clear()
            await self._connection_lost.wait()

    async def stop(self) -> None:
        """Cancel what still runs, close the listener and remove the socket file.

        A file that cannot be removed is left to the sweeper, with a warning.
        """
        async with self._binding:
            self._stopped = True
        self._close_retired(but=0)
        await self._server.shutdown(sockets=[self._socket])
        try:
            if self.is_reachable():  # another file at our path is not ours to remove
                self.path.unlink(missing_ok=True)
            self._temporary.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("the socket %s is left behind: %s", self.path, error)

    def close(self) -> None:
        """Close a listener that could not be started."""
        self._socket.close()
        self.path.unlink(missing_ok=True)

    def _listen_apart(self) -> tuple[socket.socket, int]:
        private_directory(self.path.parent)
        self._temporary.unlink(missing_ok=True)
        return _listen(self._temporary)

    def _close_retired(self, *, but: int) -> None:
        """Close the oldest listeners that were retired, but so many of the newest."""
        while len(self._retired) > but:
            self._retired.popleft().close()


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
