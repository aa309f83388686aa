# SPDX-License-Identifier: Apache-2.0
"""``rollout-router admission``: the gate of a service.

A closed gate refuses with 503 ``admission_closed`` before anything happened (R6). ``close`` returns
once every live worker has read the gate; workers that start while it is closed start closed.
"""

import json
import sys
from pathlib import Path

import click

from rollout_router.claims import (
    WHY_LENGTH_MAX,
    ClaimReader,
    ClaimsError,
    StoreRefused,
)
from rollout_router.cli.admin_address import AdminAddress, admin_flags
from rollout_router.cli.flags import (
    ExitCode,
    Seconds,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable
from rollout_router.documents.admission import OPERATOR, admission_document, blockers_document
from rollout_router.operate import WAIT_S_MAX, close_admission, open_admission

__all__ = ["admission"]


@click.group()
def admission() -> None:
    """Close, open and see the gate of a service."""


@admission.command("open")
@admin_flags
@state_dir_flag()
def open_gate(*, admin: AdminAddress | None, state_dir: Path) -> None:
    """Let requests in again."""
    if admin is not None:
        admin.post("/api/admission/open", {})
    else:
        with ended_by(ClaimsError, ExitCode.FAILED), ended_by(StoreRefused, ExitCode.REFUSED):
            open_admission(state_dir, by=OPERATOR)
    click.echo("admission is open")


@admission.command("close")
@flag(
    "--why",
    required=True,
    help=f"Said to every caller that is refused; at most {WHY_LENGTH_MAX} characters.",
)
@flag(
    "--wait",
    "wait_s",
    default=0.0,
    type=Seconds(0, WAIT_S_MAX),
    help="Seconds that calls in flight may take to end.",
)
@admin_flags
@state_dir_flag()
@json_flag()
def close_gate(
    *, why: str, wait_s: float, admin: AdminAddress | None, state_dir: Path, as_json: bool
) -> None:
    """Refuse requests before anything happens; requests in flight finish.

    Exit code 1 where a call is still in flight at the end, or a worker did not say that it has read
    the gate; each is named, and the gate stays closed.
    """
    if len(why) > WHY_LENGTH_MAX:
        raise click.UsageError(f"--why has at most {WHY_LENGTH_MAX} characters, not {len(why)}")
    if admin is not None:
        asked = {"why": why, "wait_s": wait_s}
        document = admin.post("/api/admission/close", asked, wait_s=wait_s)
    else:
        with ended_by(ClaimsError, ExitCode.FAILED), ended_by(StoreRefused, ExitCode.REFUSED):
            blockers = close_admission(state_dir, by=OPERATOR, why=why, wait_s=wait_s)
        document = blockers_document(blockers)
    if as_json:
        click.echo(json.dumps(document))
    else:
        click.echo(f"admission is closed: {printable(why)}")
    for blocker in document["blockers"]:
        call = "" if blocker["rollout_id"] is None else f", rollout {blocker['rollout_id']}"
        said = f"worker {blocker['worker_id']}{call}: {blocker['why']}"
        click.echo(f"rollout-router: {printable(said)}", err=True)
    sys.exit(ExitCode.FAILED if document["blockers"] else ExitCode.FINE)


@admission.command("status")
@admin_flags
@state_dir_flag()
@json_flag()
def gate_status(*, admin: AdminAddress | None, state_dir: Path, as_json: bool) -> None:
    """Say whether the gate is open, who closed it, why, and for how long where it is held."""
    if admin is not None:
        gate = admin.get("/api/admission")
    else:
        with ended_by(ClaimsError, ExitCode.REFUSED):
            ClaimReader.inspect(state_dir)
        gate = admission_document(state_dir)
    if as_json:
        click.echo(json.dumps(gate))
    else:
        left_s = gate["seconds_left"]
        held = "" if left_s is None else f" for {left_s:.0f} s more"
        closed = f"closed by {printable(gate['by'])}{held}: {printable(gate['why'])}"
        click.echo("open" if gate["open"] else closed)
