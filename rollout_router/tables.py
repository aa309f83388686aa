# SPDX-License-Identifier: Apache-2.0
"""Tables of text, for a terminal and for a page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Table", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text in rows and columns.

    Raises:
        ValueError: a row has another number of cells than there are columns.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"{self.title}: not every row has {len(self.columns)} cells")


def markdown(table: Table) -> str:
    """*table* under its title, as a section of a page of Markdown."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    return f"## {table.title}\n\n{text}\n"
