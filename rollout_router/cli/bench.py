# SPDX-License-Identifier: Apache-2.0
"""``rollout-router bench``: what turns, claims, hop and deltas cost, as ratios within one run."""

import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from rollout_router import __version__
from rollout_router.bench.bodies import TURN_BYTES
from rollout_router.bench.claims import CLAIM_WARM_UPS, ClaimCosts, choose_places, run_claims
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.deltas import DELTA_WARM_UPS, DeltaCosts, run_deltas
from rollout_router.bench.hop import HOP_WARM_UPS, HopCosts, run_hop
from rollout_router.bench.measure import Measured
from rollout_router.bench.run import APP, WARM_UPS, Sized, run_bench
from rollout_router.bench.start import START_WARM_UPS, run_start
from rollout_router.claims import ClaimsError, Host
from rollout_router.cli.flags import SCHEMA, ExitCode, flag, json_flag
from rollout_router.processes import ServiceFailed

__all__ = ["bench"]

_SIZES: Final = "100000,500000,1000000,2000000"
_PARTS: Final = ("turns", "claims", "hop", "deltas", "start")
_CLAIM_ROUNDS: Final = 10
"""So many rounds of claims for one of turns: those take microseconds, these milliseconds."""


class _Sizes(click.ParamType[list[int]]):
    """Numbers of bytes, separated by commas."""

    name = "bytes,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            sizes = [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of numbers", param, ctx)
        if min(sizes) < TURN_BYTES or len(set(sizes)) < len(sizes):
            self.fail(f"sizes differ from one another, and are at least {TURN_BYTES}", param, ctx)
        return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    """What was measured; a part that was left out is empty."""

    rounds: int
    sizes: list[Sized]
    claims: list[ClaimCosts]
    hop: HopCosts
    deltas: list[DeltaCosts]
    start: list[Measured]
    notes: list[str]  # which claims could not be measured, and why

    def missed(self) -> list[str]:
        """One line for people a target that was missed."""
        return [
            f"target missed in {costs.directory} ({costs.file_system}), {costs.claims:,} claims: "
            f"{target.stage} costs {target.ratio:.3g} of three plain reads, above "
            f"{target.ratio_max:g}"
            for costs in self.claims
            for target in costs.targets
            if not target.met
        ]


@click.command()
@flag("--only", type=click.Choice(_PARTS), help="Measure one part of it.")
@flag("--sizes", type=_Sizes(), default=_SIZES, help="Bytes of history, separated by commas.")
@flag(
    "--claims",
    type=click.IntRange(2),
    default=10_000,
    help="Claims of the owner, to compare with one.",
)
@flag(
    "--rounds",
    type=click.IntRange(1),
    default=100,
    help="Measurements of each stage of a turn, of the hop, of a delta and of the start; "
    f"{_CLAIM_ROUNDS} times as many of a claim's.",
)
@flag(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True, writable=True),
    default=Path("/var/tmp"),  # noqa: S108 - a folder of our own is made in it
    help="On the disk that is measured; its path is short, because sockets lie below it.",
)
@json_flag()
def bench(
    *, only: str | None, sizes: list[int], claims: int, rounds: int, work_dir: Path, as_json: bool
) -> None:
    """Measure the stages of a turn by size of history, claims, the hop, deltas, the shim's start.

    The application only reads the body and answers, so no model is measured. Claims are measured on
    disk and on tmpfs. Exit code 1: the owner's re-check of a claim missed its target, or something
    did not happen as it should and there are no results; 4: no store can be on that disk.
    """
    # That cleaners may sweep the folder does not concern one that lives for minutes.
    logging.getLogger("rollout_router.claims.layout").setLevel(logging.ERROR)
    wanted = {only} if only else set(_PARTS)
    places, notes = (
        choose_places(work_dir.absolute(), host=Host.here()) if "claims" in wanted else ([], [])
    )
    try:
        results = _Results(
            rounds=rounds,
            sizes=_turns(work_dir, sizes, rounds) if "turns" in wanted else [],
            claims=run_claims(places, counts=[1, claims], rounds=rounds * _CLAIM_ROUNDS, say=_say),
            hop=run_hop(work_dir.absolute(), rounds=rounds, say=_say)
            if "hop" in wanted
            else HopCosts(stages=[], cpu=[], notes=[]),
            deltas=run_deltas(rounds=rounds, say=_say) if "deltas" in wanted else [],
            start=run_start(work_dir.absolute(), rounds=rounds, say=_say)
            if "start" in wanted
            else [],
            notes=notes,
        )
    except (BenchFailed, ServiceFailed) as error:
        _say(str(error))
        sys.exit(ExitCode.FAILED)
    except ClaimsError as error:
        _say(f"the claims of the benchmark cannot be kept: {error}")
        sys.exit(ExitCode.REFUSED)
    if as_json:
        click.echo(json.dumps(_document(results)))
    else:
        _print(results)
    missed = results.missed()
    for line in missed:
        _say(line)
    sys.exit(ExitCode.FAILED if missed else ExitCode.FINE)


def _turns(work_dir: Path, sizes: list[int], rounds: int) -> list[Sized]:
    folder = Path(tempfile.mkdtemp(prefix="rr-", dir=work_dir.absolute()))
    try:
        return run_bench(folder, sizes=sizes, rounds=rounds, say=_say)
    finally:
        shutil.rmtree(folder)


def _machine() -> dict[str, Any]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rollout_router": __version__,
    }


def _document(results: _Results) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": _machine(),
        "app": APP,
        "rounds": results.rounds,
        "warm_up_rounds": WARM_UPS,
        "sizes": [asdict(sized) for sized in results.sizes],
        "claims": {
            "rounds": results.rounds * _CLAIM_ROUNDS,
            "warm_up_rounds": CLAIM_WARM_UPS,
            "notes": results.notes,
            "stores": [asdict(costs) for costs in results.claims],
        },
        "hop": {
            "rounds": results.rounds,
            "warm_up_rounds": HOP_WARM_UPS,
            **asdict(results.hop),
        },
        "deltas": {
            "rounds": results.rounds,
            "warm_up_rounds": DELTA_WARM_UPS,
            "forms": [asdict(costs) for costs in results.deltas],
        },
        "start": {
            "rounds": results.rounds,
            "warm_up_rounds": START_WARM_UPS,
            "stages": [asdict(stage) for stage in results.start],
        },
    }


def _print(results: _Results) -> None:
    console = Console()
    for sized in results.sizes:
        title = (
            f"{sized.history_bytes:,} bytes of history: body {sized.body_bytes:,}, "
            f"frame {sized.frame_bytes:,}; {results.rounds} rounds"
        )
        console.print(_table(title, sized.stages, unit="ms", per_ms=1, digits=3))
    for costs in results.claims:
        title = (
            f"{costs.claims:,} claims in {costs.directory} ({costs.file_system}); "
            f"{results.rounds * _CLAIM_ROUNDS:,} rounds"
        )
        console.print(_table(title, costs.stages, unit="µs", per_ms=1000, digits=1))
        for target in costs.targets:
            console.print(
                f"target {'met' if target.met else 'MISSED'}: {target.stage} costs "
                f"{target.ratio:.3g} of three plain reads; at most {target.ratio_max:g}"
            )
    for what, stages in (("time", results.hop.stages), ("CPU", results.hop.cpu)):
        if stages:
            title = f"the hop: {what} of a call; {results.rounds} rounds"
            console.print(_table(title, stages, unit="µs", per_ms=1000, digits=1))
    if results.deltas:
        console.print(_deltas_table(results.deltas, results.rounds))
    if results.start:
        title = f"the start of the shim; {results.rounds} rounds"
        console.print(_table(title, results.start, unit="ms", per_ms=1, digits=1))
    for note in [*results.notes, *results.hop.notes]:
        console.print(note, markup=False)
    machine = ", ".join(f"{name} {value}" for name, value in _machine().items())
    console.print(f"{machine}; application {APP}", markup=False)


def _table(title: str, stages: list[Measured], *, unit: str, per_ms: int, digits: int) -> Table:
    table = Table(title=title)
    table.add_column("stage")
    for name in (f"median {unit}", f"p99 {unit}", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("to")
    for row in stages:
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        times = (f"{per_ms * time_ms:.{digits}f}" for time_ms in (row.median_ms, row.p99_ms))
        table.add_row(row.stage, *times, ratio, row.reference or "")
    return table


def _deltas_table(deltas: list[DeltaCosts], rounds: int) -> Table:
    table = Table(title=f"deltas: bytes of a run, time of a call; {rounds} rounds")
    table.add_column("form")
    for name in ("bytes in full", "times fewer", "deflated", "time of sha256", "deflated"):
        table.add_column(name, justify="right")
    for costs in deltas:
        fewer = (costs.bytes_full / sent for sent in (costs.bytes_plain, costs.bytes_deflated))
        ratios = (stage.ratio for stage in costs.stages if stage.ratio is not None)
        numbers = (*(f"{one:.1f}" for one in fewer), *(f"{one:.3g}" for one in ratios))
        table.add_row(costs.form, f"{costs.bytes_full:,}", *numbers)
    return table


def _say(line: str) -> None:
    click.echo(f"rollout-router: {line}", err=True)
