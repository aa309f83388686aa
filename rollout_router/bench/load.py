# SPDX-License-Identifier: Apache-2.0
"""A load of its own process, that costs as little as it can: ``python -m …``, orders on stdin.

Each line is a :class:`Load` in JSON, answered by one line, an :class:`Outcome` or what went wrong.
Every connection has one request in flight and sends the next when the answer is whole, until the
time is up. A load begins with nothing in flight and ends with the last answer, so that the
processor time meanwhile is that of its requests, however long each takes. An answer is not parsed
but checked: its status, the length of its body, its last bytes. Connections are kept from one load
to the next. Where each of those ends that several workers accept, the kernel says.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil
import uvloop

from rollout_router.bench.app import ANSWER, EVENTS, STREAM_PATH
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.cpu import cpu_clock_s
from rollout_router.bench.measure import percentile
from rollout_router.processes import environment

__all__ = ["CONNECTIONS_MAX", "Address", "Group", "Load", "LoadProcess", "Outcome", "decoded_bytes"]

CONNECTIONS_MAX: Final = 4096
"""So many connections are opened until enough of them end at each worker."""

_AT_ONCE: Final = 64  # opened together, so that no worker is alone in accepting them
_WAIT_S: Final = 60.0  # for what is in flight when the time is up
_JOINED_BYTES_MAX: Final = 64 * 1024
_OK: Final = b"HTTP/1.1 200 "
_CHUNKS_END: Final = b"\r\n0\r\n\r\n"
_STREAM_BYTES: Final = sum(map(len, EVENTS))

Address = list[str | int]
"""Host and port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Connections that do the same."""

    address: Address
    pid: int | None  # of the process that they end at; None: any
    connections: int
    paths: list[str]  # asked for in turn; connection n begins with the nth


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One measurement: as many requests in flight as there are connections."""

    groups: list[Group]
    body_bytes: int
    seconds: float  # then nothing more is sent; each connection has sent something
    requests_max: int  # likewise
    cpu_pids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it."""

    requests: int
    seconds: float  # to the last answer
    median_ms: float
    p99_ms: float
    cpu_s: list[float]  # of each of ``cpu_pids``


class LoadProcess:
    """The process, seen from the benchmark; ended by :meth:`close`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this product
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def run(self, load: Load) -> Outcome:
        """Have *load* done.

        Raises:
            BenchFailed: an answer was wrong, a connection broke, or the process ended.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise BenchFailed("the load has no standard input or output")
        with suppress(BrokenPipeError):  # its end is told below
            self._process.stdin.write(json.dumps(asdict(load)) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchFailed(f"the load ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "failed" in answer:
            raise BenchFailed(f"the load failed: {answer['failed']}")
        return Outcome(**answer)

    def close(self) -> None:
        """Let it end: nothing is in flight."""
        with self._process as process:
            if process.stdin is not None:
                process.stdin.close()


class _Run:
    """The requests of one load, and when it is over."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.body = bytes(load.body_bytes)
        self.taken_s: list[float] = []
        self.sending = True
        self.in_flight = 0
        self.over = asyncio.Event()  # the last answer is there, or something went wrong
        self.failure: str | None = None

    def answered(self, taken_s: float) -> None:
        self.in_flight -= 1
        self.taken_s.append(taken_s)
        if len(self.taken_s) + self.in_flight >= self.load.requests_max:
            self.sending = False

    def fail(self, what: str) -> None:
        self.failure, self.sending = self.failure or what, False
        self.over.set()


class _Connection(asyncio.Protocol):
    """Keep-alive; one request at a time."""

    def __init__(self) -> None:
        self.lost = False
        self._run: _Run | None = None
        self._answer = bytearray()
        self._sent_s = 0.0
        self._next = 0
        self._wires: list[tuple[bytes, bool]] = []

    def begin(self, run: _Run, wires: list[tuple[bytes, bool]], first: int) -> None:
        self._run, self._wires, self._next = run, wires, first
        self._ask(run)

    def end(self) -> None:
        self._run = None

    def close(self) -> None:
        self.lost = True
        self._transport.abort()

    def local_port(self) -> int:
        return int(self._transport.get_extra_info("sockname")[1])

    def _ask(self, run: _Run) -> None:
        head, self._streams = self._wires[self._next % len(self._wires)]
        self._next += 1
        run.in_flight += 1
        self._answer = bytearray()
        self._ending = _CHUNKS_END if self._streams else ANSWER
        self._sent_s = time.perf_counter()
        if len(run.body) > _JOINED_BYTES_MAX:
            self._transport.writelines([head, run.body])
        else:
            self._transport.write(head + run.body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        run = self._run
        if run is None:
            self.close()  # nobody asked
            return
        self._answer += data
        if not self._answer.startswith(_OK):  # a status line comes in one piece
            run.fail(f"answered {bytes(self._answer[:500])!r}")
        elif self._answer.endswith(self._ending):
            now_s = time.perf_counter()
            if not _is_right(self._answer, streams=self._streams):
                run.fail(f"a wrong answer: {bytes(self._answer[:500])!r}")
                return
            run.answered(now_s - self._sent_s)
            if run.sending:
                self._ask(run)
            elif not run.in_flight:
                run.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self._run is not None:
            self._run.fail(f"a connection broke: {exc!r}")


def _is_right(answer: bytes | bytearray, *, streams: bool) -> bool:
    begins = answer.find(b"\r\n\r\n") + 4
    if not streams:
        return len(answer) - begins == len(ANSWER)
    last = answer.rfind(EVENTS[-1], begins, len(answer) - len(_CHUNKS_END))
    return last + len(EVENTS[-1]) + len(_CHUNKS_END) == len(answer) and (
        decoded_bytes(answer, begins) == _STREAM_BYTES
    )


def decoded_bytes(answer: bytes | bytearray, begins: int) -> int:
    """The length of a body in chunks, which begins there and ends with *answer*; -1: it is none."""
    length = 0
    while True:
        ends = answer.find(b"\r\n", begins)
        try:
            size = int(answer[begins:ends], 16) if ends > 0 else -1
        except ValueError:
            return -1
        if size < 0:
            return -1
        length += size
        begins = ends + 2 + size + 2
        if size == 0:
            return length if begins == len(answer) else -1


class _Connections:
    """Those that are kept, by address and by the process that they end at."""

    def __init__(self) -> None:
        self._kept: dict[str, list[_Connection]] = {}

    async def of(self, group: Group) -> list[_Connection]:
        """As many as the group has, opened where they are missing."""
        pids = [group.pid] if group.pid is not None else []
        key = f"{group.address} {group.pid}"
        opened = 0
        while len(kept := [one for one in self._kept.get(key, []) if not one.lost]) < (
            group.connections
        ):
            if opened > CONNECTIONS_MAX:
                raise BenchFailed(f"none of {opened} connections ended at process {group.pid}")
            count = _AT_ONCE if pids else group.connections - len(kept)
            fresh = await asyncio.gather(*(_connected(group) for _ in range(count)))
            opened += count
            ends = _ending_at(pids)
            mine = [one for one in fresh if not pids or one.local_port() in ends]
            self._kept[key] = [*kept, *mine]
            for connection in set(fresh).difference(mine):
                connection.close()
        return kept[: group.connections]


async def _connected(group: Group) -> _Connection:
    """A connection over which one request was answered: somebody accepted it."""
    loop = asyncio.get_running_loop()
    host, port = group.address
    _, connection = await loop.create_connection(_Connection, str(host), int(port))
    probe = Load(groups=[], body_bytes=2, seconds=0, requests_max=1, cpu_pids=[])
    run = _Run(probe)
    connection.begin(run, _wires(["/v1/responses"], probe.body_bytes), 0)
    await _over(run, [connection])
    return connection


async def _over(run: _Run, connections: Sequence[_Connection]) -> None:
    run.sending = False
    try:
        async with asyncio.timeout(_WAIT_S):
            await run.over.wait()
    except TimeoutError:
        run.fail(f"requests without an answer after {_WAIT_S:.0f} s: {run.in_flight}")
    for connection in connections:
        connection.end()
        if run.failure is not None:
            connection.close()  # its answer may still come
    if run.failure is not None:
        raise BenchFailed(run.failure)


def _ending_at(pids: Sequence[int]) -> set[int]:
    """The ports of the clients whose connections these processes hold."""
    return {
        connection.raddr.port
        for pid in pids
        for connection in psutil.Process(pid).net_connections("tcp")
        if len(connection.raddr)
    }


def _wires(paths: Sequence[str], body_bytes: int) -> list[tuple[bytes, bool]]:
    """The head of each request, and whether a stream answers it."""
    return [
        (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            "Accept: application/json\r\nAuthorization: Bearer none\r\n"
            f"User-Agent: rollout-router-bench\r\nContent-Length: {body_bytes}\r\n\r\n".encode(),
            path.endswith(STREAM_PATH),
        )
        for path in paths
    ]


async def _measured(load: Load, connections: _Connections) -> Outcome:
    run, used = _Run(load), []
    for group in load.groups:
        wires = _wires(group.paths, load.body_bytes)
        for number, connection in enumerate(await connections.of(group)):
            used.append((connection, wires, number))
    if len({connection for connection, _, _ in used}) < len(used):
        raise BenchFailed("two groups share their connections")
    clocks_s = [cpu_clock_s(pid) for pid in load.cpu_pids]
    before_s = [clock_s() for clock_s in clocks_s]
    began_s = time.perf_counter()
    for connection, wires, number in used:
        connection.begin(run, wires, number)
    with suppress(TimeoutError):
        async with asyncio.timeout(load.seconds):
            await run.over.wait()
    await _over(run, [connection for connection, _, _ in used])
    seconds = time.perf_counter() - began_s
    cpu_s = [clock_s() - start_s for clock_s, start_s in zip(clocks_s, before_s, strict=True)]
    return Outcome(
        requests=len(run.taken_s),
        seconds=seconds,
        median_ms=1000 * statistics.median(run.taken_s),
        p99_ms=1000 * percentile(run.taken_s, 99),
        cpu_s=cpu_s,
    )


def _read(line: str) -> Load:
    fields: dict[str, Any] = json.loads(line)
    fields["groups"] = [Group(**group) for group in fields["groups"]]
    return Load(**fields)


def _main() -> None:
    connections = _Connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            answer: dict[str, Any]
            try:
                answer = asdict(runner.run(_measured(_read(line), connections)))
            except (BenchFailed, OSError, psutil.Error) as error:  # a time-out is an OSError
                answer = {"failed": repr(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _main()
