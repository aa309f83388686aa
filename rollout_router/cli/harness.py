# SPDX-License-Identifier: Apache-2.0
"""``rollout-router harness``: the files, environment and commands that point one at a shim."""

import json
import shlex
from pathlib import Path, PurePosixPath
from typing import Any, Final

import click

from rollout_router.cli.flags import ExitCode, ended_by, flag, json_flag
from rollout_router.cli.terminal import printable, printable_lines
from rollout_router.harness import HARNESSES
from rollout_router.harness.install import installed_path
from rollout_router.harness.opencode import OpenCode
from rollout_router.harness.port import Dialect
from rollout_router.harness.setup import (
    SHIM_PORT,
    Pointed,
    different,
    point,
    shim_command,
    target,
    write,
)

__all__ = ["harness"]

SCHEMA: Final = 1


@click.command()
@click.argument(
    "name", type=click.Choice([one.name for one in HARNESSES.values() if not one.in_process])
)
@flag("--rollout", metavar="ID", required=True, help="Whose calls they are.")
@flag("--gateway", metavar="URL", required=True, help="Where the shim sends them; without /v1.")
@flag(
    "--dialect",
    type=click.Choice([one.value for one in Dialect]),
    help="Default: the harness's own choice.",
)
@flag("--model", default="scripted", help="The model's name.")
@flag("--api-key", default="unused", show_default=False, help="The harness's, or a rollout's, key.")
@flag(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="The harness's home; files lie below it. Default: yours, but not for --write.",
)
@flag("--shim-port", type=click.IntRange(1, 65_535), help=f"Its port. [default: {SHIM_PORT}]")
@flag("--shim-url", metavar="URL", help="A shim that runs already, instead of --shim-port.")
@flag(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cache", "harness"),
    help="Where `conformance install` puts harnesses.",
)
@flag("--prompt", default="PROMPT", help="What the harness is told.")
@flag(
    "--system-prompt",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="OpenCode's, in place of its own: this file's text arrives as it is written.",
)
@flag("--write", "writes", is_flag=True, help="Write the files, too.")
@flag("--yes", is_flag=True, help="Write over files with other content.")
@json_flag()
def harness(
    *,
    name: str,
    rollout: str,
    gateway: str,
    dialect: str | None,
    model: str,
    api_key: str,
    home: Path | None,
    shim_port: int | None,
    shim_url: str | None,
    cache: Path,
    prompt: str,
    system_prompt: Path | None,
    writes: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show how to point a harness at a shim: files, environment, and two commands.

    Exit code 4: --write found other content, and wrote nothing.
    """
    if shim_url is not None and shim_port is not None:
        raise click.UsageError("--shim-url and --shim-port exclude each other")
    if writes and home is None:
        raise click.UsageError("--write needs --home: whose home is it?")
    folder = (home or Path.home()).absolute()
    if system_prompt is not None and name != OpenCode.name:
        raise click.UsageError(f"--system-prompt is for {OpenCode.name}, not for {name}")
    one, port = HARNESSES[name], shim_port or SHIM_PORT
    with ended_by(ValueError, ExitCode.USAGE):
        if system_prompt is not None:
            one = OpenCode(system_prompt.read_text(encoding="utf-8"))
        shim = shim_command(gateway, port)
        aim = target(
            one,
            rollout_id=rollout,
            shim_url=shim_url or f"http://127.0.0.1:{port}",
            model=model,
            dialect=None if dialect is None else Dialect(dialect),
            api_key=api_key,
        )
        pointed = point(
            one,
            aim,
            home=PurePosixPath(folder),
            installed=installed_path(one, cache),
            prompt=prompt,
            shim=shim if shim_url is None else (),
        )
    if writes:
        _write(folder, pointed, yes=yes)
    if as_json:
        click.echo(json.dumps(_document(name, rollout, pointed)))
    else:
        _print(name, folder, pointed)


def _write(home: Path, pointed: Pointed, *, yes: bool) -> None:
    files = pointed.setup.files
    with ended_by(OSError, ExitCode.FAILED):
        others = [] if yes else different(home, files)
        if others:
            for path in others:
                click.echo(f"rollout-router: {printable(path)} has other content", err=True)
            click.echo("rollout-router: nothing was written; --yes writes over it", err=True)
            raise click.exceptions.Exit(ExitCode.REFUSED)
        for path in write(home, files):
            click.echo(f"rollout-router: wrote {printable(path)}", err=True)


def _document(name: str, rollout_id: str, pointed: Pointed) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "harness": name,
        "dialect": pointed.target.dialect.value,
        "rollout_id": rollout_id,
        "base_url": pointed.target.base_url,
        "files": {str(path): text for path, text in pointed.setup.files.items()},
        "environment": dict(pointed.setup.environment),
        "shim": list(pointed.shim),
        "command": list(pointed.command),
    }


def _print(name: str, home: Path, pointed: Pointed) -> None:
    """A script for a shell, all in parentheses: it leaves nothing of itself in one that is used."""
    spoken = pointed.target.dialect.value
    lines = [
        "(set -e",
        *(_SHIM.format(shlex.join(pointed.shim)).splitlines() if pointed.shim else ()),
        *("", "# The files, for their owner alone.", "write() {", *_WRITE.splitlines(), "}"),
        *(
            f"write {shlex.quote(str(home / path))} {shlex.quote(text)}"
            for path, text in pointed.setup.files.items()
        ),
        *("", "# The environment, beside PATH."),
        *(f"export {key}={shlex.quote(value)}" for key, value in pointed.setup.environment.items()),
        "",
        f"# {name}, calling {pointed.target.base_url} in the dialect {spoken}.",
        f"{shlex.join(pointed.command)} </dev/null",
        ")",
    ]
    script = "\n".join(lines)
    if printable_lines(script) != script:
        raise click.UsageError("what is to be printed holds what a terminal acts on: use --json")
    click.echo(script)


_SHIM: Final = """\
# The shim, a file of `rollout-router shim build shim` beside the harness; it ends with this.
rm -f shim.ready && mkfifo shim.ready
{} --parent-pid $$ >shim.ready &
trap "rm -f shim.ready; kill $! 2>/dev/null; wait $! || :" EXIT
read -r ready <shim.ready || exit 1"""
_WRITE: Final = """\
  if [ -e "$1" ]; then
    printf %s "$2" | cmp -s - "$1" || { echo "$1 has other content" >&2; exit 1; }
  else
    (umask 077 && mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1")
  fi"""
