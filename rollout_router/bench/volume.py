# SPDX-License-Identifier: Apache-2.0
"""How many bytes of request bodies go over the wire: in full, each gzipped, as frames.

*Recorded rollouts* are played as the demonstration plays them, every other one in Chat Completions,
but over no socket: each body is written as the OpenAI SDK writes it, and the sandbox side's client
decides what would go. The first body of a rollout goes in full, because nothing is known of the
other side; each one after it is a frame on the best of the last four. *Gzipped* is each body on its
own (zlib, level 6): what a client saves that compresses and remembers nothing.

*Conformance* is what ``rollout-router conformance --json`` counted of real harnesses, on a scripted
task, by harness, dialect and scenario. Bytes are the same in every run: nothing here is timed.
"""

import json
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.deltas import tallied
from rollout_router.bench.figures import Part, Target, at_least
from rollout_router.bench.measure import Measured
from rollout_router.demo.conversation import Dialect, Rollout, Unplayable, parameters, turns
from rollout_router.demo.recorded import read_rollouts
from rollout_router.tables import Table

__all__ = [
    "ConformanceVolume",
    "RolloutVolume",
    "Spread",
    "VolumeCosts",
    "rollout_volume",
    "run_volume",
]

_GZIP_LEVEL: Final = 6
_WAYS: Final = ("gzip", "plain", "deflated")
_SHOWN: Final = {
    "gzip": "each gzipped",
    "plain": "frames, not compressed",
    "deflated": "frames",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutVolume:
    """The request bodies of one recorded rollout."""

    rollout_id: str
    dialect: str
    calls: int
    bytes_full: int
    bytes_gzip: int
    bytes_plain: int  # as frames, not compressed
    bytes_deflated: int  # as frames, as they are sent

    def times_fewer(self, way: str) -> float:
        """Than in full; *way* is gzip, plain or deflated."""
        return float(self.bytes_full / getattr(self, f"bytes_{way}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How many times fewer bytes go in one way than in full."""

    way: str  # gzip, plain or deflated
    all: float  # of the sums over all rollouts
    median: float  # of the rollouts, each for itself
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceVolume:
    """The request bodies of one run of a harness."""

    harness: str
    dialect: str
    scenario: str
    mode: str
    bytes_full: int
    bytes_plain: int
    bytes_sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCosts(Part):
    """Both; what was not given is empty."""

    rollouts: list[RolloutVolume]
    spreads: list[Spread]
    conformance: list[ConformanceVolume]

    def tables(self) -> list[Table]:
        """One of rollouts, one of conformance, where there are any."""
        found = []
        if self.rollouts:
            full = sum(volume.bytes_full for volume in self.rollouts)
            calls = sum(volume.calls for volume in self.rollouts)
            title = f"{len(self.rollouts)} recorded rollouts, {calls:,} calls, {full:,} bytes"
            columns = ["times fewer than in full", "all together", "median", "least", "most"]
            rows = [
                [_SHOWN[each.way]]
                + [f"{ratio:.1f}" for ratio in (each.all, each.median, each.least, each.most)]
                for each in self.spreads
            ]
            found.append(Table(title=title, columns=columns, rows=rows))
        if self.conformance:
            columns = ["harness", "scenario", "run", "bytes in full"]
            columns += ["times fewer, not compressed", "times fewer"]
            rows = [
                [f"{run.harness}, {run.dialect}", run.scenario, run.mode, f"{run.bytes_full:,}"]
                + [f"{run.bytes_full / sent:.1f}" for sent in (run.bytes_plain, run.bytes_sent)]
                for run in self.conformance
            ]
            found.append(Table(title="Request bodies of harnesses", columns=columns, rows=rows))
        return found

    def targets(self) -> list[Target]:
        """A frame is never longer than the body that it stands for (D3)."""
        return [
            at_least(f"recorded rollouts, {_SHOWN[each.way]}: least times fewer", each.least, 1.0)
            for each in self.spreads
            if each.way != "gzip"
        ]

    def measured(self) -> dict[str, Measured]:
        """Nothing: no time is measured."""
        return {}


def run_volume(
    rollouts: Path | None, conformance: Path | None, say: Callable[[str], None]
) -> VolumeCosts:
    """Count the bytes of both.

    Args:
        rollouts: a folder as ``rollout-router demo --rollouts`` takes it.
        conformance: a file with the document of ``rollout-router conformance --json``.
        say: takes one line for people.

    Raises:
        BenchFailed: one of them cannot be read, or a body could not be sent as a frame.
    """
    volumes = []
    if rollouts is not None:
        recorded = _recorded(rollouts)
        say(f"counting the bytes of {len(recorded)} recorded rollouts")
        volumes = [
            rollout_volume(rollout, (Dialect.RESPONSES, Dialect.CHAT)[number % 2])
            for number, rollout in enumerate(recorded)
        ]
    return VolumeCosts(
        rollouts=volumes,
        spreads=[_spread(volumes, way) for way in _WAYS] if volumes else [],
        conformance=[] if conformance is None else _conformance(conformance),
    )


def rollout_volume(rollout: Rollout, dialect: Dialect) -> RolloutVolume:
    """The bytes of all calls of one rollout.

    Raises:
        BenchFailed: a frame could not be made.
    """
    bodies = list(_bodies(rollout, dialect))
    tally = tallied(bodies)
    return RolloutVolume(
        rollout_id=rollout.rollout_id,
        dialect=dialect.value,
        calls=tally.calls,
        bytes_full=tally.bytes_full,
        bytes_gzip=sum(_gzipped_bytes(body) for body in bodies),
        bytes_plain=tally.bytes_plain,
        bytes_deflated=tally.bytes_sent,
    )


def _bodies(rollout: Rollout, dialect: Dialect) -> Iterator[bytes]:
    """What the SDK writes; every other turn is streamed, as in the demonstration."""
    for number, items in enumerate(turns(rollout.items)):
        asked = parameters(dialect, rollout.items[:items], stream=number % 2 == 1)
        yield json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()


def _gzipped_bytes(body: bytes) -> int:
    gzip = zlib.compressobj(_GZIP_LEVEL, wbits=16 + zlib.MAX_WBITS)
    return len(gzip.compress(body)) + len(gzip.flush())


def _spread(volumes: Sequence[RolloutVolume], way: str) -> Spread:
    ratios = [volume.times_fewer(way) for volume in volumes]
    full = sum(volume.bytes_full for volume in volumes)
    return Spread(
        way=way,
        all=full / sum(getattr(volume, f"bytes_{way}") for volume in volumes),
        median=statistics.median(ratios),
        least=min(ratios),
        most=max(ratios),
    )


def _recorded(folder: Path) -> list[Rollout]:
    try:
        return read_rollouts(folder)
    except (Unplayable, OSError) as error:
        raise BenchFailed(f"the recorded rollouts cannot be read: {error}") from error


def _conformance(path: Path) -> list[ConformanceVolume]:
    """The runs that came to an end."""
    try:
        document: Mapping[str, Any] = json.loads(path.read_bytes())
        return [
            ConformanceVolume(
                harness=variant["harness"],
                dialect=variant["dialect"],
                scenario=variant["scenario"],
                mode=run["mode"],
                bytes_full=run["bytes_full"],
                bytes_plain=run["bytes_plain"],
                bytes_sent=run["bytes_sent"],
            )
            for variant in document["variants"]
            for run in variant["runs"]
            if not run["failed"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchFailed(f"{path} is no document of a conformance run: {error!r}") from error
