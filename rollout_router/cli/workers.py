# SPDX-License-Identifier: Apache-2.0
"""``rollout-router workers``: the workers that a store knows of, and draining one of them."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rollout_router.claims import (
    ClaimReader,
    ClaimsError,
    Owner,
    OwnerIdentity,
    StoreUnavailable,
    Unreadable,
    code_of,
)
from rollout_router.cli.claims_owners import open_store
from rollout_router.cli.claims_view import described, name_each, print_table, progress
from rollout_router.cli.flags import (
    SCHEMA,
    ExitCode,
    Seconds,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable
from rollout_router.operate import WAIT_S_MAX, WorkerSilent, drain

__all__ = ["workers"]


@click.group()
def workers() -> None:
    """Inspect and drain the workers of a store."""


@workers.command("list")
@state_dir_flag()
@json_flag()
def list_workers(*, state_dir: Path, as_json: bool) -> None:
    """Show every worker that left a file, dead ones too, and how many claims it has.

    Lost sessions are nobody's and not counted. Exit code 3 where a record cannot be read; each is
    named, and the counts are without them.
    """
    store = open_store(state_dir)
    with ended_by(ClaimsError, ExitCode.FAILED):
        rows, unreadable = _survey(store)
    if as_json:
        bad = [described(one) for one in unreadable]
        click.echo(json.dumps({"schema": SCHEMA, "workers": rows, "unreadable": bad}))
    else:
        columns = ("worker", "pid", "socket", "verdict", "claims")
        print_table(columns, [tuple(row.values()) for row in rows])
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
@state_dir_flag()
def drain_worker(*, worker_id: str, wait_s: float, state_dir: Path) -> None:
    """Have one worker finish what it has in hand, give its rollouts back and end, as by SIGTERM.

    Under `serve` another worker takes its place. Exit code 1 where there is no such worker, it does
    not answer, or it is not gone after --wait seconds.
    """
    with (
        ended_by(WorkerSilent, ExitCode.FAILED),
        ended_by(ClaimsError, ExitCode.REFUSED),
    ):
        gone = drain(state_dir, worker_id, wait_s=wait_s)
    click.echo(f"worker {printable(worker_id)} {'is gone' if gone else 'drains'}")
    sys.exit(ExitCode.FINE if gone or not wait_s else ExitCode.FAILED)


def _survey(store: ClaimReader) -> tuple[list[dict[str, Any]], list[Unreadable]]:
    claims: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    with progress("counting claims", store.count_files) as step:
        for record in store.survey():
            step()
            if isinstance(record, Unreadable):
                unreadable.append(record)
            elif record.state == "owned":
                claims[record.owner.nonce] += 1
    for found in _owners(store):
        if isinstance(found, Unreadable):
            unreadable.append(found)
            continue
        judgement = store.judge(Owner(nonce=found.nonce, inode=found.inode))
        rows.append(
            {
                "id": found.nonce,
                "pid": found.pid,
                "socket": found.socket,
                "verdict": judgement.verdict.value,
                "claims": claims[found.nonce],
            }
        )
    return rows, unreadable


def _owners(store: ClaimReader) -> Iterator[OwnerIdentity | Unreadable]:
    try:
        yield from store.owners()
    except StoreUnavailable as error:  # their directory is gone, or closed to us
        yield Unreadable(path=f"{store.state_dir}/owners", code=code_of(error))
