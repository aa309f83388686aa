# SPDX-License-Identifier: Apache-2.0
"""What a worker's history costs: memory of the bases of a conversation, and time of their use.

Each body is the one before and a turn of 5 KB more, in front of a tail that moves on, as the tools
do behind a conversation. Bodies have 1 MB. The operations are those that a frame would have.
"""

import gc
import hashlib
import json
import resource
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.figures import Part, Target, at_most, stage_table
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.history import Bounds, CallHandle, History, Key, Origin
from rollout_router.processes import environment
from rollout_router.tables import Table
from rollout_router.transport.sandbox.wire import sha256_hex

__all__ = ["BaseCosts", "Held", "Resident", "run_bases"]

_WARM_UPS: Final = 5
_BODY_BYTES: Final = 1_000_000
_TURN_BYTES: Final = 5_000
_TAIL_BYTES: Final = 30_000
_BASES: Final = (1, 2, 4, 8)
_IDLE_ROLLOUTS: Final = 10_000
_IDLE_BODY_BYTES: Final = 256  # long enough that a difference pays
_RESIDENT_ROLLOUTS: Final = 100
_TURNS: Final = 48  # then the conversation begins anew, so that its size stays what it is
_SHA256: Final = "sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one conversation holds with so many bases."""

    bases: int
    bytes: int
    ratio: float  # to what it holds with one


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory of a process that holds many conversations, with so many bases each."""

    bases: int
    rollouts: int
    body_bytes: int  # of all newest bodies together
    resident_bytes: int  # what the process has more than before
    per_megabyte: float  # resident bytes for one of the newest bodies
    ratio: float  # to the process with one base each


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCosts(Part):
    """One run."""

    rounds: int
    body_bytes: int
    held: list[Held]
    resident: list[Resident]
    idle_rollouts: int
    idle_bytes: dict[int, float]  # of one idle rollout beside its bases, by their number
    stages: list[Measured]  # with as many bases as a rollout may have

    def tables(self) -> list[Table]:
        """One of memory, one of time."""
        rows = [
            [
                str(held.bases),
                f"{held.bytes:,}",
                f"{held.ratio:.3g}",
                f"{resident.per_megabyte:,.0f}",
                f"{resident.ratio:.3g}",
                f"{self.idle_bytes[held.bases]:,.0f}" if held.bases in self.idle_bytes else "",
            ]
            for held, resident in zip(self.held, self.resident, strict=True)
        ]
        title = f"The bases of a conversation of {self.body_bytes:,} bytes"
        columns = ["bases", "bytes held", "ratio to one", "resident per megabyte", "ratio to one"]
        memory = Table(title=title, columns=[*columns, "of an idle rollout beside them"], rows=rows)
        return [memory, stage_table(f"{title}; {self.rounds} rounds", self.stages, "ms")]

    def targets(self) -> list[Target]:
        """Four bases cost hardly more than one."""
        four = _BASES.index(4)
        return [
            at_most("bytes held by four bases, of one", self.held[four].ratio, 1.3),
            at_most("resident memory with four bases, of one", self.resident[four].ratio, 1.3),
        ]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {f"bases {stage.stage}": stage for stage in self.stages}


def run_bases(*, rounds: int, say: Callable[[str], None]) -> BaseCosts:
    """Measure; *say* takes one line for people.

    Raises:
        BenchFailed: a base was not kept or read, or a process that holds some failed.
    """
    say(f"measuring the bases of conversations, {rounds} rounds")
    resident = [_resident(bases, _RESIDENT_ROLLOUTS) for bases in _BASES]
    held = [_held(bases) for bases in _BASES]
    return BaseCosts(
        rounds=rounds,
        body_bytes=_BODY_BYTES,
        held=[
            Held(bases=bases, bytes=size, ratio=size / held[0])
            for bases, size in zip(_BASES, held, strict=True)
        ],
        resident=[
            Resident(
                bases=bases,
                rollouts=_RESIDENT_ROLLOUTS,
                body_bytes=body_bytes,
                resident_bytes=size,
                per_megabyte=size / body_bytes,
                ratio=size / body_bytes / (resident[0][0] / resident[0][1]),
            )
            for bases, (size, body_bytes) in zip(_BASES, resident, strict=True)
        ],
        idle_rollouts=_IDLE_ROLLOUTS,
        idle_bytes={bases: _idle(bases) for bases in (0, _BASES[-1])},
        stages=_stages(rounds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    digest: str
    body: bytes
    origin: Origin | None


class _Conversation:
    """The bodies of one rollout, in a history."""

    def __init__(self, history: History, number: int, body_bytes: int) -> None:
        self.history = history
        self.key = Key(f"rollout-{number:06}", number + 1)
        self.digests: list[str] = []
        self.body = _noise(self.key.rollout_id, body_bytes)
        history.open(self.key)

    def next_body(self) -> _Next:
        """What comes next, and how it is built from the newest base."""
        origin = None
        if self.digests:
            tail = min(_TAIL_BYTES, len(self.body) // 4)
            head = len(self.body) - tail
            turn = _noise(self.digests[-1], min(_TURN_BYTES, tail))
            origin = Origin(self.digests[-1], [(0, head), (None, len(turn)), (head, tail)])
            self.body = b"".join((self.body[:head], turn, self.body[head:]))
        self.digests.append(sha256_hex(self.body))
        return _Next(digest=self.digests[-1], body=self.body, origin=origin)

    def turn(self) -> None:
        """One call.

        Raises:
            BenchFailed: its body was not kept.
        """
        call, new = self.history.begin(self.key), self.next_body()
        if not call.keep(new.digest, new.body, new.origin):
            raise BenchFailed("a base was not kept")
        call.end()


def _noise(seed: str, size: int) -> bytes:
    """Bytes that stand nowhere else."""
    return hashlib.shake_128(seed.encode()).digest(size)


def _history(rollouts: int) -> History:
    bounds = Bounds(rollouts_max=rollouts, bytes_max=1 << 60, bases_per_rollout_max=_BASES[-1])
    return History(bounds, clock=time.monotonic)


def _held(bases: int) -> int:
    history = _history(1)
    conversation = _Conversation(history, 0, _BODY_BYTES)
    for _ in range(bases):
        conversation.turn()
    return history.statistics().bytes


def _idle(bases: int) -> float:
    """Bytes of a rollout beside its bases, as the allocator of Python was asked for them."""
    history = _history(_IDLE_ROLLOUTS)
    tracemalloc.start()
    try:
        for number in range(_IDLE_ROLLOUTS):
            conversation = _Conversation(history, number, _IDLE_BODY_BYTES)
            for _ in range(bases):
                conversation.turn()
        del conversation
        gc.collect()
        traced_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (traced_bytes - history.statistics().bytes) / _IDLE_ROLLOUTS


def _resident(bases: int, rollouts: int) -> tuple[int, int]:
    """What a process of its own has more in memory, and the bytes of the newest bodies."""
    command = [sys.executable, "-P", "-m", __name__, str(bases), str(rollouts)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())  # noqa: S603 - this module
    if child.returncode:
        raise BenchFailed(f"a process that holds bases failed: {child.stderr.strip()}")
    resident_bytes, body_bytes = json.loads(child.stdout)
    return resident_bytes, body_bytes


def _hold(bases: int, rollouts: int) -> tuple[int, int]:
    """Runs in the process that is measured; the rollouts take turns."""
    history = _history(rollouts)
    before_bytes = _resident_bytes()
    conversations = [_Conversation(history, number, _BODY_BYTES) for number in range(rollouts)]
    for _ in range(bases):
        for conversation in conversations:
            conversation.turn()
    return _resident_bytes() - before_bytes, sum(len(one.body) for one in conversations)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _stages(rounds: int) -> list[Measured]:
    reference = _noise("reference", _BODY_BYTES)
    stages = [
        Stage(name=_SHA256, reference=None, prepare=lambda: partial(sha256_hex, reference)),
        Stage(name="keep", reference=_SHA256, prepare=_keep()),
        Stage(name="base_newest", reference=_SHA256, prepare=_read(-1)),
        Stage(name="base_oldest", reference=_SHA256, prepare=_read(0)),
    ]
    return run_rounds(stages, rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter)


def _keep() -> Callable[[], Callable[[], object]]:
    """The newest base is in use, as it is when a frame was rebuilt from it."""
    conversation = _full()
    calls: list[CallHandle] = []

    def prepare() -> Callable[[], object]:
        nonlocal conversation
        while calls:
            calls.pop().end()
        if len(conversation.digests) > _TURNS:
            conversation = _full()
        calls.append(conversation.history.begin(conversation.key))
        calls[0].base(conversation.digests[-1])
        new = conversation.next_body()
        return lambda: calls[0].keep(new.digest, new.body, new.origin)

    return prepare


def _read(place: int) -> Callable[[], Callable[[], object]]:
    conversation = _full()
    call = conversation.history.begin(conversation.key)
    return lambda: partial(call.base, conversation.digests[place])


def _full() -> _Conversation:
    """With as many bases as a rollout may have."""
    conversation = _Conversation(_history(1), 0, _BODY_BYTES)
    for _ in range(_BASES[-1]):
        conversation.turn()
    return conversation


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_hold(*map(int, sys.argv[1:]))))
