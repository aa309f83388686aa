# SPDX-License-Identifier: Apache-2.0
"""``rollout-router conformance``: a real harness, twice: with deltas, and in full.

Both runs lose their owner between two calls. Whatever model or harness saw differently is printed.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from rich.console import Console
from rich.table import Table

from rollout_router.cli.flags import ExitCode, flag, json_flag
from rollout_router.cli.terminal import printable, printable_lines
from rollout_router.harness.compare import Run, differences, faults
from rollout_router.harness.install import CannotInstall, install
from rollout_router.harness.pi import Pi
from rollout_router.harness.port import Harness
from rollout_router.harness.run import EXPECTED, RunFailed, run
from rollout_router.processes import ServiceFailed

__all__ = ["conformance"]

SCHEMA: Final = 1
_HARNESS: Final[Harness] = Pi()

_cache_flag = flag(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cache", "harness"),
    help="Where harnesses are installed.",
)


@click.group(invoke_without_command=True)
@_cache_flag
@json_flag()
@click.pass_context
def conformance(ctx: click.Context, *, cache: Path, as_json: bool) -> None:
    """Run Pi with deltas and in full, and compare what it and the model saw.

    Exit codes: 0 no difference; 1 a difference, or a run that failed; 4 Pi cannot be installed.
    """
    if ctx.invoked_subcommand is not None:
        return
    installed = _install(cache)
    # Not below the current directory: the paths of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="rr-", dir="/var/tmp"))
    try:
        runs = [_run(installed, folder, deltas=deltas) for deltas in (True, False)]
    except (RunFailed, ServiceFailed) as error:
        _say(f"what the runs left is in {folder}")
        _end(f"{error}", ExitCode.FAILED)
    found = [fault for each in runs for fault in faults(each, EXPECTED)] + differences(*runs)
    if as_json:
        click.echo(json.dumps(_document(runs, found)))
    else:
        _print(runs, found)
    if found:
        _say(f"what the runs left is in {folder}")
        sys.exit(ExitCode.FAILED)
    shutil.rmtree(folder)


@conformance.command("install")
@_cache_flag
def install_only(*, cache: Path) -> None:
    """Install Pi, and run nothing. Exit code 4: it cannot be installed."""
    click.echo(_install(cache))


def _install(cache: Path) -> Path:
    try:
        return install(_HARNESS, cache, say=_say)
    except CannotInstall as error:
        _end(str(error), ExitCode.REFUSED)


def _run(installed: Path, folder: Path, *, deltas: bool) -> Run:
    own, work = folder / ("deltas" if deltas else "full"), folder / "work"
    own.mkdir()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    _say(f"running {_HARNESS.name} {'with deltas' if deltas else 'in full'}")
    return run(_HARNESS, installed, own, work=work, deltas=deltas)


def _document(runs: list[Run], found: list[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "harness": _HARNESS.name,
        "packages": dict(_HARNESS.packages),
        "runs": [{"name": each.name, **asdict(each)} for each in runs],
        "differences": found,
    }


def _print(runs: list[Run], found: list[str]) -> None:
    table = Table("", *(each.name for each in runs), title=f"{_HARNESS.name} {_versions()}")
    columns = [_rows(each) for each in runs]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console = Console(markup=False)
    console.print(table)
    for line in found:
        console.print(f"different: {printable(line)}")
    if not found:
        console.print("no difference: the same bytes, tool calls and answer")


def _rows(each: Run) -> dict[str, str]:
    owners = each.transcript.owners
    return {
        "calls": str(each.calls),
        "bytes written by the harness": f"{each.bytes_full:,}",
        "bytes sent to the gateway": f"{each.bytes_sent:,}",
        "resyncs": str(each.resyncs),
        "exit code": str(each.exit_code),
        "owner before the kill": _owner(owners[0]) if owners else "-",
        "owner after it": _owner(owners[-1]) if len(owners) > 1 else "-",
        "tool calls": str(len(each.transcript.tool_calls)),
        "final answer": printable(each.told.answer),
    }


def _owner(owner: Any) -> str:
    return f"{owner.worker_id}, claim epoch {owner.claim_epoch}, {owner.calls} calls"


def _versions() -> str:
    return ", ".join(f"{name} {version}" for name, version in _HARNESS.packages.items())


def _say(line: str) -> None:
    click.echo(f"rollout-router: {printable_lines(line)}", err=True)


def _end(line: str, code: ExitCode) -> NoReturn:
    _say(line)
    sys.exit(code)
