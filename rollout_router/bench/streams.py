# SPDX-License-Identifier: Apache-2.0
"""Many streams at once through a gateway of two workers, half of them over a hop.

The model server stands in this process: it sends the first half of each stream and holds back the
rest until every client has its half. So all are in flight at once: a client's connection, a call at
its owner and often one at a forwarder, and a connection to the model server. What the workers'
resident memory grew by until then is shared out among the streams, with nothing deducted: the body
and the buffers of each are in it. A few streams before show what only the first ones cost.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollout_router.bench.callers import Caller, callers, header, wire
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.workers import resident_bytes
from rollout_router.processes import Gateway

__all__ = ["StreamCosts", "measure_streams"]

_BODY_BYTES: Final = 1_000
_EVENT_BYTES: Final = 500
_WARM_UPS: Final = 16
_CONNECTIONS_MAX: Final = 256
"""Each lands at either worker: that one gets none of so many does not happen by chance."""

_WAIT_S: Final = 300.0
_ANSWERED: Final = b'{"choices":[]}'
_LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCosts:
    """Streams that were all in flight at one time, and ended whole."""

    streams: int
    over_hop: int
    resident_bytes: int  # that both workers together grew by

    @property
    def stream_bytes(self) -> float:
        """Of one stream."""
        return self.resident_bytes / self.streams


def measure_streams(folder: Path, *, streams: int) -> StreamCosts:
    """Run *streams* at once.

    Args:
        folder: exists; for store and sockets, so its path is short.
        streams: at least 2.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    return asyncio.run(_measured(folder, streams))


async def _measured(folder: Path, streams: int) -> StreamCosts:
    model = _Model()
    async with asyncio.timeout(_WAIT_S), model.served() as url:
        gateway = await asyncio.to_thread(lambda: Gateway(folder, "--upstream", url))
        try:
            await _streamed(gateway, model, "warm", min(streams, _WARM_UPS), then=lambda: None)
            before_bytes, at_peak_bytes = resident_bytes(gateway), 0

            def at_peak() -> None:
                nonlocal at_peak_bytes
                at_peak_bytes = resident_bytes(gateway)

            over_hop = await _streamed(gateway, model, "stream", streams, then=at_peak)
        finally:
            await asyncio.to_thread(gateway.service.stop)
    return StreamCosts(
        streams=streams, over_hop=over_hop, resident_bytes=at_peak_bytes - before_bytes
    )


class _Model:
    """A model server whose streams wait in their middle."""

    def __init__(self) -> None:
        self.released = asyncio.Event()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Its URL."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                asked = json.loads(await reader.readexactly(int(header(head, b"content-length"))))
                if asked["stream"]:
                    await self._stream(writer, asked["model"])
                else:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                        b"Content-Length: %d\r\n\r\n%b" % (len(_ANSWERED), _ANSWERED)
                    )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the gateway closed its connection
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, name: str) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for half in (0, 1):
            event = _event(name, half)
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await self.released.wait()
        writer.write(_LAST_CHUNK)


async def _streamed(
    gateway: Gateway, model: _Model, name: str, count: int, *, then: Callable[[], None]
) -> int:
    """Run *count* streams, *then* while all are in flight; gives how many went over a hop."""
    model.released.clear()
    async with AsyncExitStack() as stack:
        lines = await _lines(gateway, name, count, stack)
        requests = [wire(line.rollout_id, _body(line.rollout_id, stream=True)) for line in lines]
        halves = await asyncio.gather(
            *(
                line.caller.ask(request, _event(line.rollout_id, 0) + b"\r\n")
                for line, request in zip(lines, requests, strict=True)
            )
        )
        over_hop = 0
        for line, half in zip(lines, halves, strict=True):
            if header(half, b"rollout-worker") != line.owner:
                raise BenchFailed(f"{line.rollout_id} is not where it was claimed")
            over_hop += line.owner != line.worker
        then()
        model.released.set()
        for line, whole in zip(
            lines,
            await asyncio.gather(*(line.caller.hear(_LAST_CHUNK) for line in lines)),
            strict=True,
        ):
            if whole.count(_event(line.rollout_id, 1)) != 1:
                raise BenchFailed(f"the stream of {line.rollout_id} ended, and is not whole")
    return over_hop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A connection, and the rollout that it will ask for."""

    caller: Caller
    worker: bytes  # at which the connection ends
    rollout_id: str
    owner: bytes


async def _lines(gateway: Gateway, name: str, count: int, stack: AsyncExitStack) -> Sequence[_Line]:
    """Connections of which every second one asks for what the other worker owns.

    A rollout goes to the worker where it first arrives, so the first call on a connection tells
    which worker that one ends at.
    """
    made = list(await stack.enter_async_context(callers(gateway.url, count)))
    workers = [await _claim(caller, f"{name}-{number}") for number, caller in enumerate(made)]
    by_worker = dict(zip(workers, made, strict=True))
    for number in range(_CONNECTIONS_MAX):
        if len(by_worker) > 1:
            break
        (spare,) = await stack.enter_async_context(callers(gateway.url, 1))
        by_worker[await _claim(spare, f"{name}-spare-{number}")] = spare
    else:
        raise BenchFailed(f"{_CONNECTIONS_MAX} connections ended all at one worker")
    lines = []
    for number, (caller, worker) in enumerate(zip(made, workers, strict=True)):
        rollout_id, owner = f"{name}-{number}", worker
        if number % 2:
            owner = next(each for each in by_worker if each != worker)
            rollout_id = f"{name}-hop-{number}"
            if await _claim(by_worker[owner], rollout_id) != owner:
                raise BenchFailed(f"{rollout_id} went to another worker than it arrived at")
        lines.append(_Line(caller=caller, worker=worker, rollout_id=rollout_id, owner=owner))
    return lines


async def _claim(caller: Caller, rollout_id: str) -> bytes:
    """Make the first call of a rollout; its owner."""
    answer = await caller.ask(wire(rollout_id, _body(rollout_id, stream=False)), _ANSWERED)
    return header(answer, b"rollout-worker")


def _body(name: str, *, stream: bool) -> bytes:
    """The model's name is the stream's own, and comes back in its events."""
    message = {"role": "user", "content": "." * _BODY_BYTES}
    return json.dumps({"model": name, "messages": [message], "stream": stream}).encode()


def _event(name: str, half: int) -> bytes:
    return f"data: {name} {half} {'.' * _EVENT_BYTES}\n\n".encode()
