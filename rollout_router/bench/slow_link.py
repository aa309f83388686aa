# SPDX-License-Identifier: Apache-2.0
"""A slow link on loopback: a relay that paces and delays, a process of its own.

``python -m … PORT PARENT`` relays to that port of 127.0.0.1, as long as the process PARENT lives.

* All connections share one rate in each direction. An idle link saves up nothing, so a burst of any
  size takes the time that its bytes take.
* What enters comes out, in order and unchanged, half a round trip after its last byte has gone
  through; so does the end of one direction, and a reset. A new connection waits for a round trip.
* A relay holds little: where the receiver does not read, the sender is not read either. The buffers
  of the kernel at both ends come on top, as at the ends of any link.

No packet is lost, and there is no slow start: a link on which TCP has found its pace.
"""

import asyncio
import logging
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

from rollout_router.processes import Service
from rollout_router.transport.sandbox.parent import terminate_with

__all__ = ["PIECE_BYTES", "SLOW", "Line", "Link", "RelayedSocket", "relay", "slow_url"]

PIECE_BYTES: Final = 4_096
"""Read at a time; bytes that were read together come out together."""

_LOOPBACK: Final = "127.0.0.1"
_READY: Final = "the link listens at port "
_logger = logging.getLogger(__name__)
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
_END: Final = b""
"""Travels as a piece does, and no piece is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What is relayed over; the same in both directions."""

    bits_per_s: float
    round_trip_s: float

    @property
    def held_bytes_max(self) -> int:
        """What one direction of one connection may have on its way before its sender waits.

        Twice what fills the link, so that it is never idle while there is something to send.
        """
        return max(16 * PIECE_BYTES, int(self.bits_per_s / 8 * self.round_trip_s))


SLOW: Final = Link(bits_per_s=10_000_000, round_trip_s=0.040)


class Line:
    """One direction of a link: says when what enters it comes out. Pure but for the clock.

    Args:
        link: its rate, and twice its delay.
        clock_s: monotonic.
    """

    def __init__(self, link: Link, clock_s: Callable[[], float]) -> None:
        self._link = link
        self._clock_s = clock_s
        self._free_s = 0.0  # when all that has entered is through

    def enter(self, size_bytes: int) -> float:
        """When the last of *size_bytes*, which enter now, comes out; behind all that entered."""
        begin_s = max(self._free_s, self._clock_s())
        self._free_s = begin_s + 8 * size_bytes / self._link.bits_per_s
        return self._free_s + self._link.round_trip_s / 2


class RelayedSocket(asyncio.BufferedProtocol):
    """One end of a connection through the relay; sends what it reads to its *peer*."""

    def __init__(
        self,
        line: Line,
        link: Link,
        *,
        made: "Callable[[RelayedSocket], None]",
        gone: "Callable[[RelayedSocket], None]",
    ) -> None:
        self.lost = False
        self.peer: RelayedSocket | None = None
        self._line = line  # towards the peer
        self._held_bytes_max = link.held_bytes_max
        self._made = made
        self._gone = gone
        self._buffer = bytearray(PIECE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()  # read here, and not yet written at the peer
        self._out = 0  # so many of them have come out of the line
        self._held_bytes = 0
        self._reads = False
        self._full = False  # the kernel takes no more now
        self._read_end = self._wrote_end = self._reset = False

    @property
    def held_bytes(self) -> int:
        """Read here, and not yet taken by the kernel at the peer."""
        return self._held_bytes + (self.peer.unwritten_bytes if self.peer else 0)

    @property
    def unwritten_bytes(self) -> int:
        """What the kernel has not taken."""
        return 0 if self.lost else self._transport.get_write_buffer_size()

    def start(self, peer: "RelayedSocket") -> None:
        """Begin to read."""
        self.peer = peer
        self._read_on()

    def reset(self) -> None:
        """What the kernel has taken goes out, and then a reset."""
        if not self.lost:
            self._reset = True
            bare = self._transport.get_extra_info("socket")
            bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            self._transport.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is read before :meth:`start`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._transport.pause_reading()
        self._made(self)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - a bound of our own
        """So much is read at a time."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """A piece came."""
        self._send(bytes(self._buffer[:nbytes]))
        if self._held_bytes >= self._held_bytes_max:
            self._reads = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """This end says nothing more."""
        self._read_end = True
        self._send(_END)
        self._close_if_done()
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - any loss is a reset
        """The peer is reset, unless both directions had ended."""
        self.lost = True
        self._gone(self)
        done = self._read_end and self._wrote_end
        if self.peer and not (done or self._reset):
            self._loop.call_at(self._line.enter(0), self._pass_reset, self.peer)

    def pause_writing(self) -> None:
        """The kernel has not taken the last piece whole."""
        self._full = True

    def resume_writing(self) -> None:
        """Now it has."""
        self._full = False
        if self.peer:
            self.peer.pass_on()

    # What travels.

    def _send(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        self._loop.call_at(self._line.enter(len(piece)), self._come_out)

    def _come_out(self) -> None:
        self._out += 1  # not which one: of two timers for one moment either may be the first
        self.pass_on()

    def pass_on(self) -> None:
        """Write at the peer what has come out, as long as the peer takes it."""
        while self._out and self._pieces and self.peer and not self.peer.takes_nothing:
            self._out -= 1
            piece = self._pieces.popleft()
            self._held_bytes -= len(piece)
            self.peer.write(piece)
        self._read_on()

    def _pass_reset(self, peer: "RelayedSocket") -> None:
        self._out = len(self._pieces)  # the last timers may be for this very moment
        self.pass_on()
        peer.reset()

    @property
    def takes_nothing(self) -> bool:
        """Now."""
        return self._full or self.lost or self._reset

    def write(self, piece: bytes) -> None:
        """What came out of the line for this end."""
        if piece:
            self._transport.write(piece)
        else:
            self._wrote_end = True
            self._transport.write_eof()
            self._close_if_done()

    def _read_on(self) -> None:
        waits = self.lost or self._read_end or self._held_bytes >= self._held_bytes_max
        if not (self._reads or waits or self._transport.is_closing()):
            self._reads = True
            self._transport.resume_reading()

    def _close_if_done(self) -> None:
        if self._read_end and self._wrote_end:
            self._transport.close()


@asynccontextmanager
async def relay(link: Link, port: int) -> AsyncIterator[tuple[int, Collection[RelayedSocket]]]:
    """Relay to *port* of 127.0.0.1; gives the port to connect to, and the open sockets.

    In the end all connections are reset.
    """
    loop = asyncio.get_running_loop()
    there, back = Line(link, loop.time), Line(link, loop.time)
    sockets: set[RelayedSocket] = set()
    connecting: set[asyncio.Task[None]] = set()

    async def connect(near: RelayedSocket) -> None:
        await asyncio.sleep(link.round_trip_s / 2)
        try:
            _, far = await loop.create_connection(
                lambda: RelayedSocket(back, link, made=sockets.add, gone=sockets.discard),
                _LOOPBACK,
                port,
            )
        except OSError as error:
            _logger.warning("port %d of the other side: %s", port, error)
            near.reset()
            return
        far.start(near)
        await asyncio.sleep(link.round_trip_s / 2)
        if near.lost:
            far.reset()
        else:
            near.start(far)

    async with asyncio.TaskGroup() as tasks:

        def accepted(near: RelayedSocket) -> None:
            sockets.add(near)
            task = tasks.create_task(connect(near))
            connecting.add(task)
            task.add_done_callback(connecting.discard)

        server = await loop.create_server(
            lambda: RelayedSocket(there, link, made=accepted, gone=sockets.discard), _LOOPBACK, 0
        )
        try:
            yield server.sockets[0].getsockname()[1], sockets
        finally:
            server.close()
            for task in connecting:
                task.cancel()
            for each in list(sockets):
                each.reset()


def slow_url(url: str, folder: Path, stack: ExitStack) -> str:
    """What leads to the server at *url* over :data:`SLOW`, until the end of *stack*.

    Raises:
        ServiceFailed: its process did not start.
    """
    port = urlsplit(url).port
    program = [sys.executable, "-P", "-m", __name__, str(port), str(os.getpid())]
    service = Service(
        f"the slow link to port {port}", program, log=folder / f"link-{port}.log", apart=False
    )
    stack.callback(service.stop)
    return f"http://{_LOOPBACK}:" + service.wait_line(_READY).rpartition(_READY)[2].strip()


async def _serve(port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    async with relay(SLOW, port) as (ours, _):
        _logger.info("%s%d", _READY, ours)
        await over.wait()


def _main(port: int, parent: int) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    terminate_with(parent)
    asyncio.run(_serve(port))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
