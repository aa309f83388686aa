# SPDX-License-Identifier: Apache-2.0
"""What a turn costs, stage by stage and size by size: two gateways and a shim, and their rooms."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from rollout_router.bench import receive
from rollout_router.bench.bodies import TURNS, Conversation
from rollout_router.bench.calls import Ways, call_stages, cpu_stages, shim_rollout
from rollout_router.bench.connection import BenchFailed, Connection, to_two_workers
from rollout_router.bench.cpu import cpu_clock_s
from rollout_router.bench.figures import Part, Target, at_most, stage_table
from rollout_router.bench.lineage import Lineage
from rollout_router.bench.measure import Measured, Taken, measured, run_rounds, summary, take_rounds
from rollout_router.bench.rooms import (
    DELTA,
    JSON_REFERENCE,
    REBUILD,
    claim_stages,
    history_stages,
)
from rollout_router.bench.workers import started
from rollout_router.claims import FileClaimStore, LifeLock, new_nonce
from rollout_router.processes import Service, Shim
from rollout_router.tables import Table
from rollout_router.timings import GYM, SANDBOX, by_rollout, stages_of
from rollout_router.transport.sandbox.client import Sent

__all__ = ["Sized", "TurnCosts", "run_turns"]

_WARM_UPS: Final = 5
_HOP: Final = "gym hop"
_MEGABYTE: Final = 1_000_000
_TARGETS: Final = {DELTA: 0.25, REBUILD: 0.2, "cpu_shim": 3.0}
"""The highest ratio of a stage at one megabyte. A processor without SHA instructions takes 0.6 of
``decode_encode`` for the digest alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The results at one size; bytes are of the body and the frame of a turn in the middle."""

    history_bytes: int
    body_bytes: int
    frame_bytes: int
    stages: list[Measured]
    cpu: list[Measured]  # processor time of the sandbox side
    at_owner: list[Measured]  # the stages of a call through the shim whose worker is the owner
    over_hop: list[Measured]  # of one whose worker forwards


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCosts(Part):
    """Each size; the application reads the body and answers, so no model is measured."""

    rounds: int
    sizes: list[Sized]

    def tables(self) -> list[Table]:
        """A table of the stages each."""
        found = []
        for sized in self.sizes:
            title = (
                f"A turn at {sized.history_bytes:,} bytes of history: body {sized.body_bytes:,}, "
                f"frame {sized.frame_bytes:,}; {self.rounds} rounds"
            )
            found.append(stage_table(title, sized.stages, "ms"))
            for name, stages in (
                ("processor time of the sandbox side", sized.cpu),
                ("stages of a call at its owner", sized.at_owner),
                ("stages of a call over a hop", sized.over_hop),
            ):
                found.append(stage_table(f"{sized.history_bytes:,} bytes: {name}", stages, "ms"))
        return found

    def targets(self) -> list[Target]:
        """Those of the stages that have one."""
        return [
            at_most(f"{stage.stage} at 1 MB, of {stage.reference}", stage.ratio, bound)
            for sized in self.sizes
            if sized.history_bytes == _MEGABYTE
            for stage in (*sized.stages, *sized.cpu)
            if stage.ratio is not None and (bound := _TARGETS.get(stage.stage)) is not None
        ]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {
            f"turns {sized.history_bytes} {part} {stage.stage}": stage
            for sized in self.sizes
            for part in ("stages", "cpu", "at_owner", "over_hop")
            for stage in getattr(sized, part)
        }


def run_turns(
    work_dir: Path, *, sizes: Sequence[int], rounds: int, say: Callable[[str], None]
) -> TurnCosts:
    """Measure every stage at every size.

    Args:
        work_dir: a directory for stores, records and sockets is made there, and removed again. Its
            disk is measured, and its path is short.
        sizes: bytes of history.
        rounds: measurements of each stage, at each size.
        say: takes one line for people.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    with tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir) as made:
        folder = Path(made)
        timings = folder / "timings.jsonl"
        with _ways(folder, timings, say) as (ways, rooms):
            taken = []
            for size in sizes:
                say(f"measuring {rounds} rounds at {size:,} bytes of history")
                taken.append(_take(ways, rooms, size, rounds))
        lines = _lines(timings)
    return TurnCosts(rounds=rounds, sizes=[one.sized(lines) for one in taken])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rooms:
    """What is measured without a call."""

    store: FileClaimStore
    life: LifeLock
    records: Path
    cpu_s: Callable[[], float]  # of the shim, and of what the shim is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class _TakenAtSize:
    """One size, before the shim has ended and its lines are there."""

    size: int
    conversation: Conversation
    taken: Taken
    stages: list[Measured]
    cpu: list[Measured]

    def sized(self, lines: Mapping[str, Sequence[Mapping[str, float]]]) -> Sized:
        lineage = Lineage(self.conversation)
        step = [lineage.step() for _ in range(TURNS // 2)][-1]
        return Sized(
            history_bytes=self.size,
            body_bytes=len(step.body),
            frame_bytes=len(step.frame()),
            stages=self.stages,
            cpu=self.cpu,
            at_owner=self._split(lines[shim_rollout(self.size)], hop=False),
            over_hop=self._split(lines[shim_rollout(self.size, hop=True)], hop=True),
        )

    def _split(self, calls: Sequence[Mapping[str, float]], *, hop: bool) -> list[Measured]:
        """The stages of the calls that were timed as a whole, too."""
        counted = calls[_WARM_UPS:]
        names = [name for name in (*SANDBOX, *GYM) if hop or name != _HOP]
        if any(set(names) != set(call) for call in counted):
            raise BenchFailed("a call of the shim went another way than it should")
        split = {name: [call[name] / 1000 for call in counted] for name in names}
        taken = {**self.taken, **split}
        return [measured(name, taken, reference=JSON_REFERENCE) for name in names]


def _take(ways: Ways, rooms: _Rooms, size: int, rounds: int) -> _TakenAtSize:
    conversation = Conversation(size)
    stages = [
        *history_stages(conversation, rooms.records),
        *claim_stages(rooms.store, rooms.life),
        *call_stages(ways, conversation, size),
    ]
    taken = take_rounds(stages, rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter)
    cpu = cpu_stages(ways, conversation, size)
    return _TakenAtSize(
        size=size,
        conversation=conversation,
        taken=taken,
        stages=summary(stages, taken),
        cpu=run_rounds(cpu, rounds=rounds, warm_ups=1, clock_s=rooms.cpu_s),
    )


@contextmanager
def _ways(folder: Path, timings: Path, say: Callable[[str], None]) -> Iterator[tuple[Ways, _Rooms]]:
    """Everything that runs, and a connection for each way that a call can go."""
    with ExitStack() as stack:
        say("starting two gateways of two workers, and two shims")
        routed = started(stack, folder / "on", "--server-timing")
        unrouted = started(stack, folder / "off", "--no-history-delta")
        shim = Shim(folder, routed.url, "--timings-file", str(timings))
        stack.callback(shim.service.stop)
        untimed = Shim(folder, routed.url, name="untimed")
        stack.callback(untimed.service.stop)
        program = [sys.executable, "-P", "-m", receive.__name__, str(os.getpid())]
        bare = Service("the bare receiver", program, log=folder / "bare.log", apart=False)
        stack.callback(bare.stop)
        bare_url = json.loads(bare.wait_line(receive.READY))["url"]
        store = FileClaimStore.open(folder / "claims", service="bench")
        life = LifeLock.acquire(store, nonce=new_nonce(), socket=str(folder / "none.sock"))
        stack.enter_context(closing(life))
        owner, other = to_two_workers(routed.url)
        ways = Ways(
            owner=owner,
            other=other,
            shim=Connection(shim.url),
            untimed=Connection(untimed.url),
            unrouted=Connection(unrouted.url),
            bare=Connection(bare_url),
        )
        for field in fields(ways):
            stack.callback(getattr(ways, field.name).close)
        cpu_s = cpu_clock_s(untimed.service.process.pid, bare.process.pid)
        yield ways, _Rooms(store=store, life=life, records=folder / "records", cpu_s=cpu_s)


def _lines(timings: Path) -> dict[str, list[Mapping[str, float]]]:
    """What the shim wrote of each rollout's calls but the first, which all went as frames."""
    found: dict[str, list[Mapping[str, float]]] = {}
    for rollout_id, (_, *calls) in by_rollout(timings.read_text().splitlines()).items():
        if {call["sent"] for call in calls} - {Sent.FRAME.value}:
            raise BenchFailed(f"the shim did not send frames for {rollout_id}")
        found[rollout_id] = list(map(stages_of, calls))
    return found
