# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims force | reap``: what an operator may change.

What frees or forces is a dry run until ``--yes``: it refuses what the real one would refuse. A dry
run takes no lock and makes and raises nothing in the store. Both work while workers run and while
none does; none ends a worker: a forced claim fences its old owner.
"""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from rollout_router.claims import (
    Claim,
    ClaimsError,
    FileClaimStore,
    ForceRefused,
    StoreRefused,
    StoreUnavailable,
    Unreadable,
    free_orphans,
    sweep,
    valid_nonce,
    valid_rollout_id,
)
from rollout_router.cli.claims_view import described, name_each, progress
from rollout_router.cli.flags import (
    DURATION,
    SCHEMA,
    ExitCode,
    allow_network_fs_flag,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable

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
@state_dir_flag()
@json_flag()
def force(
    *,
    rollout_id: str,
    expect_epoch: int | None,
    reason: str,
    yes: bool,
    allow_network_fs: bool,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Take a rollout away from its owner, alive or not.

    The owner is fenced: nothing that it still has in hand is recorded. The next request takes the
    rollout under a higher epoch. Exit code 4 where another claim stands than the one you saw.
    """
    if not valid_rollout_id(rollout_id):
        raise click.UsageError(f"{rollout_id!r} is no rollout id")
    fenced = None
    with ended_by(ClaimsError, ExitCode.FAILED), ended_by(ForceRefused, ExitCode.REFUSED):
        store = open_for(state_dir, to_change=yes, allow_network_fs=allow_network_fs)
        found = store.forceable(rollout_id, expect_epoch=expect_epoch)
        if yes:
            fenced = store.force(rollout_id, expect_epoch=expect_epoch, reason=reason)
    if as_json:
        document = {
            "schema": SCHEMA,
            "store_id": store.store_id,
            "done": yes,
            "rollout_id": rollout_id,
            "kind": found.kind if found else None,
            "worker_id": found.owner.nonce if found else None,
            "claim_epoch": found.claim_epoch if found else None,
            "fenced_epoch": fenced,
        }
        click.echo(json.dumps(document))
    elif fenced is None:
        click.echo(f"{_what_force_does(rollout_id, found)}; add --yes to do it")
    else:
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
@state_dir_flag()
@json_flag()
def reap(
    *,
    yes: bool,
    owner_missing: str | None,
    tombstones_older_than: timedelta | None,
    allow_network_fs: bool,
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
    with ended_by(ClaimsError, ExitCode.FAILED), ended_by(ForceRefused, ExitCode.REFUSED):
        store = open_for(state_dir, to_change=yes, allow_network_fs=allow_network_fs)
        if owner_missing is None:
            age = timedelta.max if tombstones_older_than is None else tombstones_older_than
            cleared, unreadable, failed, ended = _sweep(store, yes=yes, tombstone_age_max=age)
        else:
            cleared, unreadable, failed, ended = _free(store, owner_missing, yes=yes)
    if as_json:
        document = {
            "schema": SCHEMA,
            "done": yes,
            "owner_missing": owner_missing,
            **cleared,
            "unreadable": [described(bad) for bad in unreadable],
            "failed": [described(bad) for bad in failed],
        }
        click.echo(json.dumps(document))
    else:
        for what, names in cleared.items():
            _say(what, names)
        done = "done" if ended is None else "this much was done"
        click.echo(done if yes else "nothing was changed; add --yes to do it")
    name_each(unreadable)
    name_each(failed, what="could not be cleared")
    with ended_by(ClaimsError, ExitCode.FAILED):
        if ended is not None:
            raise ended
    if failed:
        sys.exit(ExitCode.FAILED)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)


_Cleared = tuple[
    dict[str, list[str]],
    tuple[Unreadable, ...],
    tuple[Unreadable, ...],
    StoreUnavailable | None,  # why the rest was not tried
]


def _sweep(store: FileClaimStore, *, yes: bool, tombstone_age_max: timedelta) -> _Cleared:
    with progress("looking at claims", store.count_files) as step:
        swept = sweep(
            store,
            now=datetime.now(UTC),
            tombstone_age_max=tombstone_age_max,
            dry_run=not yes,
            pace=step,
        )
    cleared = {
        "freed": [claim.rollout_id for claim in swept.freed],
        "lost": [claim.rollout_id for claim in swept.lost],
        "moved": [],
        "forgotten": [claim.rollout_id for claim in swept.forgotten],
        "owners": list(swept.owners),
        "sockets": list(swept.sockets),
        "leftovers": list(swept.leftovers),
    }
    return cleared, swept.unreadable, swept.failed, None


def _free(store: FileClaimStore, nonce: str, *, yes: bool) -> _Cleared:
    with progress("looking at claims", store.count_files) as step:
        orphans = free_orphans(store, nonce, dry_run=not yes, step=step)
    cleared: dict[str, list[str]] = {
        "freed": list(orphans.freed),
        "lost": list(orphans.lost),
        "moved": list(orphans.moved),
        **{what: [] for what in ("forgotten", "owners", "sockets", "leftovers")},
    }
    return cleared, orphans.unreadable, orphans.failed, orphans.ended_by


def _say(what: str, names: list[str]) -> None:
    shown = ", ".join(printable(name) for name in names[:_NAMED_MAX])
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    click.echo(f"{what}: {len(names)}{': ' if names else ''}{shown}{more}")


def open_for(state_dir: Path, *, to_change: bool, allow_network_fs: bool) -> FileClaimStore:
    """The store; exits with a message where it is refused, to change it as to a worker."""
    if not to_change:
        with ended_by(ClaimsError, ExitCode.REFUSED):
            return FileClaimStore.inspect(state_dir)
    with ended_by(StoreRefused, ExitCode.REFUSED):
        return FileClaimStore.open(state_dir, service=None, allow_network_fs=allow_network_fs)


def _what_force_does(rollout_id: str, found: Claim | None) -> str:
    if found is None:
        return f"would remove the unreadable claim of rollout {rollout_id}"
    if found.state == "lost":
        return f"would fence the lost session {rollout_id} past claim epoch {found.claim_epoch}"
    return (
        f"would take rollout {rollout_id} from worker {found.owner.nonce}, "
        f"which has it under claim epoch {found.claim_epoch}"
    )
