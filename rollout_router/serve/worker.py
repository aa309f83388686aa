# SPDX-License-Identifier: Apache-2.0
"""One worker process, as the supervisor starts it.

It is handed two sockets: the public listening one, which all workers share, and the *link* to the
supervisor. Over the link goes one line once the worker answers. The end of the link means that the
supervisor is gone: the worker drains.

A worker that leaves accepts nothing more and answers what comes on its connections with
``Connection: close``. An idle one stays open for a grace: closed at once, it could meet a request
on its way, and the client could not know whether that ran (R2).
"""

import asyncio
import gc
import json
import logging
import math
import os
import resource
import signal
import socket
from contextlib import suppress
from typing import Final

import uvicorn

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.errors import ResponseCut
from rollout_router.forked import close_in_children
from rollout_router.logs import configure
from rollout_router.metrics_files import reserve
from rollout_router.routing import Router
from rollout_router.routing.headers import without
from rollout_router.routing.limits import Limits
from rollout_router.routing.movable_protocol import Movable, MovableProtocol, movable_protocol
from rollout_router.routing.public_protocol import public_protocol
from rollout_router.serve.allocator import keep_freed_memory, keep_giving_back
from rollout_router.serve.compose import compose
from rollout_router.serve.config import ServeConfig

__all__ = ["main"]

KEEP_ALIVE_S: Final = 75
"""Longer than a client keeps an idle connection, so that the client is the one that closes it."""

_CLOSE: Final = (b"connection", b"close")


class _Closing:
    """Around the router: once this worker leaves, each answer has its client connect anew."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if self.begun and message["type"] == "http.response.start":
                headers = [*without(message.get("headers", []), b"connection"), _CLOSE]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_closing)


class _WorkerServer(uvicorn.Server):
    """uvicorn, telling the supervisor when it answers and draining when the supervisor is gone."""

    def __init__(self, router: Router, config: ServeConfig, link: socket.socket) -> None:
        self._router = router
        self._closing = _Closing(router)
        self._grace_s = config.keep_alive_grace_seconds
        self._link = link
        self._connection_lost = asyncio.Event()
        self._movable: Movable | None = None  # None: connections stay where they were accepted
        self._protocol = (movable_protocol if config.hand_over else public_protocol)(
            self._connection_lost.set, router.settings.limits or Limits(), router
        )
        super().__init__(
            uvicorn.Config(
                self._closing,
                http=self._protocol,
                loop="uvloop",
                ws="auto",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,  # an upstream's own passes through; two would be one too many
                proxy_headers=False,
                backlog=2048,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        worker = self._router.worker
        if worker is None:
            raise RuntimeError("the lifespan started no worker")
        if issubclass(self._protocol, MovableProtocol):
            self._movable = Movable(worker, self._protocol, self)
        gc.freeze()  # what stands now stays: no collection stops the loop to look through it again
        ready = {"id": worker.id, "pid": worker.pid, "socket": str(worker.socket_path)}
        self._link.sendall(json.dumps(ready).encode() + b"\n")
        self._link.settimeout(0)
        asyncio.get_running_loop().add_reader(self._link, self._supervisor_said)
        if keep_freed_memory():
            worker.tasks.spawn(keep_giving_back(), name="give back memory")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._link)
        if self._router.worker is not None:
            deadline = self._router.worker.leave()  # now, not when its connections are gone
            self._closing.begun = True
            for server in self.servers:
                server.close()
            if self._movable is not None:
                await self._movable.stop()
            await self._wait_disconnected(min(deadline, loop.time() + self._grace_s))
            self.config.timeout_graceful_shutdown = max(1, math.ceil(deadline - loop.time()))
        await super().shutdown(sockets)

    async def _wait_disconnected(self, until: float) -> None:
        """Wait until every client is gone, or until that time of the loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while self.server_state.connections:
                    self._connection_lost.clear()
                    await self._connection_lost.wait()

    def _supervisor_said(self) -> None:
        try:
            gone = not self._link.recv(1)
        except ConnectionError:
            gone = True
        if gone:
            asyncio.get_running_loop().remove_reader(self._link)  # its end would be read for ever
            logging.getLogger(__name__).warning("the supervisor is gone: this worker drains")
            signal.raise_signal(signal.SIGTERM)  # raised again at the end: no thread outlives it


class _WithoutCuts(logging.Filter):
    """Drops uvicorn's traceback for an answer that was cut or given up on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[1] if record.exc_info else None
        return not isinstance(raised, (ResponseCut, asyncio.CancelledError))


def main(config: ServeConfig, listener: socket.socket, link: socket.socket) -> int:
    """Serve until told to stop. Returns the process's exit code."""
    os.setsid()  # a terminal's Ctrl-C reaches the supervisor alone
    for inherited in (link, listener):
        close_in_children(inherited)
    reserve()
    writing = configure(config.log_format, config.log_level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_WithoutCuts())
    _raise_descriptor_limit()
    server = _WorkerServer(compose(config), config, link)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again that it stopped for
        return 0
    finally:
        writing.stop()  # what waits is written
    return 0 if server.started else 1


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as we may: a call in flight needs two or three of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
