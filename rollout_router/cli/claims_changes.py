# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims force | reap | verify``: what an operator may change, and what is wrong.

What frees or forces is a dry run until ``--yes``: it refuses what the real one would refuse. A dry
run, and ``verify`` without ``--repair``, make and raise nothing in the store. All of them work
while workers run and while none does; none ends a worker: a forced claim fences its old owner.
"""

import json
import sys
from dataclasses import asdict
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
    Unreadable,
    check_access,
    damage,
    repair,
    sweep,
    valid_rollout_id,
)
from rollout_router.cli.flags import SCHEMA, ExitCode, ended_by, flag, json_flag, state_dir_flag

__all__ = ["force", "reap", "verify"]

TOMBSTONE_AGE_MAX: Final = timedelta(hours=24)
"""How long a lost session says so before a reap forgets it."""


@click.command()
@click.argument("rollout_id")
@flag(
    "--expect-epoch", type=int, help="The claim epoch you saw; leave out for an unreadable claim."
)
@flag("--reason", required=True, help="Why, for the record.")
@flag("--yes", is_flag=True, help="Do it.")
@state_dir_flag()
def force(
    *, rollout_id: str, expect_epoch: int | None, reason: str, yes: bool, state_dir: Path
) -> None:
    """Take a rollout away from its owner, alive or not.

    The owner is fenced: nothing that it still has in hand is recorded. The next request takes the
    rollout under a higher epoch. Exit code 4 where another claim stands than the one you saw.
    """
    if not valid_rollout_id(rollout_id):
        raise click.UsageError(f"{rollout_id!r} is no rollout id")
    with ended_by(ClaimsError, ExitCode.FAILED), ended_by(ForceRefused, ExitCode.REFUSED):
        store = _open(state_dir, to_change=yes)
        if not yes:
            found = store.forceable(rollout_id, expect_epoch=expect_epoch)
            click.echo(f"{_what_force_does(rollout_id, found)}; add --yes to do it")
            return
        epoch = store.force(rollout_id, expect_epoch=expect_epoch, reason=reason)
    click.echo(f"rollout {rollout_id} is free; every claim epoch up to {epoch} is fenced")


@click.command()
@flag("--yes", is_flag=True, help="Do it.")
@state_dir_flag()
@json_flag()
def reap(*, yes: bool, state_dir: Path, as_json: bool) -> None:
    """Free the rollouts of workers that are proven dead, and clear what they left.

    Exit code 3 where a record cannot be read; then no owner file goes, because it may name one.
    """
    with ended_by(ClaimsError, ExitCode.FAILED):
        swept = sweep(
            _open(state_dir, to_change=yes),
            now=datetime.now(UTC),
            tombstone_age_max=TOMBSTONE_AGE_MAX,
            dry_run=not yes,
        )
    cleared = {
        "freed": [claim.rollout_id for claim in swept.freed],
        "lost": [claim.rollout_id for claim in swept.lost],
        "forgotten": [claim.rollout_id for claim in swept.forgotten],
        "owners": list(swept.owners),
        "sockets": list(swept.sockets),
        "leftovers": list(swept.leftovers),
    }
    if as_json:
        unreadable = [asdict(bad) for bad in swept.unreadable]
        document = {"schema": SCHEMA, "done": yes, **cleared, "unreadable": unreadable}
        click.echo(json.dumps(document))
    else:
        for what, names in cleared.items():
            click.echo(f"{what}: {len(names)}{': ' if names else ''}{', '.join(names[:20])}")
        click.echo("done" if yes else "nothing was changed; add --yes to do it")
    _end_with(list(swept.unreadable))


@click.command()
@flag("--repair", "mend", is_flag=True, help="Mend lock and epoch files; raises the generation.")
@state_dir_flag()
@json_flag()
def verify(*, mend: bool, state_dir: Path, as_json: bool) -> None:
    """Look at every part of a store. Exit code 3 where anything is wrong; each thing is named.

    Claims themselves are never repaired: `claims force` frees an unreadable one's rollout.
    """
    with ended_by(ClaimsError, ExitCode.FAILED):
        store = _open(state_dir, to_change=mend)
        with ended_by(StoreRefused, ExitCode.REFUSED):
            check_access(store.state_dir)
        mended = repair(store) if mend else ()
        wrong = [*damage(store)]
        if not wrong:  # a stripe that is missing cannot be surveyed
            wrong += [record for record in store.survey() if isinstance(record, Unreadable)]
            wrong += [owner for owner in store.owners() if isinstance(owner, Unreadable)]
    if as_json:
        document = {
            "schema": SCHEMA,
            "store_id": store.store_id,
            "mended": [asdict(one) for one in mended],
            "damaged": [asdict(one) for one in wrong],
        }
        click.echo(json.dumps(document))
    else:
        for one in mended:
            click.echo(f"mended: {one.path} ({one.code})")
        click.echo("nothing is wrong" if not wrong else f"{len(wrong)} things are wrong")
    _end_with(wrong)


def _open(state_dir: Path, *, to_change: bool) -> FileClaimStore:
    with ended_by(StoreRefused, ExitCode.REFUSED):
        if to_change:
            return FileClaimStore.open(state_dir, service=None)
        return FileClaimStore.inspect(state_dir)


def _what_force_does(rollout_id: str, found: Claim | None) -> str:
    if found is None:
        return f"would remove the unreadable claim of rollout {rollout_id}"
    if found.state == "lost":
        return f"would fence the lost session {rollout_id} past claim epoch {found.claim_epoch}"
    return (
        f"would take rollout {rollout_id} from worker {found.owner.nonce}, "
        f"which has it under claim epoch {found.claim_epoch}"
    )


def _end_with(unreadable: list[Unreadable]) -> None:
    for bad in unreadable:
        click.echo(f"rollout-router: {bad.path} ({bad.code})", err=True)
    sys.exit(ExitCode.DAMAGE_FOUND if unreadable else ExitCode.FINE)
