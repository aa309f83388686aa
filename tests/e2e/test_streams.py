# SPDX-License-Identifier: Apache-2.0
"""Many streams in flight over two workers, half of them forwarded: whole, in bounded memory (R4).

``pytest -s`` prints times and memory; no time is asserted.
"""

import asyncio
import http.client
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from statistics import quantiles

import psutil
import pytest
from support.gateway import PATIENCE_S, Gateway, alone, wait_until
from support.streaming_app import EVENTS, PIECE, event

from rollout_router.bench.callers import many_descriptors

STREAM_BYTES_MAX = 256 * 1024
"""What a stream in flight may cost both workers together, its connections and its rollout with it:
some tasks, parsers and small buffers at each end. Four times what was measured; a worker that kept
a read buffer full (256 KiB in uvloop) for each stream would be above it."""

SLOW_BYTES_MAX = 8 * 1024**2
"""What an answer may cost both workers whose client does not read: some buffers of 64 to 256 KiB at
each end, and what the allocator keeps. The answers have 32 MiB and 1 GiB."""


class Line:
    """One connection of a client, which leads to one worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.worker = ""  # that it leads to
        self.rollout_id = ""  # that it asks for
        self.answered_by = ""

    @classmethod
    async def open(cls, address: str, stack: AsyncExitStack) -> "Line":
        """Connect; closed with the stack."""
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        stack.push_async_callback(writer.wait_closed)
        stack.callback(writer.close)
        return cls(reader, writer)

    async def ask(self, path: str) -> AsyncIterator[bytes]:
        """The chunks of an answer, as they come; the end is that of its framing, or an error."""
        self._writer.write(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % path.encode()
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        assert head.startswith("HTTP/1.1 200 "), head
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
        assert headers["transfer-encoding"] == "chunked"
        self.answered_by = headers.get("rollout-worker", "")
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        assert await self._reader.readexactly(2) == b"\r\n"

    async def whole(self, path: str) -> bytes:
        """A whole answer."""
        return b"".join([chunk async for chunk in self.ask(path)])


class Stream:
    """One stream, read up to its middle and then to its end."""

    def __init__(self, line: Line) -> None:
        self._chunks = line.ask(f"/sessions/{line.rollout_id}/stream")
        events = [event(line.rollout_id, number) for number in range(EVENTS)]
        self._before, self._after = (
            b"".join(events[: EVENTS // 2]),
            b"".join(events[EVENTS // 2 :]),
        )

    async def read_half(self) -> float:
        """Read what comes before the gate; seconds until the first of it."""
        began_s, first_s, got = time.monotonic(), 0.0, b""
        while len(got) < len(self._before):
            got += await anext(self._chunks)
            first_s = first_s or time.monotonic() - began_s
        assert got == self._before
        return first_s

    async def read_rest(self) -> float:
        """Read to the end, which is a clean one; seconds until then."""
        began_s = time.monotonic()
        rest = [chunk async for chunk in self._chunks]
        assert b"".join(rest) == self._after
        return time.monotonic() - began_s


@pytest.mark.parametrize(
    "streams", [60, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_r4_streams_in_flight_half_of_them_forwarded_end_whole_in_bounded_memory(
    serve: Callable[..., Gateway], streams: int
) -> None:
    gateway = serve("--app", "support.streaming_app:app", "--no-history-delta", "--route-always")
    with many_descriptors():
        asyncio.run(_stream(gateway, streams))
    assert gateway.stop() == 0
    assert "Traceback" not in "".join(gateway.log)


@pytest.mark.parametrize("pieces", [512, pytest.param(16 * 1024, marks=pytest.mark.long)])
def test_r4_a_client_that_does_not_read_a_long_forwarded_answer_costs_little(
    serve: Callable[..., Gateway], pieces: int
) -> None:
    gateway = serve("--app", "support.streaming_app:app", "--no-history-delta", "--route-always")
    owner, other = (str(worker["id"]) for worker in gateway.ready["workers"])
    with (
        closing(_connection(gateway, owner)) as asking,
        closing(_connection(gateway, other)) as slow,
    ):
        _ask(asking, "/sessions/r/claim")
        before_bytes = _memory_bytes(gateway)
        slow.request("POST", f"/sessions/r/flood/{pieces}")
        answer = slow.getresponse()
        assert answer.headers["rollout-worker"] == owner
        first = answer.read(len(PIECE))

        # The owner answers between two pieces, so it is asked for one that it cannot send.
        wait_until(lambda: len({_ask(asking, "/flooded") for _ in range(9)}) == 1, "nothing leaves")
        assert int(_ask(asking, "/flooded")) < pieces
        held_bytes = _memory_bytes(gateway) - before_bytes

        left = pieces * len(PIECE) - len(first)
        while piece := answer.read(len(PIECE)):
            left -= len(piece)
    print(f"\n{pieces} pieces, their reader waits: {held_bytes / 1024:.0f} KiB")  # noqa: T201 - as below
    assert left == 0
    assert held_bytes < SLOW_BYTES_MAX


def _connection(gateway: Gateway, worker: str) -> http.client.HTTPConnection:
    """A connection that leads to one worker."""
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=PATIENCE_S)
    with alone(gateway, worker):
        _ask(connection, "/held")
    return connection


def _ask(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("POST", path)
    return connection.getresponse().read()


async def _stream(gateway: Gateway, number: int) -> None:
    one, other = (str(worker["id"]) for worker in gateway.ready["workers"])
    async with asyncio.timeout(3 * PATIENCE_S), AsyncExitStack() as stack:
        asking = await _lines(gateway, one, 1, stack) + await _lines(gateway, other, 1, stack)
        before_bytes = _memory_bytes(gateway)
        lines = [
            *await _lines(gateway, one, number // 2, stack),
            *await _lines(gateway, other, number // 2, stack),
        ]
        # The first half of each worker's lines ask for what the other worker owns.
        crossed = [*range(number // 4), *range(number // 2, number * 3 // 4)]
        owned = [line.rollout_id for line in lines]
        for here, there in zip(crossed, crossed[::-1], strict=True):
            lines[here].rollout_id = owned[there]

        streams = [Stream(line) for line in lines]
        first_s = await asyncio.gather(*(stream.read_half() for stream in streams))
        held = [int(await line.whole("/held")) for line in asking]
        peak_bytes = _memory_bytes(gateway)
        assert sum(held) == number, "all are in flight at once"
        assert sum(line.answered_by != line.worker for line in lines) == number // 4 * 2
        for line in asking:
            await line.whole("/open")
        rest_s = await asyncio.gather(*(stream.read_rest() for stream in streams))
        peak_bytes = max(peak_bytes, _memory_bytes(gateway))

    each_bytes = (peak_bytes - before_bytes) / number
    print(  # noqa: T201 - for pytest -s
        f"\n{number} streams: first event {_spread(first_s)}, all after the gate {_spread(rest_s)},"
        f" {each_bytes / 1024:.0f} KiB each"
    )
    assert each_bytes < STREAM_BYTES_MAX


async def _lines(gateway: Gateway, worker: str, number: int, stack: AsyncExitStack) -> list[Line]:
    """Connections that lead to one worker, each with a rollout that this worker owns."""
    address = gateway.url.removeprefix("http://")
    with alone(gateway, worker):
        lines = [await Line.open(address, stack) for _ in range(number)]
        for count, line in enumerate(lines):
            line.rollout_id = f"{worker}-{number}-{count}"
            await line.whole(f"/sessions/{line.rollout_id}/claim")
    assert {line.answered_by for line in lines} == {worker}
    for line in lines:
        line.worker = worker
    return lines


def _memory_bytes(gateway: Gateway) -> int:
    """Resident memory of all workers."""
    pids = [worker["pid"] for worker in gateway.ready["workers"]]
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids)


def _spread(times_s: list[float]) -> str:
    cuts = quantiles(times_s, n=100)
    return f"p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms"
