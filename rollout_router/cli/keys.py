# SPDX-License-Identifier: Apache-2.0
"""``rollout-router keys``: the secret of the rollout keys, and the keys made with it."""

import json
from pathlib import Path

import click

from rollout_router.cli.flags import SCHEMA, ExitCode, ended_by, flag, json_flag
from rollout_router.cli.terminal import printable
from rollout_router.routing.key_file import SecretRefused, new_secret, read_secret
from rollout_router.routing.keys import mint_key

__all__ = ["keys"]

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def keys() -> None:
    """Make a secret, and the keys of rollouts."""


@keys.command("new")
@click.argument("file", type=_FILE)
def new_key_file(*, file: Path) -> None:
    """Write a new secret to FILE, for --rollout-keys. What stands there is never overwritten."""
    with ended_by(SecretRefused, ExitCode.REFUSED), ended_by(OSError, ExitCode.FAILED):
        new_secret(file)
    click.echo(f"{printable(file)} holds a new secret: only its owner can read it", err=True)


@keys.command("mint")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@flag("--rollout-keys", type=_FILE, required=True, help="File with the secret, as for serve.")
@json_flag()
def mint(*, ids: tuple[str, ...], rollout_keys: Path, as_json: bool) -> None:
    """Print the key of each rollout, one a line, in the order of the ids.

    Exit code 4 where other users can read the secret.
    """
    with (
        ended_by(SecretRefused, ExitCode.REFUSED),
        ended_by(OSError, ExitCode.USAGE),
        ended_by(ValueError, ExitCode.USAGE),
    ):
        secret = read_secret(rollout_keys)
        minted = [{"rollout_id": one, "key": mint_key(secret, one)} for one in ids]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "keys": minted}))
    else:
        click.echo("\n".join(one["key"] for one in minted))
