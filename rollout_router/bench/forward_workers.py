# SPDX-License-Identifier: Apache-2.0
"""Workers that a hop is compared with: ``python -m … plain SOCKET`` or ``… httpx STATE RUN POOL``.

``plain`` serves the benchmark's application alone, as uvicorn does by itself, at a Unix socket and
at a port. ``httpx`` is one more worker of a store that exists: the product's own router, whose hops
go through httpx. Both say the port that they listen at.
"""

import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import uvicorn

from rollout_router.asgi import App
from rollout_router.bench.app import app
from rollout_router.routing import Router, Settings
from rollout_router.routing.limits import Limits
from rollout_router.routing.workers_protocol import protocol_noting
from rollout_router.transport.hop import ConnectFailed, HopClient, HopLost, HopRequest, HopResponse
from rollout_router.transport.hop_wire import end_to_end

__all__ = ["HTTPX", "KEEPS_ALL", "PLAIN", "READY"]

PLAIN: Final = "plain"
HTTPX: Final = "httpx"
KEEPS_ALL: Final = "keeps-all"
READY: Final = "listens at port"
_KEEP_ALIVE_S: Final = 3600


class _Answer(HopResponse):
    """An answer of httpx, read as it comes."""

    __slots__ = ("_close", "_pieces")

    def __init__(self, answer: Any) -> None:  # not the parent's: there is no connection of ours
        self.status = answer.status_code
        self.headers = end_to_end([(name.lower(), value) for name, value in answer.headers.raw])
        self._pieces: AsyncIterator[bytes] = answer.aiter_raw()
        self._close: Callable[[], Awaitable[None]] = answer.aclose

    def whole(self) -> bytes | None:
        """Never known before it was read."""
        return None

    def body(self) -> AsyncIterator[bytes]:
        """The body in pieces."""
        return self._pieces

    async def aclose(self) -> None:
        """Give the connection back."""
        await self._close()


class _HttpxHops(HopClient):
    """One client of httpx for each owner: its default pool, or one that keeps every connection.

    By default 20 of at most 100 stay open. More that stay cost it more: its pool looks at each.
    """

    def __init__(self, *, keeps_all: bool) -> None:
        super().__init__()
        self._keeps_all = keeps_all
        self._clients: dict[str, Any] = {}

    async def send(self, socket: str, request: HopRequest) -> HopResponse:
        """Send *request*, and wait for the head of its answer."""
        import httpx  # noqa: PLC0415 - a development dependency, which may be missing

        if socket not in self._clients:
            transport = (
                httpx.AsyncHTTPTransport(uds=socket, limits=httpx.Limits())
                if self._keeps_all
                else httpx.AsyncHTTPTransport(uds=socket)
            )
            self._clients[socket] = httpx.AsyncClient(transport=transport, timeout=None)  # noqa: S113 - nor has a hop one
        client = self._clients[socket]
        asked = client.build_request(
            request.method,
            "http://owner" + request.target.decode(),
            headers=list(request.headers),
            content=request.body if request.rest is None else request.rest,
        )
        try:
            return _Answer(await client.send(asked, stream=True))
        except httpx.ConnectError as error:
            raise ConnectFailed(socket, OSError(str(error))) from error
        except httpx.TransportError as error:
            raise HopLost(repr(error)) from error

    async def close(self) -> None:
        """Close every connection."""
        await super().close()
        for client in self._clients.values():
            await client.aclose()


class _HttpxRouter(Router):
    keeps_all = False

    async def start_worker(self) -> None:
        await super().start_worker()
        if self.worker is not None:
            self.worker.hops = _HttpxHops(keeps_all=self.keeps_all)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        port = (sockets or [])[0].getsockname()[1]
        logging.getLogger(__name__).info("%s %d", READY, port)


def _serve(application: App, http: Any, listeners: list[socket.socket]) -> None:
    config = uvicorn.Config(
        application,
        http=http,
        loop="uvloop",
        ws="none",
        lifespan="auto",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    signal.signal(signal.SIGTERM, _end)  # uvicorn raises the signal again that it stopped for
    _Server(config).run(sockets=listeners)


def _end(*_: object) -> None:
    sys.exit(0)


def _main(kind: str, *places: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each request
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=2048)]
    if kind == PLAIN:
        listeners.append(socket.socket(socket.AF_UNIX))
        listeners[1].bind(places[0])
        _serve(app, "httptools", listeners)
    else:
        state, run, pool = places
        settings = Settings(
            state_dir=Path(state), run_dir=Path(run), history_delta=True, service="model"
        )
        protocol = protocol_noting(lambda: None, Limits())  # of a worker of `serve`
        router = _HttpxRouter(app, settings)
        router.keeps_all = pool == KEEPS_ALL
        _serve(router, protocol, listeners)


if __name__ == "__main__":
    _main(*sys.argv[1:])
