# SPDX-License-Identifier: Apache-2.0
"""Groups of commands, each imported when it is called.

``claims list`` needs neither a web framework nor what frees and repairs, and starts without them.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is asked for.

    Args:
        table: where each command is, ``module:attribute`` below this package, and what it does.
            The second is said by the group's help, which imports none of them.
        settings: click's.
    """

    def __init__(self, *, table: Mapping[str, tuple[str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.table: Final = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Click's signature."""
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Click's signature."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(f"rollout_router.cli.{module}"), attribute)
        command: click.Command = found
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Click's signature."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in sorted(self.table.items())])
