# SPDX-License-Identifier: Apache-2.0
"""``rollout-router shim``: the sandbox side, and the single file that goes into a sandbox."""

import sys
from pathlib import Path

import click

from rollout_router.transport.bundle import build
from rollout_router.transport.sandbox.start import main as run_shim

__all__ = ["shim"]


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def shim(arguments: tuple[str, ...]) -> None:
    """Run the shim, or `shim build FILE` to write it as one file for a sandbox."""
    if arguments[:1] == ("build",):
        if len(arguments) != 2 or arguments[1].startswith("-"):  # noqa: PLR2004 - build and its FILE
            raise click.UsageError("usage: rollout-router shim build FILE")
        try:
            build(Path(arguments[1]))
        except OSError as error:
            raise click.ClickException(f"{arguments[1]} was not written: {error}") from error
        click.echo(f"rollout-router: wrote {arguments[1]}", err=True)
        return
    sys.exit(run_shim(list(arguments)))
