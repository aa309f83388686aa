# SPDX-License-Identifier: Apache-2.0
"""How the commands of a store begin and speak: tables for people, what is unreadable, a bar.

Names of files come from whoever could write into the store: none reaches a terminal unescaped. What
draws is imported where there is something to draw: it takes longer than reading a small store.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import click

from rollout_router.claims import ClaimReader, ClaimsError
from rollout_router.cli.flags import ExitCode, ended_by
from rollout_router.cli.terminal import printable

__all__ = ["SHOWN_AFTER_S", "name_each", "open_to_read", "print_table", "progress"]

SHOWN_AFTER_S: Final = 1.0
"""What ends sooner needs no bar."""

_STRIDE: Final = 256
"""Steps between two looks at the clock: some 20 ms of reading."""

_PIPED_COLUMNS: Final = 500
"""What is piped is not folded: an id has at most 200 characters."""


def open_to_read(state_dir: Path) -> ClaimReader:
    """The store, to read; exits with a message where there is none or it is refused."""
    with ended_by(ClaimsError, ExitCode.REFUSED):
        return ClaimReader.inspect(state_dir)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows* under *columns*; without a header where no column has a name.

    Of no rows there is nothing to print.
    """
    shown = [tuple(map(printable, row)) for row in rows]
    if not shown:
        return
    from rich.console import Console  # noqa: PLC0415 - as this module says
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(show_header=any(columns))
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in shown:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else _PIPED_COLUMNS
    Console(markup=False, highlight=False, emoji=False, width=width).print(table)


def name_each(unreadable: Iterable[Mapping[str, Any]], *, what: str = "unreadable") -> None:
    """Name each on stderr, by the path and the code that a document says."""
    for bad in unreadable:
        said = f"{printable(bad['path'])} ({printable(bad['code'])})"
        click.echo(f"rollout-router: {what}: {said}", err=True)


@contextmanager
def progress(
    what: str,
    count: Callable[[], int],
    *,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[], bool]]:
    """A bar on stderr, where that is a terminal, for what takes longer than about a second.

    Args:
        what: is done.
        count: how often the caller will step, about; asked where there is a bar.
        stream: instead of stderr.
        clock: in seconds.

    Yields:
        Call it at each step; it says True, as a sweep wants to hear.
    """
    stream = stream or sys.stderr
    if not stream.isatty():
        yield lambda: True
        return
    from rich.console import Console  # noqa: PLC0415 - as this module says
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
    task = bar.add_task(what, total=count())
    begun, done, shown = clock(), 0, False

    def step() -> bool:
        nonlocal done, shown
        done += 1
        if done % _STRIDE == 0:
            bar.update(task, completed=done)
            if not shown and clock() - begun >= SHOWN_AFTER_S:
                shown = True
                bar.start()
        return True

    try:
        yield step
    finally:
        if shown:
            bar.stop()
