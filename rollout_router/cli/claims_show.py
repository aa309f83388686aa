# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims show``: one claim, and every piece of evidence for what is said of it."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rollout_router.claims import ClaimsError, valid_rollout_id
from rollout_router.cli.admin_address import AdminAddress, admin_flags, path_of
from rollout_router.cli.claims_view import name_each, open_to_read, print_table
from rollout_router.cli.flags import ExitCode, ended_by, json_flag, state_dir_flag
from rollout_router.documents.claim import claim_document

__all__ = ["print_record", "show_claim"]


@click.command("show")
@click.argument("rollout_id")
@admin_flags
@state_dir_flag()
@json_flag()
def show_claim(
    *, rollout_id: str, admin: AdminAddress | None, state_dir: Path, as_json: bool
) -> None:
    """Show one claim with the evidence for the verdict on its owner.

    Exit code 1: there is no claim. Exit code 3: it cannot be read.
    """
    if not valid_rollout_id(rollout_id):
        raise click.UsageError(f"{rollout_id!r} is no rollout id")
    if admin is not None:
        document, where = admin.get("/api/claims" + path_of(rollout_id)), admin.url
    else:
        store = open_to_read(state_dir)
        with ended_by(ClaimsError, ExitCode.FAILED):
            document, where = claim_document(store, rollout_id), str(store.state_dir)
    nothing = f"rollout {rollout_id} has no claim in {where}"
    print_record(document, rollout_id, what="claim", nothing=nothing, as_json=as_json)


def print_record(
    document: Mapping[str, Any], rollout_id: str, *, what: str, nothing: str, as_json: bool
) -> None:
    """Print one record with the evidence, and exit as :func:`show_claim` says.

    Args:
        document: of the record.
        rollout_id: under which it stands.
        what: its key in the document.
        nothing: said where there is no such record.
        as_json: the document instead of a table.
    """
    record, bad = document[what], document["unreadable"]
    if as_json:
        click.echo(json.dumps(document))
    else:
        shown = record or {"rollout_id": rollout_id, **(bad or {})}
        lines = _lines(shown, document["evidence"])
        print_table(("", ""), [line for line in lines if line[1] is not None])
    if bad is not None:
        name_each([bad])
        sys.exit(ExitCode.DAMAGE_FOUND)
    if record is None:
        click.echo(f"rollout-router: {nothing}", err=True)
        sys.exit(ExitCode.FAILED)


def _lines(*parts: Mapping[str, Any]) -> list[tuple[str, object]]:
    """One line a fact: nested facts under the name of their whole."""
    lines: list[tuple[str, object]] = []
    for part in parts:
        for name, value in part.items():
            what = name.replace("_", " ")
            if isinstance(value, dict):
                lines += [(f"{what}: {inner}", text) for inner, text in _lines(value)]
            elif isinstance(value, list):
                lines.append((what, "; ".join(map(_process, value)) or "nobody"))
            elif name in {"started_at", "modified_at"} and value is not None:
                lines.append((what, _when(value)))
            else:
                lines.append((what, value))
    return lines


def _process(one: Mapping[str, Any]) -> str:
    return f"{one['pid']} ({one['command'] or 'command not to be seen'})"


def _when(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a year that no calendar of ours has
        return str(seconds)
