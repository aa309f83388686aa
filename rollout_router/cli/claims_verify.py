# SPDX-License-Identifier: Apache-2.0
"""``rollout-router claims verify``: everything that is wrong with a store, and mending some of it.

Without ``--repair`` it makes and raises nothing, while workers run or none does, and holds no lock.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from rollout_router.claims import (
    ClaimsError,
    FileClaimStore,
    Inspection,
    StoreRefused,
    Unreadable,
    inspect_store,
    repair,
)
from rollout_router.cli.claims_changes import open_for
from rollout_router.cli.claims_view import progress
from rollout_router.cli.flags import (
    SCHEMA,
    ExitCode,
    allow_network_fs_flag,
    ended_by,
    flag,
    json_flag,
    state_dir_flag,
)
from rollout_router.cli.terminal import printable

__all__ = ["verify"]

_REPAIR_HELP: Final = (
    "Mend what can be mended: directories and lock files that are missing, epoch files that are "
    "missing, damaged or behind, FORMAT where it is behind. Raises the generation where it writes "
    "an epoch. Refused (4) while a worker may live and a lock file is missing."
)


@click.command()
@flag("--repair", "mend", is_flag=True, help=_REPAIR_HELP)
@allow_network_fs_flag()
@state_dir_flag()
@json_flag()
def verify(*, mend: bool, allow_network_fs: bool, state_dir: Path, as_json: bool) -> None:
    """Look at every part of a store. Exit code 3 where anything is wrong; each thing is named.

    Claims themselves are never repaired: `claims force` frees an unreadable one's rollout.
    """
    mended: tuple[Unreadable, ...] = ()
    with ended_by(ClaimsError, ExitCode.FAILED), ended_by(StoreRefused, ExitCode.REFUSED):
        store = open_for(state_dir, to_change=mend, allow_network_fs=allow_network_fs)
        if mend:
            mended = repair(store, behind=_look(store).behind)
        wrong = _look(store).findings
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
            click.echo(f"mended: {printable(one.path)} ({one.code})")
        click.echo(f"{len(wrong)} things are wrong" if wrong else "nothing is wrong")
    for bad in wrong:
        said = f"{printable(bad.path)} ({bad.code}): {printable(bad.remedy)}"
        click.echo(f"rollout-router: {said}", err=True)
    sys.exit(ExitCode.DAMAGE_FOUND if wrong else ExitCode.FINE)


def _look(store: FileClaimStore) -> Inspection:
    with progress("looking at claims", store.count_files) as step:
        return inspect_store(store, step=step)
