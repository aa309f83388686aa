# SPDX-License-Identifier: Apache-2.0
"""What the operations on claims cost, on disk and in memory, beside plain reads in the same run.

The owner's re-check is on the path of every call, so it has a target: three plain reads of a small
file. One form has none and costs a fifth more: another grant stands there, which its owner finds
once, and for that it verifies the checksum of the other record.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollout_router.bench.claim_stages import ClaimBench
from rollout_router.bench.measure import Measured, run_rounds
from rollout_router.claims import Host

__all__ = [
    "CLAIM_WARM_UPS",
    "ClaimCosts",
    "Place",
    "Target",
    "choose_places",
    "run_claims",
    "targets_of",
]

CLAIM_WARM_UPS: Final = 50
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_RATIO_MAX: Final = {
    "claim_recheck": 1.0,
    "claim_recheck_in_turn": 1.0,
    "claim_recheck_touched": 1.0,
    "claim_recheck_gone": 1.0,
}
"""The targets: the highest ratio to the plain reads, by stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory, and the type of its file system as in /proc/self/mountinfo."""

    directory: Path
    file_system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a stage may cost, and whether it cost no more, by the medians of one run."""

    stage: str
    ratio: float
    ratio_max: float
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCosts:
    """The results in one store."""

    directory: str
    file_system: str
    claims: int  # in the store before the rounds; they come and go by a few in each
    stages: list[Measured]
    targets: list[Target]


def choose_places(
    work_dir: Path, *, host: Host, memory: Path = _MEMORY
) -> tuple[list[Place], list[str]]:
    """*work_dir*, and *memory* where that is a tmpfs and *work_dir* is none; and what is missing.

    Args:
        work_dir: on the disk that is measured.
        host: knows the file systems.
        memory: where a tmpfs is expected.
    """
    disk, other = (
        Place(directory=path, file_system=host.file_system(path.resolve()))
        for path in (work_dir, memory)
    )
    if not os.access(memory, os.W_OK | os.X_OK):
        return [disk], [f"{memory} is missing or read-only: no claims on tmpfs are measured"]
    if other.file_system != "tmpfs":
        return [disk], [f"{memory} is {other.file_system}: no claims on tmpfs are measured"]
    if disk.file_system == "tmpfs":
        return [disk], [f"{work_dir} is tmpfs: no claims on disk are measured"]
    return [disk, other], []


def run_claims(
    places: Sequence[Place], *, counts: Sequence[int], rounds: int, say: Callable[[str], None]
) -> list[ClaimCosts]:
    """Measure every operation in a new store at each place, at each number of claims.

    Args:
        places: where a directory is made, and removed again.
        counts: how many claims the owner holds; rising.
        rounds: measurements of each operation, at each number.
        say: takes one line for people.

    Raises:
        BenchFailed, ClaimsError: nothing is left behind, and nothing was measured wrongly.
    """
    return [
        costs
        for place in places
        for costs in _run_place(place, counts=counts, rounds=rounds, say=say)
    ]


def targets_of(stages: Sequence[Measured]) -> list[Target]:
    """The targets among *stages*: what costs exactly as much as it may meets its target."""
    return [
        Target(stage=each.stage, ratio=each.ratio, ratio_max=limit, met=each.ratio <= limit)
        for each in stages
        if each.ratio is not None and (limit := _RATIO_MAX.get(each.stage)) is not None
    ]


def _run_place(
    place: Place, *, counts: Sequence[int], rounds: int, say: Callable[[str], None]
) -> Iterator[ClaimCosts]:
    with (
        tempfile.TemporaryDirectory(prefix="rr-", dir=place.directory) as folder,
        closing(ClaimBench(Path(folder))) as bench,
    ):
        for count in counts:
            where = f"{place.directory} ({place.file_system})"
            say(f"measuring claims in {where}: {rounds:,} rounds, claims held: {count:,}")
            bench.fill(count)
            claims = bench.count()
            stages = run_rounds(
                bench.stages(), rounds=rounds, warm_ups=CLAIM_WARM_UPS, clock_s=time.perf_counter
            )
            yield ClaimCosts(
                directory=str(place.directory),
                file_system=place.file_system,
                claims=claims,
                stages=stages,
                targets=targets_of(stages),
            )
