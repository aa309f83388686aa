# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims list``: who owns what."""

import json
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from rollout_router.claims import ClaimsError, valid_nonce
from rollout_router.cli.admin_address import AdminAddress, admin_flags
from rollout_router.cli.claims_view import name_each, open_to_read, print_table, progress
from rollout_router.cli.flags import (
    DURATION,
    ExitCode,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.documents.claims import claims_document

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
@admin_flags
@state_dir_flag()
@json_flag()
def list_claims(
    *,
    worker: str | None,
    verdict: str | None,
    older_than: timedelta | None,
    rows: int,
    admin: AdminAddress | None,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show who owns what. Exit code 3 where a record cannot be read; each is named."""
    if worker is not None and not valid_nonce(worker):
        raise click.UsageError(f"{worker!r} is no worker's nonce")
    if admin is not None:
        age_s = None if older_than is None else older_than.total_seconds()
        document = admin.get("/api/claims", worker=worker, verdict=verdict, older_than_s=age_s)
    else:
        store = open_to_read(state_dir)
        with (
            ended_by(ClaimsError, ExitCode.FAILED),
            progress("reading claims", store.count_files) as step,
        ):
            document = claims_document(
                store, worker=worker, verdict=verdict, older_than=older_than, step=step
            )
    if as_json:
        click.echo(json.dumps(document))
    else:
        _print(document["claims"], rows=rows)
    name_each(document["unreadable"])
    sys.exit(ExitCode.DAMAGE_FOUND if document["unreadable"] else ExitCode.FINE)


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
