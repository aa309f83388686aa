# SPDX-License-Identifier: Apache-2.0
"""``rollout-router bench``: the stages of a turn, side by side, as ratios within one run."""

import json
import logging
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from rollout_router import __version__
from rollout_router.bench.bodies import TURN_BYTES
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.run import APP, WARM_UPS, Sized, run_bench
from rollout_router.claims import ClaimsError
from rollout_router.cli.flags import ExitCode, flag, json_flag
from rollout_router.processes import ServiceFailed

__all__ = ["bench"]

SCHEMA: Final = 1
_SIZES: Final = "100000,500000,1000000,2000000"


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


@click.command()
@flag("--sizes", type=_Sizes(), default=_SIZES, help="Bytes of history, separated by commas.")
@flag("--rounds", type=click.IntRange(1), default=100, help="Measurements of each stage.")
@flag(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("/var/tmp"),  # noqa: S108 - a folder of our own is made in it
    help="On the disk that is measured; its path is short, because sockets lie below it.",
)
@json_flag()
def bench(*, sizes: list[int], rounds: int, work_dir: Path, as_json: bool) -> None:
    """Measure the stages of a turn at several sizes of history.

    The application only reads the body and answers, so no model is measured. Exit code 1: something
    did not happen as it should, and there are no results; 4: no store can be on that disk.
    """
    # That cleaners may sweep the folder does not concern one that lives for minutes.
    logging.getLogger("rollout_router.claims.layout").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="rr-", dir=work_dir.absolute()))
    try:
        results = run_bench(folder, sizes=sizes, rounds=rounds, say=_say)
    except (BenchFailed, ServiceFailed) as error:
        _say(str(error))
        sys.exit(ExitCode.FAILED)
    except ClaimsError as error:
        _say(f"{error}; name another disk with --work-dir")
        sys.exit(ExitCode.REFUSED)
    finally:
        shutil.rmtree(folder)
    if as_json:
        click.echo(json.dumps(_document(results, rounds)))
    else:
        _print(results, rounds)


def _machine() -> dict[str, Any]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rollout_router": __version__,
    }


def _document(results: list[Sized], rounds: int) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "machine": _machine(),
        "app": APP,
        "rounds": rounds,
        "warm_up_rounds": WARM_UPS,
        "sizes": [asdict(sized) for sized in results],
    }


def _print(results: list[Sized], rounds: int) -> None:
    console = Console()
    for sized in results:
        title = (
            f"{sized.history_bytes:,} bytes of history: body {sized.body_bytes:,}, "
            f"frame {sized.frame_bytes:,}; {rounds} rounds"
        )
        table = Table(title=title)
        table.add_column("stage")
        for name in ("median ms", "p99 ms", "ratio"):
            table.add_column(name, justify="right")
        table.add_column("to")
        for row in sized.stages:
            ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
            times = (f"{row.median_ms:.3f}", f"{row.p99_ms:.3f}")
            table.add_row(row.stage, *times, ratio, row.reference or "")
        console.print(table)
    machine = ", ".join(f"{name} {value}" for name, value in _machine().items())
    console.print(f"{machine}; application {APP}", markup=False)


def _say(line: str) -> None:
    click.echo(f"rollout-router: {line}", err=True)
