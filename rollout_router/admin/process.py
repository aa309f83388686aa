# SPDX-License-Identifier: Apache-2.0
"""The admin process: started by a supervisor, or in the foreground by a command.

A supervisor hands it the admin's listening socket and a *link*, as it does to a worker: over the
link goes one line once the process answers, and its end means that the supervisor is gone. The
address and its token stand in ``<state>/admin`` for as long as the process answers.

No stream, no reader and no operator who waits keeps it from its end.
"""

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
import uvloop

from rollout_router.admin.access import Access
from rollout_router.admin.address import AdminAddress
from rollout_router.admin.app import create_app
from rollout_router.admin.config import AdminConfig
from rollout_router.admin.views import Service
from rollout_router.claims import (
    AdminNote,
    ClaimReader,
    ClaimsError,
    remove_admin_note,
    write_admin_note,
)
from rollout_router.forked import close_in_children
from rollout_router.logs import configure
from rollout_router.metrics_files import reserve
from rollout_router.routing.limits import Limits
from rollout_router.routing.workers_protocol import protocol_noting

__all__ = ["CONNECTIONS_MAX", "main", "serve"]

CONNECTIONS_MAX: Final = 256
"""Connections of the admin address; beyond it 503: four for each stream."""

_END_S: Final = 1  # for answers under way at the end: what is read is read from memory
_logger = logging.getLogger(__name__)


class _AdminServer(uvicorn.Server):
    """uvicorn, that says where it is once it answers, and takes that back at its end."""

    def __init__(
        self, address: AdminAddress, config: AdminConfig, on_ready: Callable[[], None]
    ) -> None:
        self._address = address
        self._note = AdminNote(url=config.url, token=config.token, pid=os.getpid())
        self._on_ready = on_ready
        limits = Limits(connections_max=CONNECTIONS_MAX)
        super().__init__(
            uvicorn.Config(
                create_app(address),
                http=protocol_noting(lambda: None, limits),
                interface="asgi3",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_END_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        try:
            await asyncio.to_thread(write_admin_note, self._address.state_dir, self._note)
        except ClaimsError as error:  # a full disk: the address answers all the same
            _logger.warning("%s; the token is not to be found there", error)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._address.streams.stop()
        try:
            remove_admin_note(self._address.state_dir, pid=self._note.pid)
        except ClaimsError as error:
            _logger.warning("%s", error)
        await super().shutdown(sockets)


def serve(config: AdminConfig, listener: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, which is raised again at the end.

    Args:
        config: what to serve.
        listener: listens already.
        on_ready: called once the address answers, on the event loop.

    Raises:
        StoreRefused: there is no store to watch.
    """
    store = ClaimReader.inspect(Path(config.state_dir))
    scrape = None
    if config.metrics_dir is not None:
        from rollout_router import metrics_files  # noqa: PLC0415 - only where it is asked for

        scrape = partial(metrics_files.scrape, Path(config.metrics_dir))
    address = AdminAddress(
        store=store,
        allow_network_fs=config.allow_network_fs,
        service=Service(name=store.service, store_id=store.store_id, url=config.public_url),
        access=Access(host=config.host, token=config.token),
        scrape=scrape,
    )
    server = _AdminServer(address, config, on_ready)

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(address.watching.run(), name="watching")
            await server.serve(sockets=[listener])
            watching.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def main(config: AdminConfig, listener: socket.socket, link: socket.socket) -> int:
    """Serve until told to stop, or until the supervisor is gone. Returns the exit code."""
    os.setsid()  # a terminal's Ctrl-C reaches the supervisor alone
    for inherited in (link, listener):
        close_in_children(inherited)
    reserve()
    writing = configure(config.log_format, config.log_level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    def ready() -> None:
        link.sendall(json.dumps({"url": config.url, "pid": os.getpid()}).encode() + b"\n")
        link.settimeout(0)
        asyncio.get_running_loop().add_reader(link, supervisor_said)

    def supervisor_said() -> None:
        try:
            gone = not link.recv(1)
        except ConnectionError:
            gone = True
        if gone:
            asyncio.get_running_loop().remove_reader(link)
            signal.raise_signal(signal.SIGTERM)

    try:
        serve(config, listener, on_ready=ready)
    except KeyboardInterrupt:
        return 0
    except ClaimsError as error:
        _logger.error("%s", error)  # noqa: TRY400 - the message says all
        return 1
    finally:
        writing.stop()  # what waits is written
    return 0
