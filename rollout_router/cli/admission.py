# SPDX-License-Identifier: Apache-2.0
"""``rollout-router admission``: the gate of a service.

A closed gate refuses with 503 ``admission_closed`` before anything happened (R6). Running workers
read the gate about four times a second, and workers that start while it is closed start closed.
"""

import json
from pathlib import Path

import click

from rollout_router.claims import (
    WHY_LENGTH_MAX,
    ClaimsError,
    FileClaimStore,
    Gate,
    read_gate,
    write_gate,
)
from rollout_router.cli.flags import SCHEMA, ExitCode, ended_by, flag, json_flag, state_dir_flag
from rollout_router.cli.terminal import printable

__all__ = ["admission"]


@click.group()
def admission() -> None:
    """Close, open and see the gate of a service."""


@admission.command("open")
@state_dir_flag()
def open_gate(*, state_dir: Path) -> None:
    """Let requests in again."""
    _write(state_dir, Gate(open=True, by="operator", why=""))


@admission.command("close")
@flag(
    "--why",
    required=True,
    help=f"Said to every caller that is refused; at most {WHY_LENGTH_MAX} characters.",
)
@state_dir_flag()
def close_gate(*, why: str, state_dir: Path) -> None:
    """Refuse requests before anything happens; requests in flight finish."""
    if len(why) > WHY_LENGTH_MAX:
        raise click.UsageError(f"--why has at most {WHY_LENGTH_MAX} characters, not {len(why)}")
    _write(state_dir, Gate(open=False, by="operator", why=why))


@admission.command("status")
@state_dir_flag()
@json_flag()
def gate_status(*, state_dir: Path, as_json: bool) -> None:
    """Say whether the gate is open, and who closed it, and why."""
    with ended_by(ClaimsError, ExitCode.REFUSED):
        FileClaimStore.inspect(state_dir)
    gate = read_gate(state_dir)
    if as_json:
        state = {"open": gate.open, "by": gate.by, "why": gate.why}
        click.echo(json.dumps({"schema": SCHEMA, **state}))
    else:
        closed = f"closed by {printable(gate.by)}: {printable(gate.why)}"
        click.echo("open" if gate.open else closed)


def _write(state_dir: Path, gate: Gate) -> None:
    with ended_by(ClaimsError, ExitCode.REFUSED):
        FileClaimStore.inspect(state_dir)
    with ended_by(ClaimsError, ExitCode.FAILED):
        write_gate(state_dir, gate)
    click.echo("admission is open" if gate.open else f"admission is closed: {printable(gate.why)}")
