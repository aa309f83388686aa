# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims list``: who owns what."""

import json
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from rollout_router.claims import valid_nonce
from rollout_router.cli.claims_owners import Owners, open_store, row_of, surveyed
from rollout_router.cli.claims_view import described, name_each, print_table
from rollout_router.cli.flags import (
    DURATION,
    SCHEMA,
    ExitCode,
    flag,
    json_flag,
    state_dir_flag,
)

if TYPE_CHECKING:
    from rollout_router.claims import Claim

__all__ = ["list_claims"]

_VERDICTS: Final = ("alive", "dead", "unknown")  # of claims.Verdict: an empty store has none
_ROWS: Final = 100
_ROWS_MAX: Final = 10_000
"""A table measures every cell before it prints one: this many take a few seconds."""

_COLUMNS: Final = {
    "rollout_id": "rollout",
    "claim_epoch": "claim epoch",
    "state": "state",
    "worker_id": "worker",
    "pid": "pid",
    "verdict": "verdict",
    "claimed_at": "claimed at",
}


@click.command("list")
@flag("--worker", metavar="NONCE", help="Only the claims of this worker.")
@flag(
    "--verdict",
    type=click.Choice(_VERDICTS),
    help="Only the claims of owners that this is known of; never lost sessions.",
)
@flag("--older-than", type=DURATION, help="Only claims older than 90 or 90s, 30m, 2h, 1d.")
@flag(
    "--rows",
    type=click.IntRange(1, _ROWS_MAX),
    default=_ROWS,
    help="How many the table shows; --json shows all.",
)
@state_dir_flag()
@json_flag()
def list_claims(
    *,
    worker: str | None,
    verdict: str | None,
    older_than: timedelta | None,
    rows: int,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show who owns what. Exit code 3 where a record cannot be read; each is named."""
    if worker is not None and not valid_nonce(worker):
        raise click.UsageError(f"{worker!r} is no worker's nonce")
    store = open_store(state_dir)
    owners, now = Owners(store), datetime.now(UTC)

    def asked_for(claim: "Claim") -> bool:
        """The cheap questions first."""
        if worker is not None and claim.owner.nonce != worker:
            return False
        if older_than is not None and now - datetime.fromisoformat(claim.at) <= older_than:
            return False
        if verdict is None:
            return True
        return claim.state == "owned" and owners.of(claim)[1].verdict.value == verdict

    found, unreadable = surveyed(
        store, lambda claim: row_of(claim, owners) if asked_for(claim) else None
    )
    if as_json:
        document = {"schema": SCHEMA, "store_id": store.store_id, "claims": found}
        click.echo(json.dumps({**document, "unreadable": [described(bad) for bad in unreadable]}))
    else:
        _print(found, rows=rows)
    name_each(unreadable)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


def _print(found: list[dict[str, Any]], *, rows: int) -> None:
    found.sort(key=lambda row: str(row["rollout_id"]))
    shown = found[:rows]
    print_table(list(_COLUMNS.values()), [[row[name] for name in _COLUMNS] for row in shown])
    verdicts = Counter(row["verdict"] for row in found if row["state"] == "owned")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    lost = len(found) - verdicts.total()
    parts = [f"owners {counts}"] * bool(counts) + [f"{lost} lost sessions"] * bool(lost)
    click.echo(f"{len(found)} claims{': ' * bool(parts)}{'; '.join(parts)}")
    if left := len(found) - len(shown):
        click.echo(
            f"{left} of them are not in the table: narrow it with --worker, --verdict or "
            "--older-than, or see all with --json"
        )
