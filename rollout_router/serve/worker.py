# SPDX-License-Identifier: Apache-2.0
"""One worker process, as the supervisor starts it: ``python -m rollout_router.serve.worker``.

It inherits two descriptors: the public listening socket, which all workers share, and the *link*, a
socket to the supervisor. Over the link come the settings, one line of JSON; back goes one line once
the worker answers. The end of the link means that the supervisor is gone: the worker drains.
"""

import asyncio
import json
import logging
import math
import resource
import socket
import sys
from typing import Final

import uvicorn

from rollout_router.errors import ResponseCut
from rollout_router.forked import close_in_children
from rollout_router.routing import Router
from rollout_router.routing.workers_protocol import WorkersProtocol
from rollout_router.serve.compose import compose
from rollout_router.serve.config import ServeConfig

__all__ = ["main"]

KEEP_ALIVE_S: Final = 75
"""Longer than a client keeps an idle connection, so that the client is the one that closes it."""


class _WorkerServer(uvicorn.Server):
    """uvicorn, telling the supervisor when it answers and draining when the supervisor is gone."""

    def __init__(self, config: uvicorn.Config, router: Router, link: socket.socket) -> None:
        super().__init__(config)
        self._router = router
        self._link = link

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        worker = self._router.worker
        if worker is None:
            raise RuntimeError("the lifespan started no worker")
        ready = {"id": worker.id, "pid": worker.pid, "socket": str(worker.socket_path)}
        self._link.sendall(json.dumps(ready).encode() + b"\n")
        self._link.settimeout(0)
        asyncio.get_running_loop().add_reader(self._link, self._supervisor_said)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().remove_reader(self._link)
        if self._router.worker is not None:
            self._router.worker.leave()  # now, not when uvicorn has waited for its connections
        await super().shutdown(sockets)

    def _supervisor_said(self) -> None:
        try:
            gone = not self._link.recv(1)
        except ConnectionError:
            gone = True
        if gone:
            asyncio.get_running_loop().remove_reader(self._link)  # its end would be read for ever
            logging.getLogger(__name__).warning("the supervisor is gone: this worker drains")
            self.should_exit = True


class _WithoutCuts(logging.Filter):
    """Drops uvicorn's traceback for an answer that was cut or given up on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        raised = record.exc_info[1] if record.exc_info else None
        return not isinstance(raised, (ResponseCut, asyncio.CancelledError))


def main(listen_fd: int, link_fd: int) -> int:
    """Serve until told to stop. Returns the process's exit code."""
    link, listener = socket.socket(fileno=link_fd), socket.socket(fileno=listen_fd)
    for inherited in (link, listener):
        close_in_children(inherited)
    with link.makefile("r") as lines:
        config = ServeConfig.from_json(lines.readline())
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_WithoutCuts())
    _raise_descriptor_limit()
    router = compose(config)
    server = _WorkerServer(
        uvicorn.Config(
            router,
            http=WorkersProtocol,
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
            timeout_graceful_shutdown=math.ceil(config.drain_s),
        ),
        router,
        link,
    )
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again that it stopped for
        return 0
    return 0 if server.started else 1


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as we may: a call in flight needs two or three of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
