# SPDX-License-Identifier: Apache-2.0
"""Tables of results for people: as wide as a terminal is, elsewhere wide enough for a file."""

import re
import sys
from collections.abc import Iterable
from typing import Final

from rich.console import Console
from rich.table import Table as Shown

from rollout_router.cli.terminal import printable
from rollout_router.tables import Table

__all__ = ["print_tables"]

_WIDTH: Final = 200
_NUMBER: Final = re.compile(r"[\d.,e+-]*")


def print_tables(tables: Iterable[Table], lines: Iterable[str]) -> None:
    """Print *tables*, numbers to the right, and *lines* behind them."""
    console = Console(markup=False, width=None if sys.stdout.isatty() else _WIDTH)
    for table in tables:
        shown = Shown(title=table.title)
        for place, column in enumerate(table.columns):
            numbers = all(_NUMBER.fullmatch(row[place]) for row in table.rows)
            shown.add_column(column, justify="right" if numbers else "left")
        for row in table.rows:
            shown.add_row(*map(printable, row))
        console.print(shown)
    for line in lines:
        console.print(printable(line))
