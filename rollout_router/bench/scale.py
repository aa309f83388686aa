# SPDX-License-Identifier: Apache-2.0
"""How cost grows with number: worker processes, rollouts that are idle, streams in flight.

*Workers*: 64 connections call at once, with bodies of 5 KB that are kept. *Own*: each connection
calls its own rollout, which its worker owns, so nothing is forwarded. *Mixed*: call by call each
connection names another of the 64 rollouts, so that many are forwarded; how many depends on how the
kernel spreads the connections, and is told. Clients and workers share the machine's processors:
read the figures beside their number, beyond which more workers can only cost, and the workers' own
processor time beside the other. The application answers at once.

*Idle rollouts*: each has made one call with a body of 5 KB, which its worker keeps, and no more.
Of what the resident memory of that one worker grew by, the bytes of the bodies are deducted.

*Streams*: see ``streams``. What claims cost by their number is another part (``claims``).
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from rollout_router.bench.app import ANSWER
from rollout_router.bench.callers import Caller, callers, header, many_descriptors, wire
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.cpu import cpu_clock_s
from rollout_router.bench.figures import Part, Target, at_most
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.bench.streams import StreamCosts, measure_streams
from rollout_router.bench.workers import pids_of, resident_bytes, started
from rollout_router.tables import Table
from rollout_router.transport.sandbox.wire import HISTORY_HEADER, KEEP, KEPT

__all__ = ["CallCosts", "IdleCosts", "ScaleCosts", "run_scale"]

_BODY: Final = bytes(5_000)
_IN_FLIGHT: Final = 64
_CALLS_EACH: Final = 4
_ROUNDS: Final = 9
_WARM_UPS: Final = 1
_CREATORS: Final = 16
_FIRST_ROLLOUTS: Final = 256
"""Made before the memory is looked at: what only the first ones cost is not the rollouts'."""

_WAIT_S: Final = 300.0
_IDLE_BYTES_MAX: Final = 2_048
_STREAM_BYTES_MAX: Final = 100 * 1024
_KEEP: Final = f"{HISTORY_HEADER}: {KEEP}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCosts:
    """Calls at one number of workers. Times are of all calls, divided by their number."""

    workers: int
    kind: str  # own or mixed
    forwarded: float  # share of the calls
    time: Measured  # beside the same kind with the first number of workers
    cpu: Measured  # processor time of the workers, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCosts:
    """Rollouts that one worker owns, each with one base."""

    rollouts: int
    base_bytes: int
    resident_bytes: int  # that the worker grew by
    creations_per_s: float

    @property
    def rollout_bytes(self) -> float:
        """Of one rollout, beyond its base."""
        return self.resident_bytes / self.rollouts - self.base_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleCosts(Part):
    """The three of them."""

    cpus: int  # that clients and workers share
    calls: list[CallCosts]
    idle: IdleCosts
    streams: StreamCosts

    def tables(self) -> list[Table]:
        """One of calls, one of memory."""
        rows = [
            [
                *(str(calls.workers), calls.kind, f"{calls.forwarded:.2f}"),
                *(f"{1000 / calls.time.median_ms:,.0f}", f"{1000 * calls.time.median_ms:.0f}"),
                "" if calls.time.ratio is None else f"{1 / calls.time.ratio:.2f}",
                f"{1000 * calls.cpu.median_ms:.0f}",
            ]
            for calls in self.calls
        ]
        idle, streams = self.idle, self.streams
        each_bytes = (idle.rollout_bytes, streams.stream_bytes)
        held = [
            (f"idle rollout, beyond its base of {idle.base_bytes:,} bytes", idle.rollouts),
            (f"stream in flight, {streams.over_hop:,} of them over a hop", streams.streams),
        ]
        return [
            Table(
                title=f"Calls by workers, {_IN_FLIGHT} in flight, on {self.cpus} processors",
                columns=[
                    *("workers", "rollouts", "forwarded"),
                    "calls/s",
                    "µs a call",
                    "times one worker",
                    "µs of workers' CPU",
                ],
                rows=rows,
            ),
            Table(
                title="Resident memory of the workers",
                columns=["of each", "number", "bytes"],
                rows=[
                    [name, f"{number:,}", f"{size:,.0f}"]
                    for (name, number), size in zip(held, each_bytes, strict=True)
                ],
            ),
        ]

    def targets(self) -> list[Target]:
        """Of memory."""
        return [
            at_most(
                "bytes an idle rollout beyond its bases", self.idle.rollout_bytes, _IDLE_BYTES_MAX
            ),
            at_most("bytes a stream in flight", self.streams.stream_bytes, _STREAM_BYTES_MAX),
        ]

    def measured(self) -> dict[str, Measured]:
        """The calls."""
        return {
            f"scale {what} {measured.stage}": measured
            for calls in self.calls
            for what, measured in (("calls", calls.time), ("cpu", calls.cpu))
        }


def run_scale(
    work_dir: Path,
    *,
    workers: Sequence[int],
    rollouts: int,
    streams: int,
    say: Callable[[str], None],
) -> ScaleCosts:
    """Measure all three.

    Args:
        work_dir: a directory for stores and sockets is made there, and removed again. Its path is
            short.
        workers: numbers of them; the first is what the others are compared with.
        rollouts: that are created and then idle.
        streams: in flight at once, at least 2.
        say: takes one line for people.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    with tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir) as made, many_descriptors():
        folder = Path(made)
        for name in ("calls", "idle", "streams"):
            (folder / name).mkdir()
        numbers = ", ".join(map(str, workers))
        say(f"measuring calls: twice {_ROUNDS} rounds with {numbers} workers")
        calls = _measure_calls(folder / "calls", workers)
        say(f"creating {rollouts:,} rollouts")
        idle = _measure_idle(folder / "idle", rollouts)
        say(f"opening {streams:,} streams")
        found = measure_streams(folder / "streams", streams=streams)
    return ScaleCosts(cpus=len(os.sched_getaffinity(0)), calls=calls, idle=idle, streams=found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowd:
    """Callers of one gateway; each makes its list of calls, one after another, all at once."""

    workers: int
    kind: str
    forwarded: float
    made: Sequence[Caller]
    requests: Sequence[Sequence[bytes]]

    def stage(self, runner: asyncio.Runner, first: int) -> Stage:
        name, reference = (f"{number} {self.kind}" for number in (self.workers, first))
        return Stage(
            name=name,
            reference=None if name == reference else reference,
            prepare=lambda: lambda: runner.run(_all(self.made, self.requests)),
            calls=sum(map(len, self.requests)),
        )


def _measure_calls(folder: Path, workers: Sequence[int]) -> list[CallCosts]:
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        closing = AsyncExitStack()
        stack.callback(lambda: runner.run(closing.aclose()))
        crowds: list[_Crowd] = []
        pids: list[int] = []
        for number in workers:
            gateway = started(stack, folder / str(number), "--workers", str(number))
            pids += pids_of(gateway)
            made = runner.run(closing.enter_async_context(callers(gateway.url, _IN_FLIGHT)))
            crowds += runner.run(_crowds(made, number))
        stages = [crowd.stage(runner, workers[0]) for crowd in crowds]
        times = run_rounds(stages, rounds=_ROUNDS, warm_ups=_WARM_UPS, clock_s=time.perf_counter)
        cpu = run_rounds(stages, rounds=_ROUNDS, warm_ups=0, clock_s=cpu_clock_s(*pids))
    return [
        CallCosts(
            workers=crowd.workers,
            kind=crowd.kind,
            forwarded=crowd.forwarded,
            time=its_time,
            cpu=its_cpu,
        )
        for crowd, its_time, its_cpu in zip(crowds, times, cpu, strict=True)
    ]


async def _crowds(made: Sequence[Caller], workers: int) -> list[_Crowd]:
    """Make the first calls, too: each rollout arrives first where its own caller's connection ends.

    So its owner is the worker of that connection.
    """
    numbers = range(len(made))
    wires = [wire(f"calls-{number}", _BODY, _KEEP) for number in numbers]
    owners = [
        header(await caller.ask(request, ANSWER), b"rollout-worker")
        for caller, request in zip(made, wires, strict=True)
    ]
    apart = len(made) // _CALLS_EACH  # neighbours often end at one worker
    asked = {
        "own": [[number] * _CALLS_EACH for number in numbers],
        "mixed": [[(n + k * apart) % len(made) for k in range(_CALLS_EACH)] for n in numbers],
    }
    return [
        _Crowd(
            workers=workers,
            kind=kind,
            forwarded=statistics.fmean(
                owners[caller] != owners[rollout]
                for caller, rollouts in enumerate(lists)
                for rollout in rollouts
            ),
            made=made,
            requests=[[wires[rollout] for rollout in rollouts] for rollouts in lists],
        )
        for kind, lists in asked.items()
    ]


async def _all(made: Sequence[Caller], requests: Sequence[Sequence[bytes]]) -> None:
    """Each caller makes its calls one after another, all callers at once."""

    async def one_by_one(caller: Caller, requests: Sequence[bytes]) -> None:
        for request in requests:
            if KEPT.encode() not in await caller.ask(request, ANSWER):
                raise BenchFailed("a body was not kept")

    async with asyncio.timeout(_WAIT_S):
        await asyncio.gather(*map(one_by_one, made, requests))


def _measure_idle(folder: Path, rollouts: int) -> IdleCosts:
    with ExitStack() as stack:
        most = str(rollouts + _FIRST_ROLLOUTS)
        gateway = started(stack, folder / "1", "--workers", "1", "--history-rollouts", most)
        asyncio.run(_create(gateway.url, "first", _FIRST_ROLLOUTS))
        before_bytes, begin_s = resident_bytes(gateway), time.perf_counter()
        asyncio.run(_create(gateway.url, "idle", rollouts))
        taken_s = time.perf_counter() - begin_s
        return IdleCosts(
            rollouts=rollouts,
            base_bytes=len(_BODY),
            resident_bytes=resident_bytes(gateway) - before_bytes,
            creations_per_s=rollouts / taken_s,
        )


async def _create(url: str, name: str, rollouts: int) -> None:
    """So many rollouts make their first call."""
    requests = [
        [wire(f"{name}-{number:06}", _BODY, _KEEP) for number in range(first, rollouts, _CREATORS)]
        for first in range(_CREATORS)
    ]
    async with callers(url, _CREATORS) as made:
        await _all(made, requests)
