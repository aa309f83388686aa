# SPDX-License-Identifier: Apache-2.0
"""What an operation of an agent session costs beside its effect, which here is none.

Three things are put side by side: a row of the same bytes written by a bare connection to SQLite
with the same settings, one transaction each; the operation with its journal; and the same operation
with the journal switched off, which keeps its rows in memory.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rollout_router.bench.figures import Part, stage_table
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.checkpoint.effects import Performed
from rollout_router.checkpoint.journal import Journal, Opened
from rollout_router.checkpoint.rows import Recorded, Rollout
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.wire import Operation
from rollout_router.tables import Table

__all__ = ["JournalCosts", "run_journal"]

_SIZES: Final = (4_000, 64_000)
_OPERATIONS: Final = 8  # of one measurement: what starts and ends it is shared by them
_WARM_UPS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCosts(Part):
    """Each stage, of one operation."""

    rounds: int
    file_system: str
    stages: list[Measured]

    def tables(self) -> list[Table]:
        """One table."""
        title = f"An operation of an agent session, on {self.file_system}; {self.rounds:,} rounds"
        return [stage_table(title, self.stages, "µs")]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {f"journal {stage.stage}": stage for stage in self.stages}


def run_journal(
    work_dir: Path, *, file_system: str, rounds: int, say: Callable[[str], None]
) -> JournalCosts:
    """Measure operations in a new journal below *work_dir*, which is removed again."""
    say(f"measuring operations of agent sessions: {rounds:,} rounds of {_OPERATIONS}")
    with (
        tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir) as folder,
        closing(_Bench(Path(folder))) as bench,
    ):
        stages = run_rounds(
            [stage for size in _SIZES for stage in bench.stages(size)],
            rounds=rounds,
            warm_ups=_WARM_UPS,
            clock_s=time.perf_counter,
        )
    return JournalCosts(rounds=rounds, file_system=file_system, stages=stages)


class _Off(Journal):
    """It keeps nothing."""

    async def append(self, rollout: Rollout, row: Recorded) -> Rollout:
        return replace(rollout, next=rollout.next + 1, head=row.chain or "")


class _Bench:
    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._number = 0
        self._journal = Journal(
            folder / "journal.sqlite3", instance="agent", run="bench", store_id="store"
        )
        self._off = _Off(folder / "off.sqlite3", instance="agent", run="bench", store_id="store")
        self._bare = sqlite3.connect(folder / "bare.sqlite3", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode=TRUNCATE",
            "PRAGMA synchronous=FULL",
            "CREATE TABLE row (number INTEGER PRIMARY KEY, value TEXT NOT NULL) STRICT",
        ):
            self._bare.execute(statement)

    def close(self) -> None:
        """Give everything back."""
        self._bare.close()
        self._journal.close()
        self._off.close()
        self._runner.close()

    def stages(self, size: int) -> list[Stage]:
        """Those of results of so many bytes."""
        reference, k = f"bare_insert_{size // 1000}k", f"{size // 1000}k"
        value = "x" * size

        def stage(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Stage:
            def prepare() -> Callable[[], object]:
                coroutine = work()
                return lambda: self._runner.run(coroutine)

            return Stage(
                name=f"{name}_{k}", reference=reference, prepare=prepare, calls=_OPERATIONS
            )

        return [
            Stage(
                name=reference,
                reference=None,
                prepare=lambda: lambda: self._insert(value),
                calls=_OPERATIONS,
            ),
            stage("operation", lambda: _operations(self._run(), value)),
            stage("operation_together", lambda: _together(self._runs(), value)),
            stage("operation_replayed", lambda: _operations(self._recorded(value), value)),
            stage("journal_off", lambda: _operations(self._unrecorded(), value)),
        ]

    def _insert(self, value: str) -> None:
        for _ in range(_OPERATIONS):
            self._bare.execute("BEGIN IMMEDIATE")
            self._bare.execute("INSERT INTO row (value) VALUES (?)", (value,))
            self._bare.execute("COMMIT")

    def _run(self) -> Run:
        self._number += 1
        return self._opened(1)

    def _runs(self) -> list[Run]:
        return [self._run() for _ in range(_OPERATIONS)]

    def _recorded(self, value: str) -> Run:
        self._runner.run(_operations(self._run(), value))
        return self._opened(2)

    def _unrecorded(self) -> Run:
        run = self._run()
        return Run(self._off, run.rollout, ())

    def _opened(self, claim_epoch: int) -> Run:
        opened = self._runner.run(
            self._journal.open_rollout(
                f"r{self._number}",
                claim_epoch,
                task=None,
                loop_digest="loop",
                configuration_digest="configuration",
            )
        )
        if not isinstance(opened, Opened):
            raise TypeError(f"r{self._number} is completed")
        return Run(self._journal, opened.rollout, opened.rows)


async def _operations(run: Run, value: str) -> None:
    for number in range(_OPERATIONS):
        await _operation(run, number, value)


async def _together(runs: Sequence[Run], value: str) -> None:
    await asyncio.gather(*(_operation(run, 0, value) for run in runs))


async def _operation(run: Run, number: int, value: str) -> None:
    async def effect(_: Operation) -> Performed:
        return Performed(value=value)

    await run.op("effect", {"number": number}, effect, effect="resample")
