# SPDX-License-Identifier: Apache-2.0
"""What a call over a worker's private socket costs: our client and httpx beside a bare connection.

The clients share this process and one loop, uvloop as in a worker; the owner is another process.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from rollout_router.bench import hop_owner
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.figures import Part, stage_table
from rollout_router.bench.hop_clients import BARE, WORKS, Call, Work, clients_of
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.processes import Service
from rollout_router.tables import Table
from rollout_router.transport.hop import ConnectFailed, HopLost

__all__ = ["HopCosts", "hop_stages", "run_hop"]

_WARM_UPS: Final = 1  # of many calls each
_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HopCosts(Part):
    """The results, all of one call."""

    rounds: int
    stages: list[Measured]  # time
    cpu: list[Measured]  # processor time of the clients' process, from rounds of their own

    def tables(self) -> list[Table]:
        """A table of the stages each."""
        return [
            stage_table(f"The hop's client: {what} of a call; {self.rounds} rounds", stages, "µs")
            for what, stages in (("time", self.stages), ("processor time", self.cpu))
        ]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        parts = {"time": self.stages, "cpu": self.cpu}
        return {f"hop {part} {s.stage}": s for part, stages in parts.items() for s in stages}


def run_hop(work_dir: Path, *, rounds: int, say: Callable[[str], None]) -> HopCosts:
    """Measure each kind of work with each client, first its time and then its processor time.

    Args:
        work_dir: a directory for the socket is made there, and removed again.
        rounds: measurements of each stage, in either way.
        say: takes one line for people.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir)
        folder = Path(stack.enter_context(made))
        socket = str(folder / "hop.sock")
        program = [sys.executable, "-P", "-m", hop_owner.__name__, socket]
        owner = Service("the owner of the hop", program, log=folder / "log", apart=False)
        stack.callback(owner.stop)
        owner.wait_line(hop_owner.READY)
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        stages, notes = hop_stages(runner, socket, stack)
        say(f"measuring the hop: twice {rounds:,} rounds")
        times = run_rounds(stages, rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter)
        cpu = run_rounds(stages, rounds=rounds, warm_ups=0, clock_s=time.process_time)
        return HopCosts(rounds=rounds, stages=times, cpu=cpu, notes=notes)


def hop_stages(
    runner: asyncio.Runner, socket: str, stack: ExitStack
) -> tuple[list[Stage], list[str]]:
    """Each kind of work with each client, on the loop of *runner*, and notes on missing clients.

    *stack* closes their connections, before the runner is closed.
    """
    closing = AsyncExitStack()
    stack.callback(lambda: runner.run(closing.aclose()))
    clients, notes = clients_of(socket, closing)
    stages = [_stage(runner, name, call, work) for work in WORKS for name, call in clients.items()]
    return stages, notes


def _stage(runner: asyncio.Runner, client: str, call: Call, work: Work) -> Stage:
    def timed() -> None:
        try:
            runner.run(_batch(call, work))
        except (OSError, ConnectFailed, HopLost) as error:  # a time-out is an OSError
            raise BenchFailed(f"the calls of {client}_{work.name} broke: {error!r}") from error

    return Stage(
        name=f"{client}_{work.name}",
        reference=None if client == BARE else f"{BARE}_{work.name}",
        prepare=lambda: timed,
        calls=work.calls,
    )


async def _batch(call: Call, work: Work) -> None:
    async def one_by_one() -> None:
        for _ in range(work.calls // work.in_flight):
            await call(work)

    try:
        async with asyncio.timeout(_WAIT_S), asyncio.TaskGroup() as group:
            for _ in range(work.in_flight):
                group.create_task(one_by_one())
        return
    except ExceptionGroup as failures:
        first = failures.exceptions[0]  # the others were cancelled, or say the same
    raise first
