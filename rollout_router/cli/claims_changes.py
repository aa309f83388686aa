# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims force | reap``: what an operator may change."""

import json
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from rollout_router.claims import (
    ClaimsError,
    FileClaimStore,
    ForceRefused,
    StoreRefused,
    valid_nonce,
    valid_rollout_id,
)
from rollout_router.cli.admin_address import AdminAddress, admin_flags, path_of
from rollout_router.cli.claims_view import name_each, progress
from rollout_router.cli.flags import (
    DURATION,
    ExitCode,
    allow_network_fs_flag,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable
from rollout_router.documents.changes import CLEARED, force_document, open_store, reap_document

__all__ = ["force", "open_for", "reap"]

_NAMED_MAX: Final = 20
"""How many of a kind are named to people; documents name all."""


@click.command()
@click.argument("rollout_id")
@flag(
    "--expect-epoch", type=int, help="The claim epoch you saw; leave out for an unreadable claim."
)
@flag("--reason", required=True, help="Why, for the record.")
@flag("--yes", is_flag=True, help="Do it.")
@allow_network_fs_flag()
@admin_flags
@state_dir_flag()
@json_flag()
def force(
    *,
    rollout_id: str,
    expect_epoch: int | None,
    reason: str,
    yes: bool,
    allow_network_fs: bool,
    admin: AdminAddress | None,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Take a rollout away from its owner, alive or not.

    The owner is fenced: nothing that it still has in hand is recorded. The next request takes the
    rollout under a higher epoch. Exit code 4 where another claim stands than the one you saw.
    """
    if not valid_rollout_id(rollout_id):
        raise click.UsageError(f"{rollout_id!r} is no rollout id")
    if admin is not None:
        asked = {"expect_epoch": expect_epoch, "reason": reason, "yes": yes}
        document = admin.post("/api/claims" + path_of(rollout_id, "force"), asked)
    else:
        with ended_by(ClaimsError, ExitCode.FAILED), ended_by(ForceRefused, ExitCode.REFUSED):
            store = open_for(state_dir, to_change=yes, allow_network_fs=allow_network_fs)
            document = force_document(
                store, rollout_id, expect_epoch=expect_epoch, reason=reason, yes=yes
            )
    if as_json:
        click.echo(json.dumps(document))
    elif not document["done"]:
        click.echo(f"{_what_force_does(document)}; add --yes to do it")
    else:
        fenced = document["fenced_epoch"]
        click.echo(f"rollout {rollout_id} is free; every claim epoch up to {fenced} is fenced")


@click.command()
@flag("--yes", is_flag=True, help="Do it.")
@flag(
    "--owner-missing",
    metavar="NONCE",
    help="Instead: free the claims of this worker whose owner file is gone or was replaced. Nobody "
    "can prove that it is dead; if it lives, it is fenced.",
)
@flag(
    "--tombstones-older-than",
    type=DURATION,
    help="Also forget sessions that were lost longer ago: 90 or 90s, 30m, 2h, 1d. They are not "
    "answered with 410 any more.",
)
@allow_network_fs_flag()
@admin_flags
@state_dir_flag()
@json_flag()
def reap(
    *,
    yes: bool,
    owner_missing: str | None,
    tombstones_older_than: timedelta | None,
    allow_network_fs: bool,
    admin: AdminAddress | None,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Free the rollouts of workers that are proven dead, and clear what they left.

    Exit code 3 where a record cannot be read; then no owner file goes, because it may name one.
    Exit code 1 where something could not be cleared. Exit code 4 with --owner-missing while the
    owner file that the claims name is there.
    """
    if owner_missing is not None and not valid_nonce(owner_missing):
        raise click.UsageError(f"{owner_missing!r} is no worker's nonce")
    if owner_missing is not None and tombstones_older_than is not None:
        raise click.UsageError("--owner-missing and --tombstones-older-than exclude each other")
    if admin is not None:
        age = tombstones_older_than
        asked = {
            "yes": yes,
            "owner_missing": owner_missing,
            "tombstones_older_than_s": None if age is None else age.total_seconds(),
        }
        document = admin.post("/api/claims/reap", asked)
    else:
        with ended_by(ClaimsError, ExitCode.FAILED), ended_by(ForceRefused, ExitCode.REFUSED):
            store = open_for(state_dir, to_change=yes, allow_network_fs=allow_network_fs)
            with progress("looking at claims", store.count_files) as step:
                document = reap_document(
                    store,
                    owner_missing=owner_missing,
                    tombstones_older_than=tombstones_older_than,
                    yes=yes,
                    step=step,
                )
    _print_reaped(document, as_json=as_json)


def _print_reaped(document: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what went, name what stayed, and exit as :func:`reap` says."""
    unreadable, failed, ended = (document[name] for name in ("unreadable", "failed", "ended_by"))
    if as_json:
        click.echo(json.dumps(document))
    else:
        for what in CLEARED:
            _say(what, document[what])
        done = "done" if ended is None else "this much was done"
        click.echo(done if document["done"] else "nothing was changed; add --yes to do it")
    name_each(unreadable)
    name_each(failed, what="could not be cleared")
    if ended is not None:
        click.echo(f"rollout-router: {printable(ended)}", err=True)
    if failed or ended is not None:
        sys.exit(ExitCode.FAILED)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


def _say(what: str, names: list[str]) -> None:
    shown = ", ".join(printable(name) for name in names[:_NAMED_MAX])
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    click.echo(f"{what}: {len(names)}{': ' if names else ''}{shown}{more}")


def open_for(state_dir: Path, *, to_change: bool, allow_network_fs: bool) -> FileClaimStore:
    """The store; exits with a message where it is refused, to change it as to a worker."""
    with ended_by(StoreRefused if to_change else ClaimsError, ExitCode.REFUSED):
        return open_store(state_dir, to_change=to_change, allow_network_fs=allow_network_fs)


def _what_force_does(found: Mapping[str, Any]) -> str:
    rollout_id, epoch = found["rollout_id"], found["claim_epoch"]
    if epoch is None:
        return f"would remove the unreadable claim of rollout {rollout_id}"
    if found["state"] == "lost":
        return f"would fence the lost session {rollout_id} past claim epoch {epoch}"
    return (
        f"would take rollout {rollout_id} from worker {found['worker_id']}, "
        f"which has it under claim epoch {epoch}"
    )
