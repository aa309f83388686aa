# SPDX-License-Identifier: Apache-2.0
"""``rollout-router``: the group of all commands, each imported when it is called."""

import importlib
from collections.abc import Mapping
from typing import Final

import click

from rollout_router import __version__

__all__ = ["main"]

_COMMANDS: Final[Mapping[str, str]] = {
    "admission": "Close, open and see the gate of a service.",
    "bench": "Measure the stages of a turn, side by side.",
    "claims": "Inspect, free and verify the claims of a store.",
    "demo": "Play rollouts through kills of their owners.",
    "conformance": "Run a real harness with deltas and in full, and compare.",
    "harness": "Point an agent harness at a shim.",
    "keys": "Make the secret of the rollout keys, and keys.",
    "serve": "Run the gateway.",
    "sessions": "Inspect the sessions of a store.",
    "shim": "Run the sandbox side, or write it as one file.",
    "workers": "Inspect the workers of a store.",
}


class _Commands(click.Group):
    """A group that imports a command's module when the command is asked for.

    ``claims list`` needs neither a web framework nor an event loop, and starts without them.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"rollout_router.cli.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rollout-router")
def main() -> None:
    """Make a gym server with several worker processes behave as one."""
