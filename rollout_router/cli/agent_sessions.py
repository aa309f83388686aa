# SPDX-License-Identifier: Apache-2.0
"""The sessions of an agent server, from its journal: what they did, and where they stand."""

import json
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from rollout_router.checkpoint.cut import boundary_document
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.refusing import completed_of, restartable
from rollout_router.checkpoint.rows import Recorded, Rollout, check_whole
from rollout_router.checkpoint.tables import all_rollouts, outbox_of, rollout_of, rows_of
from rollout_router.cli.checkpoint import opened_journal, refusing
from rollout_router.cli.claims_view import print_table
from rollout_router.cli.flags import SCHEMA, ExitCode
from rollout_router.cli.terminal import printable

__all__ = ["list_agent_sessions", "restart_agent_session", "show_agent_session"]

_COLUMNS: Final = {
    "rollout_id": "rollout",
    "status": "status",
    "operations": "operations",
    "attempt": "attempt",
    "restarts": "restarts",
    "claim_epoch": "claim epoch",
    "reason": "because",
    "changed_at": "changed at",
}


def list_agent_sessions(journal: Path, *, as_json: bool) -> None:
    """Print every session of *journal*."""
    with refusing(), opened_journal(journal) as opened:
        rows = [
            {
                **{name: getattr(one, name) for name in _COLUMNS if name != "operations"},
                "operations": one.next - one.first,
            }
            for one in opened.database.read(all_rollouts)
        ]
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "run": opened.run, "sessions": rows}))
        return
    print_table(list(_COLUMNS.values()), [[row[name] for name in _COLUMNS] for row in rows])
    if not rows:
        click.echo("no sessions")


def show_agent_session(journal: Path, rollout_id: str, *, as_json: bool) -> None:
    """Print one session: its operations, its boundary, and whether its chain is whole.

    Exit code 1: the journal does not know it. Exit code 3: it is not whole.
    """

    def look(db: sqlite3.Connection) -> tuple[Any, ...]:
        return rollout_of(db, rollout_id), rows_of(db, rollout_id), outbox_of(db, rollout_id)

    with refusing(), opened_journal(journal) as opened:
        rollout, rows, outbox = opened.database.read(look)
        if rollout is None:
            said = f"{journal} knows no rollout {rollout_id}"
            click.echo(f"rollout-router: {printable(said)}", err=True)
            sys.exit(ExitCode.FAILED)
        boundary = None
        damage = opened.database.read(lambda db: _damage(db, rollout, rows))
        if rollout.status == "open" and damage is None:
            boundary = boundary_document(opened, rollout, rows)
    document = {
        "schema": SCHEMA,
        "session": asdict(rollout),
        "operations": [asdict(row) for row in rows],
        "boundary": boundary,
        "receipt": outbox[0] if outbox else None,
        "damage": damage,
    }
    if as_json:
        click.echo(json.dumps(document))
    else:
        for name, value in asdict(rollout).items():
            click.echo(f"{name}: {printable(value)}")
        names = ("sequence", "kind", "effect", "environment_id", "revision", "orphans")
        print_table(names, [[getattr(row, name) for name in names] for row in rows])
        if boundary is not None:
            left = boundary["budgets"]["steps_left"]
            click.echo(f"stands at {boundary['kind']}; model calls left: {left}")
    if damage is not None:
        click.echo(f"rollout-router: {printable(damage['message'])}", err=True)
        sys.exit(ExitCode.DAMAGE_FOUND)


def _damage(
    db: sqlite3.Connection, rollout: Rollout, rows: Sequence[Recorded]
) -> dict[str, str] | None:
    """What is wrong with a session that goes on, or with its result, which outlives operations."""
    try:
        if rollout.status in ("open", "quarantined"):
            check_whole(rollout, rows)
        elif rollout.status == "completed":
            completed_of(db, rollout.rollout_id)
    except CheckpointRefusal as refusal:
        return {"code": refusal.code, "message": refusal.message}
    return None


def restart_agent_session(journal: Path, rollout_id: str, *, yes: bool) -> None:
    """Give up what a session recorded: it begins anew with the next call."""
    with refusing(), opened_journal(journal) as opened:
        if not yes:
            rollout = opened.database.read(lambda db: restartable(db, rollout_id))
            click.echo(
                f"would give up {rollout.next - rollout.first} operations of rollout"
                f" {printable(rollout_id)} ({rollout.status}); do it with --yes"
            )
            return
        opened.restart_now(rollout_id)
    click.echo(f"rollout {printable(rollout_id)} begins anew with its next call")
