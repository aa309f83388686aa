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
from rollout_router.bench.figures import Part, Target, at_most, stage_table
from rollout_router.bench.measure import Measured, run_rounds
from rollout_router.claims import Host
from rollout_router.tables import Table

__all__ = ["ClaimCosts", "Place", "StoreCosts", "choose_places", "run_claims"]

_WARM_UPS: Final = 50
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
_AT_MOST_THE_READS: Final = {
    "claim_recheck",
    "claim_recheck_in_turn",
    "claim_recheck_touched",
    "claim_recheck_gone",
    "claim_recheck_admission",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory, and the type of its file system as in /proc/self/mountinfo."""

    directory: Path
    file_system: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCosts:
    """The results in one store."""

    directory: str
    file_system: str
    claims: int  # in the store before the rounds; they come and go by a few in each
    stages: list[Measured]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCosts(Part):
    """Each store."""

    rounds: int
    stores: list[StoreCosts]

    def tables(self) -> list[Table]:
        """A table of the stages each."""
        return [
            stage_table(f"{self._name(store)}; {self.rounds:,} rounds", store.stages, "µs")
            for store in self.stores
        ]

    def targets(self) -> list[Target]:
        """Those of the stages that have one."""
        return [
            at_most(f"{stage.stage}, {self._name(store)}, of three plain reads", stage.ratio, 1.0)
            for store in self.stores
            for stage in store.stages
            if stage.ratio is not None and stage.stage in _AT_MOST_THE_READS
        ]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {
            f"claims {store.file_system} {place} {stage.stage}": stage
            for place, store in enumerate(self.stores)
            for stage in store.stages
        }

    @staticmethod
    def _name(store: StoreCosts) -> str:
        return f"{store.claims:,} claims in {store.directory} ({store.file_system})"


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
    places: Sequence[Place],
    *,
    counts: Sequence[int],
    rounds: int,
    say: Callable[[str], None],
    notes: Sequence[str] = (),
) -> ClaimCosts:
    """Measure every operation in a new store at each place, at each number of claims.

    Args:
        places: where a directory is made, and removed again.
        counts: how many claims the owner holds; rising.
        rounds: measurements of each operation, at each number.
        say: takes one line for people.
        notes: which places are missing, and why.

    Raises:
        BenchFailed, ClaimsError: nothing is left behind, and nothing was measured wrongly.
    """
    stores = [
        costs
        for place in places
        for costs in _run_place(place, counts=counts, rounds=rounds, say=say)
    ]
    return ClaimCosts(rounds=rounds, stores=stores, notes=list(notes))


def _run_place(
    place: Place, *, counts: Sequence[int], rounds: int, say: Callable[[str], None]
) -> Iterator[StoreCosts]:
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
                bench.stages(), rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter
            )
            yield StoreCosts(
                directory=str(place.directory),
                file_system=place.file_system,
                claims=claims,
                stages=stages,
            )
