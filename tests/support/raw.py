# SPDX-License-Identifier: Apache-2.0
"""Raw bytes at sockets: uvicorn alone, and two workers of one store, all on one event loop.

A test writes bytes and is told what each application saw. It waits for events: the server has read
every byte and answered every request that it found whole, or has ended the connection.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from support.routing import Rig
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollout_router.asgi import App, Receive, Scope, Send
from rollout_router.call import CALL_KEY
from rollout_router.routing import private
from rollout_router.routing.limits import Limits
from rollout_router.routing.workers_protocol import protocol_noting

__all__ = ["ROLLOUT", "Outcome", "Ports", "Seen"]

EPOCH = b"Rollout-Expect-Epoch: 0000000000\r\n"
ROLLOUT = b"X-Session-ID: r1\r\nRollout-Hop: 1\r\n" + EPOCH
"""The lines that name the rollout whose owner is the second worker, as a forwarder sends them: to
the private socket they are a hop, on a public port they mean nothing. The epoch is filled in."""

Headers = tuple[tuple[bytes, bytes], ...]
_STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as an application saw it, whole."""

    method: str
    path: bytes
    query: bytes
    headers: Headers
    body: bytes
    routed: bool = field(default=False, compare=False)  # under a claim (R7)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of some bytes: who saw what, and what was answered."""

    seen: list[Seen]
    statuses: list[int]
    parsed: int  # requests whose head a parser took for complete
    hopped: int  # of them, requests that arrived at the second worker's private socket
    failed: int  # answers of 500


class Witness:
    """Remembers each whole request."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        self.seen.append(_seen(scope, body))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})


def _seen(scope: Scope, body: bytes) -> Seen:
    headers = tuple(scope["headers"])
    asked = scope["method"], scope["raw_path"], scope["query_string"]
    return Seen(*asked, headers, body, CALL_KEY in scope)


@dataclass(eq=False)
class Watch:
    """What the protocols of one port did."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    parsed: int = 0
    let_in: list[Seen] = field(default_factory=list)  # whole, with the headers of the head alone
    newest: Any = None


class _Watched:
    """Mixed into a protocol: says how far it got."""

    watch: ClassVar[Watch]
    scope: Any

    def connection_made(self, transport: Any) -> None:
        self.fed_bytes = self.wholes = self.answers = 0
        self.lost = False
        self.watch.newest = self
        super().connection_made(transport)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self.fed_bytes += len(data)
        self.watch.changed.set()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()  # type: ignore[misc]
        self.watch.parsed += 1
        self.parsed = _seen(self.scope, b"")

    def on_body(self, body: bytes) -> None:
        self.parsed = replace(self.parsed, body=self.parsed.body + body)
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        self.wholes += 1
        self.watch.let_in.append(self.parsed)
        super().on_message_complete()  # type: ignore[misc]

    def on_response_complete(self) -> None:
        self.answers += 1
        super().on_response_complete()  # type: ignore[misc]
        self.watch.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        super().connection_lost(exc)  # type: ignore[misc]
        self.watch.changed.set()


WithinLimits = protocol_noting(lambda: None, Limits())


def _noting(watch: Watch, on_lost: Callable[[], None], limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol of a private socket, watched."""
    return type("Protocol", (_Watched, protocol_noting(on_lost, limits)), {"watch": watch})


class _Port:
    """One server on a socket of its own."""

    def __init__(self, path: Path, app: App, protocol: type[HttpToolsProtocol]) -> None:
        self.path = path
        self.watch = Watch()
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                uds=str(path),
                http=type("Protocol", (_Watched, protocol), {"watch": self.watch}),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
            )
        )
        self._logger = logging.getLogger("uvicorn.error")
        self._level = self._logger.level

    async def start(self) -> None:
        self._logger.setLevel(logging.CRITICAL)  # of the process
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup()

    async def stop(self) -> None:
        await self._server.shutdown()
        self._logger.setLevel(self._level)


class Ports:
    """uvicorn alone, two workers' public ports, and the private socket of the second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rig = Rig(folder)
        self.epoch = 0
        self._witness = Witness()  # of both workers

    async def start(self, monkeypatch: Any) -> None:
        """Start all; the second worker takes the rollout."""
        self._hops = Watch()
        monkeypatch.setattr(private, "protocol_noting", partial(_noting, self._hops))
        forwarder, _ = await self.rig.start(self._witness)
        owner, self._owner = await self.rig.start(self._witness)
        self._ports = {
            "alone": _Port(self._folder / "a", Witness(), HttpToolsProtocol),
            "hop": _Port(self._folder / "f", forwarder, WithinLimits),
            "owner": _Port(self._folder / "o", owner, WithinLimits),
        }
        for port in self._ports.values():
            await port.start()
        request = b"POST /v1/responses HTTP/1.1\r\n" + ROLLOUT + b"\r\n"
        assert (await self.send("owner", request)).statuses == [200]
        self.epoch = self.rig.claim().claim_epoch

    async def stop(self) -> None:
        """End all."""
        for port in self._ports.values():
            await port.stop()
        await self.rig.close()

    async def send(self, name: str, raw: bytes) -> Outcome:
        """Write *raw* to a new connection of a port: ``alone``, ``hop``, ``owner``, ``private``."""
        if name == "private":
            path, watch = self._owner.socket_path, self._hops
        else:
            path, watch = self._ports[name].path, self._ports[name].watch
        raw = raw.replace(EPOCH, EPOCH.replace(b"0" * 10, b"%010d" % self.epoch))
        parsed, hopped = watch.parsed, self._hops.parsed
        watch.let_in.clear()
        self._witness.seen.clear()
        answered = await _exchange(path, watch, raw)
        statuses = [int(status) for status in _STATUS.findall(answered)]
        return Outcome(
            seen=list(watch.let_in if name == "alone" else self._witness.seen),
            statuses=statuses,
            parsed=watch.parsed - parsed,
            hopped=self._hops.parsed - hopped,
            failed=statuses.count(500),
        )


async def _exchange(path: Path, watch: Watch, raw: bytes) -> bytes:
    """Write, and read until the server has ended or is done with every byte."""
    watch.newest = None
    reader, writer = await asyncio.open_unix_connection(path)
    answered = b""

    async def read() -> None:
        nonlocal answered
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                answered += piece
        watch.changed.set()

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        with suppress(ConnectionError):
            writer.write(raw)
            await writer.drain()
        while not (reading.done() or _is_quiet(watch.newest, len(raw))):
            watch.changed.clear()
            await watch.changed.wait()
        if not reading.done():  # what was answered stands before the end that this leads to
            with suppress(OSError):
                writer.write_eof()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    while not watch.newest.lost:
        watch.changed.clear()
        await watch.changed.wait()
    return answered


def _is_quiet(protocol: Any, size: int) -> bool:
    if protocol is None:
        return False
    done: bool = protocol.fed_bytes >= size and protocol.answers >= protocol.wholes
    return done or protocol.lost
