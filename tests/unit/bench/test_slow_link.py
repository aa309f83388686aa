# SPDX-License-Identifier: Apache-2.0
"""The slow link: its pace by a clock that the test turns, and what passes it by real sockets."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rollout_router.bench.slow_link import PIECE_BYTES, SLOW, Line, Link, RelayedSocket, relay

FAST = Link(bits_per_s=1e12, round_trip_s=0.0)
GUARD_S = 60  # none waits for it


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_megabyte_takes_the_time_of_its_bits_and_half_a_round_trip() -> None:
    clock = Clock()
    line = Line(SLOW, clock)
    pieces = [line.enter(PIECE_BYTES) for _ in range(250)]
    assert pieces[-1] - clock.now_s == pytest.approx(250 * PIECE_BYTES * 8 / 10e6 + 0.020)
    assert pieces == sorted(pieces)


def test_what_enters_waits_for_what_is_going_through_and_delay_is_no_queue() -> None:
    clock = Clock()
    line = Line(Link(bits_per_s=8_000, round_trip_s=1.0), clock)
    assert line.enter(1_000) == 101.5
    clock.now_s = 100.9  # through, but not out
    assert line.enter(500) == 102.0
    assert line.enter(0) == 102.0


def test_an_idle_line_saves_nothing_up() -> None:
    clock = Clock()
    line = Line(Link(bits_per_s=8_000, round_trip_s=0.0), clock)
    line.enter(1_000)
    clock.now_s = 500.0
    assert [line.enter(1_000), line.enter(1_000)] == [501.0, 502.0]


@pytest.mark.parametrize("link", [SLOW, Link(bits_per_s=1e9, round_trip_s=0.2)])
def test_what_a_connection_may_hold_fills_the_link(link: Link) -> None:
    assert link.held_bytes_max >= 2 * link.bits_per_s / 8 * link.round_trip_s / 2
    assert link.held_bytes_max >= 16 * PIECE_BYTES


@dataclass
class Pair:
    """A connection: what the client has, what the server has, what the relay has of it."""

    client: socket.socket
    server: socket.socket
    relayed: list[RelayedSocket]

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def read(self, sock: socket.socket) -> bytes:
        """Up to the end."""
        found = b""
        while piece := await self.loop.sock_recv(sock, 65_536):
            found += piece
        return found


@asynccontextmanager
async def connected() -> AsyncIterator[Pair]:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        async with relay(FAST, listener.getsockname()[1]) as (port, sockets):
            with socket.socket() as client:
                client.settimeout(0)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
                await loop.sock_connect(client, ("127.0.0.1", port))
                server, _ = await loop.sock_accept(listener)
                with server:
                    yield Pair(client, server, list(sockets))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(GUARD_S):
            await test()

    asyncio.run(bounded())


def test_bytes_pass_both_ways_unchanged_and_in_order() -> None:
    there = b"".join(b"%07d\n" % number for number in range(100_000))
    back = there[::-1]

    async def test() -> None:
        async with connected() as pair:

            async def say(sock: socket.socket, what: bytes) -> None:
                await pair.loop.sock_sendall(sock, what)
                sock.shutdown(socket.SHUT_WR)

            _, _, got, heard = await asyncio.gather(
                say(pair.client, there),
                say(pair.server, back),
                pair.read(pair.server),
                pair.read(pair.client),
            )
            assert (got, heard) == (there, back)

    run(test)


def test_one_direction_ends_and_the_other_goes_on() -> None:
    async def test() -> None:
        async with connected() as pair:
            await pair.loop.sock_sendall(pair.client, b"question")
            pair.client.shutdown(socket.SHUT_WR)
            assert await pair.read(pair.server) == b"question"
            await pair.loop.sock_sendall(pair.server, b"answer")
            pair.server.shutdown(socket.SHUT_WR)
            assert await pair.read(pair.client) == b"answer"

    run(test)


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_reset_passes_behind_what_was_said_before(who: str) -> None:
    async def test() -> None:
        async with connected() as pair:
            first, second = pair.client, pair.server
            if who == "server":
                first, second = second, first
            await pair.loop.sock_sendall(second, b"ready")
            assert await pair.loop.sock_recv(first, 100) == b"ready"
            await pair.loop.sock_sendall(first, b"last words")
            assert await pair.loop.sock_recv(second, 100) == b"last words"
            first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            first.close()
            with pytest.raises(ConnectionResetError):
                await pair.loop.sock_recv(second, 100)

    run(test)


def test_nobody_at_the_other_side_is_a_reset() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            nobody = listener.getsockname()[1]
        async with relay(FAST, nobody) as (port, _):
            with socket.socket() as client:
                client.settimeout(0)
                await loop.sock_connect(client, ("127.0.0.1", port))
                with pytest.raises(ConnectionResetError):
                    await loop.sock_recv(client, 100)

    run(test)


def test_what_nobody_reads_is_held_up_at_its_sender_and_lost_nowhere() -> None:
    size = 32 * 1024**2
    bound = FAST.held_bytes_max + 2 * PIECE_BYTES  # the piece read last, and one that is written

    async def test() -> None:
        async with connected() as pair:
            held: list[int] = []
            full = asyncio.Event()

            async def watch() -> None:
                while True:
                    held.append(max(each.held_bytes for each in pair.relayed))
                    if held[-1] >= FAST.held_bytes_max:
                        full.set()
                    await asyncio.sleep(0)

            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(watch())
                sending = tasks.create_task(pair.loop.sock_sendall(pair.client, bytes(size)))
                await full.wait()
                assert not sending.done()
                got = 0
                while got < size:
                    got += len(await pair.loop.sock_recv(pair.server, 1024**2))
                await sending
                watching.cancel()
            assert max(held) <= bound

    run(test)
