# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims``: who owns what, and the evidence. What stands here only reads."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rollout_router.claims import (
    Claim,
    ClaimsError,
    FileClaimStore,
    Judgement,
    OwnerIdentity,
    Unreadable,
    valid_rollout_id,
)
from rollout_router.cli.claims_changes import force, reap, verify
from rollout_router.cli.flags import SCHEMA, ExitCode, ended_by, json_flag, state_dir_flag

__all__ = ["Owners", "claims", "open_store"]


class Owners:
    """What is known of each owner, asked once an owner however many claims name it."""

    def __init__(self, store: FileClaimStore) -> None:
        self._store = store
        self._known: dict[tuple[str, int], tuple[OwnerIdentity | None, Judgement]] = {}

    def of(self, claim: Claim) -> tuple[OwnerIdentity | None, Judgement]:
        """Its identity, None where its file is missing or unreadable, and the verdict on it."""
        key = (claim.owner.nonce, claim.owner.inode)
        if key not in self._known:
            try:
                identity = self._store.owner(claim.owner.nonce)
            except ClaimsError:  # the judgement beside it says "unknown"; verify names the file
                identity = None
            self._known[key] = (identity, self._store.judge(claim.owner))
        return self._known[key]


def open_store(state_dir: Path) -> FileClaimStore:
    """The store, to read; exits with a message where there is none or it is refused."""
    with ended_by(ClaimsError, ExitCode.REFUSED):
        return FileClaimStore.inspect(state_dir)


@click.group()
def claims() -> None:
    """Inspect, free and verify the claims of a store."""


for command in (force, reap, verify):
    claims.add_command(command)


@claims.command("list")
@state_dir_flag()
@json_flag()
def list_claims(*, state_dir: Path, as_json: bool) -> None:
    """Show who owns what. Exit code 3 where a record cannot be read; each is named."""
    store = open_store(state_dir)
    owners = Owners(store)
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    with ended_by(ClaimsError, ExitCode.DAMAGE_FOUND):
        for found in store.survey():
            if isinstance(found, Unreadable):
                unreadable.append(found)
            else:
                rows.append(_row(found, owners))
    if as_json:
        click.echo(
            json.dumps(
                {
                    "schema": SCHEMA,
                    "store_id": store.store_id,
                    "claims": rows,
                    "unreadable": [asdict(bad) for bad in unreadable],
                }
            )
        )
    else:
        table = Table("rollout", "claim epoch", "state", "worker", "pid", "verdict", "claimed at")
        for row in rows:
            columns = ("rollout_id", "claim_epoch", "state", "worker_id", "pid", "verdict")
            table.add_row(*(str(row[name]) for name in (*columns, "claimed_at")))
        Console().print(table)
    for bad in unreadable:
        click.echo(f"rollout-router: unreadable: {bad.path} ({bad.code})", err=True)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


@claims.command("show")
@click.argument("rollout_id")
@state_dir_flag()
@json_flag()
def show_claim(*, rollout_id: str, state_dir: Path, as_json: bool) -> None:
    """Show one claim with the evidence for the verdict on its owner. Exit code 1: no claim."""
    if not valid_rollout_id(rollout_id):
        raise click.UsageError(f"{rollout_id!r} is no rollout id")
    store = open_store(state_dir)
    with ended_by(ClaimsError, ExitCode.DAMAGE_FOUND):
        claim = store.read(rollout_id)
    if claim is None:
        click.echo(f"rollout-router: rollout {rollout_id} has no claim in {state_dir}", err=True)
        sys.exit(ExitCode.FAILED)
    owners = Owners(store)
    identity, judgement = owners.of(claim)
    record = {
        **_row(claim, owners),
        "kind": claim.kind,
        "previous": asdict(claim.previous) if claim.previous else None,
    }
    evidence = {
        "connect": judgement.connect,
        "life_lock": judgement.life,
        "reason": judgement.reason,
        "owner": asdict(identity) if identity else None,
    }
    if as_json:
        document = {"schema": SCHEMA, "store_id": store.store_id}
        click.echo(json.dumps({**document, "claim": record, "evidence": evidence}))
        return
    table = Table("what", "value", show_header=False)
    for name, value in {**record, **evidence}.items():
        table.add_row(name, str(value))
    Console().print(table)


def _row(claim: Claim, owners: Owners) -> dict[str, Any]:
    identity, judgement = owners.of(claim)
    return {
        "rollout_id": claim.rollout_id,
        "claim_epoch": claim.claim_epoch,
        "state": claim.state,
        "worker_id": claim.owner.nonce,
        "pid": identity.pid if identity else None,
        "socket": identity.socket if identity else None,
        "verdict": judgement.verdict.value,
        "claimed_at": claim.at,
    }
