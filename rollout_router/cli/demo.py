# SPDX-License-Identifier: Apache-2.0
"""``rollout-router demo``: rollouts through kills of their owners, and the proof of it."""

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rollout_router.cli.flags import ExitCode, flag, json_flag
from rollout_router.cli.interrupts import unwound_by_signals
from rollout_router.cli.terminal import printable, printable_lines
from rollout_router.demo.conversation import Rollout, Unplayable, turns
from rollout_router.demo.generated import COUNT, generate
from rollout_router.demo.recorded import read_rollouts
from rollout_router.processes import ServiceFailed

if TYPE_CHECKING:
    from rollout_router.demo.attempt import Holder
    from rollout_router.demo.play import Performance, Played

__all__ = ["demo"]

PLAIN_LINES: Final = 10
"""So many lines tell of the progress where there is no terminal to draw a bar on."""

WIDTH: Final = 140
"""Columns that the table has where it is written to no terminal; 130 are needed."""


@click.command()
@flag(
    "--rollouts",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Play the recorded rollouts of this folder: *.jsonl, {rollout_id, items} a line.",
)
@flag(
    "--count",
    type=click.IntRange(1),
    help=f"How many invented rollouts to play.  [default: {COUNT}]",
)
@flag("--keep", is_flag=True, help="Leave state, captures and logs, and say where.")
@json_flag()
@unwound_by_signals()
def demo(*, rollouts: Path | None, count: int | None, keep: bool, as_json: bool) -> None:
    """Play rollouts through kills of their owners, and prove what arrived.

    Exit code 1: a rollout did not finish, or what was captured is not what was sent.
    """
    if rollouts is not None and count is not None:
        raise click.UsageError("--rollouts and --count exclude each other")
    if importlib.util.find_spec("openai") is None:
        _end("the demo needs the OpenAI SDK: pip install 'rollout-router[demo]'", ExitCode.USAGE)
    try:
        given = generate(count or COUNT) if rollouts is None else read_rollouts(rollouts)
    except (Unplayable, OSError) as error:
        _end(str(error), ExitCode.USAGE)
    try:
        with _folder(keep=keep) as folder:
            performance = _perform(given, folder)
    except (ServiceFailed, OSError) as error:
        _end(str(error), ExitCode.FAILED)
    sys.exit(_report(performance, kept=folder if keep else None, as_json=as_json))


def _perform(rollouts: Sequence[Rollout], folder: Path) -> "Performance":
    from rollout_router.demo.play import perform  # noqa: PLC0415 - needs the extra, checked above

    calls = sum(len(turns(rollout.items)) for rollout in rollouts)
    errors = Console(stderr=True)
    if not errors.is_terminal:
        return perform(rollouts, folder=folder, watch=_Lines(calls))
    columns = (TextColumn("calls"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors) as progress:
        return perform(rollouts, folder=folder, watch=_Bar(progress, calls))


class _Bar:
    """Progress on a terminal."""

    def __init__(self, progress: Progress, calls: int) -> None:
        self._progress = progress
        self._task = progress.add_task("calls", total=calls)

    def called(self) -> None:
        self._progress.advance(self._task)

    def say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False)


class _Lines:
    """Progress elsewhere: a line for each tenth of the calls."""

    def __init__(self, calls: int) -> None:
        self._left = iter(range(1, calls + 1))
        self._step = max(1, calls // PLAIN_LINES)
        self._calls = calls

    def called(self) -> None:
        number = next(self._left)  # atomic, as agents call from several threads
        if number % self._step == 0 or number == self._calls:
            self.say(f"{number} of {self._calls} calls")

    def say(self, line: str) -> None:
        _say(line)


@contextmanager
def _folder(*, keep: bool) -> Iterator[Path]:
    """A private folder below the current directory; /tmp would be swept."""
    parent = Path.cwd() / ".demo"
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield folder
    finally:
        if keep:
            _say(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
            if not any(parent.iterdir()):
                parent.rmdir()


def _report(performance: "Performance", *, kept: Path | None, as_json: bool) -> ExitCode:
    from rollout_router.demo.report import document, problems  # noqa: PLC0415 - as above

    found = problems(performance)
    if as_json:
        folder = None if kept is None else str(kept)
        click.echo(json.dumps(document(performance, folder=folder)))
    else:
        _print_table(performance)
        _print_proof(performance, found)
    for problem in found:
        _say(problem)
    return ExitCode.FAILED if found else ExitCode.FINE


def _print_table(performance: "Performance") -> None:
    from rollout_router.demo.report import saved_percent, total  # noqa: PLC0415 - as above

    table = Table(show_footer=True)
    sums = total(performance.rollouts)
    again = sum(rollout.again for rollout in performance.rollouts)
    calls = sum(rollout.calls for rollout in performance.rollouts)
    columns: tuple[tuple[str, str], ...] = (
        ("rollout", f"{len(performance.rollouts)} rollouts"),
        ("calls", f"{calls:,}"),
        ("again", f"{again:,}"),
        ("sent", f"{sums.bytes_sent:,}"),
        ("in full", f"{sums.bytes_full:,}"),
        ("saved", f"{saved_percent(sums):.1f} %"),
        ("resyncs", f"{sums.resyncs:,}"),
        ("before the kill", ""),
        ("after", ""),
    )
    for name, footer in columns:
        left = name in {"rollout", "before the kill", "after"}
        table.add_column(name, footer, justify="left" if left else "right", no_wrap=True)
    for rollout in performance.rollouts:
        table.add_row(*_cells(rollout))
    console = Console()
    if not console.is_terminal:  # nothing to fit into
        console.width = max(console.width, WIDTH)
    console.print(table)


def _cells(rollout: "Played") -> tuple[str, ...]:
    from rollout_router.demo.report import saved_percent  # noqa: PLC0415 - as above

    tally = rollout.tally
    return (
        printable(rollout.rollout_id),
        f"{rollout.calls:,}",
        f"{rollout.again:,}",
        f"{tally.bytes_sent:,}",
        f"{tally.bytes_full:,}",
        f"{saved_percent(tally):.1f} %",
        f"{tally.resyncs:,}",
        _owner(rollout.before),
        _owner(rollout.after),
    )


def _owner(holder: "Holder | None") -> str:
    """The head of the worker's id, which tells workers apart, and the claim epoch."""
    return "-" if holder is None else f"{holder.worker_id[:6]} @ {holder.claim_epoch}"


def _print_proof(performance: "Performance", found: Sequence[Any]) -> None:
    finished = sum(rollout.answered == rollout.calls for rollout in performance.rollouts)
    flying = sum(kill.in_flight > 0 for kill in performance.kills)
    click.echo(
        f"{finished} of {len(performance.rollouts)} rollouts finished in"
        f" {performance.wall_s:.1f} s; {len(performance.kills)} workers were killed, {flying} of"
        " them with calls in flight."
    )
    if not found:
        click.echo(
            "Proof: what the model server captured is byte for byte what the SDK sent, and each"
            " answer is in the record of the worker and the claim epoch that it names. No"
            " difference."
        )
    else:
        click.echo(f"The proof fails: {len(found)} differences or failures, each named below.")


def _say(line: str) -> None:
    click.echo(f"rollout-router: {printable_lines(line)}", err=True)


def _end(message: str, code: ExitCode) -> NoReturn:
    _say(message)
    sys.exit(code)
