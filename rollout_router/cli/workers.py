# SPDX-License-Identifier: Apache-2.0
"""``rollout-router workers``: the workers that a store knows of, and draining one of them."""

import json
import sys
from pathlib import Path

import click

from rollout_router.claims import ClaimsError
from rollout_router.cli.admin_address import AdminAddress, admin_flags, path_of
from rollout_router.cli.claims_view import name_each, open_to_read, print_table, progress
from rollout_router.cli.flags import (
    ExitCode,
    Seconds,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable
from rollout_router.documents.workers import workers_document
from rollout_router.operate import WAIT_S_MAX, WorkerSilent, drain

__all__ = ["workers"]


@click.group()
def workers() -> None:
    """Inspect and drain the workers of a store."""


@workers.command("list")
@admin_flags
@state_dir_flag()
@json_flag()
def list_workers(*, admin: AdminAddress | None, state_dir: Path, as_json: bool) -> None:
    """Show every worker that left a file, dead ones too, and how many claims it has.

    Lost sessions are nobody's and not counted. Exit code 3 where a record cannot be read; each is
    named, and the counts are without them.
    """
    if admin is not None:
        document = admin.get("/api/workers")
    else:
        store = open_to_read(state_dir)
        with (
            ended_by(ClaimsError, ExitCode.FAILED),
            progress("counting claims", store.count_files) as step,
        ):
            document = workers_document(store, step=step)
    rows, unreadable = document["workers"], document["unreadable"]
    if as_json:
        click.echo(json.dumps(document))
    else:
        names = ("id", "pid", "socket", "verdict", "claims")
        columns = ("worker", *names[1:])
        print_table(columns, [[row[name] for name in names] for row in rows])
        if not rows:
            click.echo("no workers")
    name_each(unreadable)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


@workers.command("drain")
@click.argument("worker_id")
@flag(
    "--wait",
    "wait_s",
    default=0.0,
    type=Seconds(0, WAIT_S_MAX),
    help="Seconds to wait until it is gone.",
)
@admin_flags
@state_dir_flag()
def drain_worker(
    *, worker_id: str, wait_s: float, admin: AdminAddress | None, state_dir: Path
) -> None:
    """Have one worker finish what it has in hand, give its rollouts back and end, as by SIGTERM.

    Under `serve` another worker takes its place. Exit code 1 where there is no such worker, it does
    not answer, or it is not gone after --wait seconds.
    """
    if admin is not None:
        path = "/api/workers" + path_of(worker_id, "drain")
        gone = bool(admin.post(path, {"wait_s": wait_s}, wait_s=wait_s)["gone"])
    else:
        with ended_by(WorkerSilent, ExitCode.FAILED), ended_by(ClaimsError, ExitCode.REFUSED):
            gone = drain(state_dir, worker_id, wait_s=wait_s)
    click.echo(f"worker {printable(worker_id)} {'is gone' if gone else 'drains'}")
    sys.exit(ExitCode.FINE if gone or not wait_s else ExitCode.FAILED)
