# SPDX-License-Identifier: Apache-2.0
"""``rollout-router workers``: the workers that a store knows of."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rollout_router.claims import ClaimsError, FileClaimStore, Owner, Unreadable
from rollout_router.cli.claims import open_store
from rollout_router.cli.flags import SCHEMA, ExitCode, ended_by, json_flag, state_dir_flag

__all__ = ["workers"]


@click.group()
def workers() -> None:
    """Inspect the workers of a store."""


@workers.command("list")
@state_dir_flag()
@json_flag()
def list_workers(*, state_dir: Path, as_json: bool) -> None:
    """Show every worker that left a file, dead ones too, and how many claims name it."""
    store = open_store(state_dir)
    with ended_by(ClaimsError, ExitCode.DAMAGE_FOUND):
        rows, unreadable = _survey(store)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "workers": rows}))
    else:
        table = Table("worker", "pid", "socket", "verdict", "claims")
        for row in rows:
            table.add_row(*map(str, row.values()))
        Console().print(table)
    for bad in unreadable:
        click.echo(f"rollout-router: unreadable: {bad.path} ({bad.code})", err=True)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


def _survey(store: FileClaimStore) -> tuple[list[dict[str, Any]], list[Unreadable]]:
    claims = Counter(
        found.owner.nonce for found in store.survey() if not isinstance(found, Unreadable)
    )
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    for found in store.owners():
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
