# SPDX-License-Identifier: Apache-2.0
"""One connection of a worker's server, its client and its clock in the hands of the test."""

import asyncio
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from rollout_router.asgi import App
from rollout_router.routing.limits import Limits
from rollout_router.routing.workers_protocol import protocol_noting

__all__ = ["HIGH_WATER_BYTES", "Connection", "Server", "TurnedLoop"]

HIGH_WATER_BYTES = 65_536


class Timer:
    """What ``call_at`` gives."""

    def __init__(self, due: float, call: Callable[[], object]) -> None:
        self.due = due
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class TurnedLoop:
    """The running loop, with a clock that the test turns."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = 1000.0
        self.timers: list[Timer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, call: Callable[..., object], *args: Any) -> Timer:
        self.timers.append(Timer(when, lambda: call(*args)))
        return self.timers[-1]

    def call_later(self, seconds: float, call: Callable[..., object], *args: Any) -> Timer:
        return self.call_at(self._now + seconds, call, *args)

    async def turn(self, seconds: float) -> None:
        """Let so much time go by, each timer at its time."""
        until = self._now + seconds
        while due := [timer for timer in self._standing() if timer.due <= until]:
            first = min(due, key=lambda timer: timer.due)
            self._now = max(self._now, first.due)
            await self._fire(first)
        self._now = until

    def stop(self, seconds: float) -> None:
        """As after SIGSTOP and SIGCONT, before anything of this process went on."""
        self._now += seconds

    async def stop_and_go_on(self, seconds: float) -> None:
        """As after SIGSTOP and SIGCONT: every timer that was due meanwhile comes late."""
        self.stop(seconds)
        for timer in [timer for timer in self._standing() if timer.due <= self._now]:
            if not timer.cancelled:
                await self._fire(timer)

    def _standing(self) -> list[Timer]:
        self.timers = [timer for timer in self.timers if not timer.cancelled]
        return self.timers

    async def _fire(self, timer: Timer) -> None:
        timer.cancelled = True
        timer.call()
        await settle()


class _Transport(asyncio.Transport):
    """Keeps what is written, until the client takes it."""

    def __init__(self, protocol: Any) -> None:
        super().__init__()
        self.protocol = protocol
        self.taken = b""
        self.waiting = b""
        self.reads = True  # whether the client takes what is written
        self.paused = self.closing = self.aborted = self.ended = self._full = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written behind the end"
        self.waiting += bytes(data)
        self.take(len(self.waiting) if self.reads else 0)

    def take(self, count: int) -> None:
        """The client reads so many bytes."""
        self.taken, self.waiting = self.taken + self.waiting[:count], self.waiting[count:]
        if len(self.waiting) > HIGH_WATER_BYTES and not self._full:
            self._full = True
            self.protocol.pause_writing()
        elif len(self.waiting) < HIGH_WATER_BYTES // 4 and self._full:
            self._full = False
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True
        self.waiting = b""


async def settle() -> None:
    """Let every task go as far as it can; nothing here waits for anything outside of this loop."""
    for _ in range(20):
        await asyncio.sleep(0)


class Connection:
    """A client's connection."""

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self.transport = _Transport(protocol)
        protocol.connection_made(self.transport)

    async def write(self, data: bytes) -> None:
        """Send, unless the server closed."""
        if not self.transport.closing:
            self.protocol.data_received(data)
        await settle()

    async def leave(self) -> None:
        """The connection is gone."""
        self.protocol.connection_lost(None)
        await settle()

    @property
    def answers(self) -> bytes:
        """What the client was given."""
        return self.transport.taken

    @property
    def ended(self) -> bool:
        """Whether the client sees an end."""
        return self.transport.closing or self.transport.ended


class Server:
    """Makes connections of one port."""

    kind = staticmethod(protocol_noting)

    def __init__(self, app: App, *, idle_s: int = 75, **limits: Any) -> None:
        self.loop = TurnedLoop()
        self.state = ServerState()
        self.limits = Limits(**{"connections_max": 10, **limits})
        self.lost = 0
        self._config = uvicorn.Config(
            app, ws="none", lifespan="off", log_config=None, timeout_keep_alive=idle_s
        )
        self._config.load()
        self._protocol: Any = self.kind(self._count_lost, self.limits)

    def connect(self) -> Connection:
        """A new connection."""
        return Connection(self._protocol(self._config, self.state, {}, _loop=self.loop))

    async def close(self) -> None:
        """Every client leaves, and every call ends."""
        for protocol in list(self.state.connections):
            protocol.connection_lost(None)
        for task in list(self.state.tasks):
            task.cancel()
        await settle()

    def _count_lost(self) -> None:
        self.lost += 1
