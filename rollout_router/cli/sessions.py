# SPDX-License-Identifier: Apache-2.0
"""``rollout-router sessions``: the sessions of a store, the lost ones with reason and time.

A session that is lost is answered 410 for as long as its tombstone is listed (R3). With
``--journal`` they are those of an agent server, which go on. All but ``restart`` only read.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from rollout_router.claims import Claim, ClaimsError, valid_rollout_id
from rollout_router.cli.claims_show import print_record
from rollout_router.cli.claims_view import name_each, open_to_read, print_table, progress
from rollout_router.cli.flags import (
    SCHEMA,
    ExitCode,
    ended_by,
    journal_flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.documents.claim import record_document
from rollout_router.documents.claims import Owners, row_of, surveyed
from rollout_router.routing.sessions import PREFIX, session_name

__all__ = ["sessions"]

_COLUMNS: Final = {
    "name": "session",
    "claim_epoch": "claim epoch",
    "state": "state",
    "worker_id": "worker",
    "verdict": "verdict",
    "claimed_at": "claimed at",
    "lost_at": "lost at",
    "lost_because": "because",
}


@click.group()
def sessions() -> None:
    """Inspect the sessions of a store."""


@sessions.command("list")
@journal_flag(required=False)
@state_dir_flag()
@json_flag()
def list_sessions(*, journal: Path | None, state_dir: Path, as_json: bool) -> None:
    """Show who owns which session, and which are lost, since when and why.

    Exit code 3 where a record cannot be read; each is named.
    """
    if journal is not None:
        from rollout_router.cli.agent_sessions import list_agent_sessions  # noqa: PLC0415 - seldom

        list_agent_sessions(journal, as_json=as_json)
        return
    store = open_to_read(state_dir)
    owners = Owners(store)
    with (
        ended_by(ClaimsError, ExitCode.FAILED),
        progress("reading claims", store.count_files) as step,
    ):
        found, unreadable = surveyed(store, lambda claim: _row(claim, owners), step=step)
    found.sort(key=lambda row: str(row["name"]))
    if as_json:
        document = {"schema": SCHEMA, "store_id": store.store_id, "sessions": found}
        click.echo(json.dumps({**document, "unreadable": unreadable}))
    else:
        print_table(list(_COLUMNS.values()), [[row[name] for name in _COLUMNS] for row in found])
        if not found:
            click.echo("no sessions")
    name_each(unreadable)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


@sessions.command("show")
@click.argument("name")
@journal_flag(required=False)
@state_dir_flag()
@json_flag()
def show_session(*, name: str, journal: Path | None, state_dir: Path, as_json: bool) -> None:
    """Show one session with the evidence for what is said of its owner.

    NAME is what `sessions list` prints, or the id that the client has. Exit code 1: there is no
    such session. Exit code 3: its record cannot be read.
    """
    if journal is not None:
        from rollout_router.cli.agent_sessions import show_agent_session  # noqa: PLC0415 - seldom

        show_agent_session(journal, name, as_json=as_json)
        return
    if not (name.startswith(PREFIX) and valid_rollout_id(name)):
        with ended_by(ValueError, ExitCode.USAGE):  # bytes that no encoding has
            name = session_name(name)
    store = open_to_read(state_dir)
    with ended_by(ClaimsError, ExitCode.FAILED):
        document = record_document(
            store, name, what="session", describe=lambda claim: _row(claim, Owners(store))
        )
    nothing = f"there is no session {name} in {store.state_dir}"
    print_record(document, name, what="session", nothing=nothing, as_json=as_json)


@sessions.command("restart")
@click.argument("rollout_id")
@journal_flag()
@click.option("--yes", is_flag=True, help="Do it; without, only say what would be done.")
def restart_session(*, rollout_id: str, journal: Path, yes: bool) -> None:
    """Have a session of an agent server begin anew, from its input or with another.

    What it recorded is given up; whoever is at work on it is refused at its next operation.
    """
    from rollout_router.cli.agent_sessions import restart_agent_session  # noqa: PLC0415 - seldom

    restart_agent_session(journal, rollout_id, yes=yes)


def _row(claim: Claim, owners: Owners) -> dict[str, Any] | None:
    """A session as every document shows it; None for what is no session."""
    if claim.kind != "session":
        return None
    lost = claim.state == "lost"
    row = row_of(claim, owners)
    return {
        "name": row.pop("rollout_id"),
        **row,
        "claimed_at": None if lost else claim.at,
        "lost_at": claim.at if lost else None,
        "lost_because": claim.reason or None,
    }
