# SPDX-License-Identifier: Apache-2.0
"""``rollout-router top``: what a service does, in a terminal, as it happens.

It asks the admin address and changes nothing. Where stdin or stdout is no terminal it prints one
frame. However it ends, also by a signal or an exception, the terminal is as it was.
"""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console, ConsoleDimensions
from rich.live import Live

from rollout_router.cli.flags import (
    SCHEMA,
    ExitCode,
    Seconds,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.interrupts import unwound_by_signals
from rollout_router.cli.top_frame import Documents, frame, rows_that_fit
from rollout_router.cli.top_keyboard import Keyboard
from rollout_router.cli.top_source import AddressSilent, NoAddress, Source
from rollout_router.cli.top_view import ROWS_MAX, SORTS, View, asked, step

__all__ = ["top"]

_PIPED_COLUMNS: Final = 250
_PIPED_ROWS: Final = 50
_NAMED_SORTS: Final = {name: (sort, order) for name, sort, order in SORTS.values()}


@click.command()
@flag("--admin-url", help="The admin address; by default the one of the store.")
@flag(
    "--interval", "interval_s", default=1.0, type=Seconds(0.1, 3600), help="Seconds between frames."
)
@flag("--sort", default="turns", type=click.Choice(list(_NAMED_SORTS)), help="At first.")
@flag("--filter", "q", default="", help="Only rollouts whose ids contain this.")
@flag("--worker", default="", help="Only rollouts of the worker whose id begins so.")
@flag(
    "--rows",
    type=click.IntRange(1, ROWS_MAX),
    help="Rollouts in a frame that is printed; by default what fits, and 50 where it is piped.",
)
@flag("--once", is_flag=True, help="Print one frame and end, as where there is no terminal.")
@state_dir_flag()
@json_flag()
def top(
    *,
    admin_url: str | None,
    interval_s: float,
    sort: str,
    q: str,
    worker: str,
    rows: int | None,
    once: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show workers and rollouts as they are now, and go on showing them.

    Exit code 1 where there is no admin address, or it does not answer.
    """
    field, order = _NAMED_SORTS[sort]
    view = View(sort=field, order=order, q=q, worker=worker)
    with ended_by(NoAddress, ExitCode.FAILED), ended_by(AddressSilent, ExitCode.FAILED):
        source = Source(state_dir, admin_url)
        if as_json:
            seen = _look(source, view, rows=rows or _PIPED_ROWS)
            document = {"schema": SCHEMA, "overview": seen.overview, "rollouts": seen.rollouts}
            click.echo(json.dumps(document))
        elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _print(source, view, rows)
        else:
            _watch(source, view, interval_s=interval_s)


def _print(source: Source, view: View, rows: int | None) -> None:
    terminal = sys.stdout.isatty()
    console = _console(width=None if terminal else _PIPED_COLUMNS)
    overview = source.overview()
    workers = len(overview["workers"])
    if rows is None:
        rows = rows_that_fit(console.height, workers) if terminal else _PIPED_ROWS
    seen = _look(source, view, rows=rows)
    console.print(frame(seen, view, height=console.height if terminal else 3 * workers + 6))


def _watch(source: Source, view: View, *, interval_s: float) -> None:
    console = _console()
    height = _fitted(console)
    seen, seen_at = _look(source, view, height=height), time.monotonic()
    with (
        unwound_by_signals(),
        Keyboard(sys.stdin.fileno()) as keyboard,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(frame(seen, view, height=height), refresh=True)
            keys = keyboard.wait(seen_at + interval_s - time.monotonic())
            before = view
            for key in keys:
                rows = rows_that_fit(height, len(seen.overview["workers"]))
                after = step(view, key, rows=rows, matching=seen.rollouts["matching"])
                if after is None:
                    return
                view = after
            typing = replace(view, prompt="", typed="") == replace(before, prompt="", typed="")
            due = time.monotonic() - seen_at >= interval_s
            before_height, height = height, _fitted(console)
            if due or not typing or height != before_height:
                seen, seen_at = _look_again(source, view, seen, height), time.monotonic()


def _look_again(source: Source, view: View, before: Documents, height: int) -> Documents:
    """What is so now; or as it was, with the reason, where the address does not answer."""
    try:
        return _look(source, view, height=height)
    except (AddressSilent, NoAddress) as error:
        return replace(before, old=str(error))


def _look(source: Source, view: View, *, rows: int | None = None, height: int = 0) -> Documents:
    """Ask for what is shown, by default as many rows as fit."""
    overview = source.overview()
    workers = overview["workers"]
    rows = rows_that_fit(height, len(workers)) if rows is None else rows
    return Documents(overview=overview, rollouts=source.rollouts(asked(view, workers, rows=rows)))


def _fitted(console: Console) -> int:
    """Fit it to the terminal as it is now, whatever COLUMNS and LINES say; its lines."""
    size = os.get_terminal_size(sys.stdout.fileno())
    if size.columns and size.lines:  # 0 where a terminal does not know
        console.size = ConsoleDimensions(*size)
    return console.height


def _console(width: int | None = None) -> Console:
    return Console(markup=False, highlight=False, emoji=False, width=width)
