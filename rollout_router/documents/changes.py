# SPDX-License-Identifier: Apache-2.0
"""What an operator may change of a store: each a dry run until it is told to be done (C2, C3).

A dry run refuses what the real one would refuse; it takes no lock and makes and raises nothing in
the store. Both work while workers run and while none does; none ends a worker: a forced claim
fences its old owner.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from rollout_router.claims import FileClaimStore, free_orphans, sweep
from rollout_router.documents import SCHEMA
from rollout_router.documents.claims import described

__all__ = ["CLEARED", "force_document", "open_store", "reap_document"]

CLEARED: Final = ("freed", "lost", "moved", "forgotten", "owners", "sockets", "leftovers")
"""What a reap clears, in the order in which it is told."""


def open_store(state_dir: Path, *, to_change: bool, allow_network_fs: bool) -> FileClaimStore:
    """The store: to change it, as a worker opens it; else to read.

    Raises:
        StoreRefused: there is none, or it may not be used so.
    """
    if not to_change:
        return FileClaimStore.inspect(state_dir)
    return FileClaimStore.open(state_dir, service=None, allow_network_fs=allow_network_fs)


def force_document(
    store: FileClaimStore, rollout_id: str, *, expect_epoch: int | None, reason: str, yes: bool
) -> dict[str, Any]:
    """Take a rollout away from its owner, alive or not.

    Args:
        store: whose claim; opened to change it where *yes*.
        rollout_id: whose claim.
        expect_epoch: the epoch that the operator saw; None where the record is unreadable.
        reason: for the record.
        yes: do it.

    Raises:
        ForceRefused: another thing stands there than the one that was named. Nothing was changed.
        StoreUnavailable: with *yes*, the claim may be fenced already; force it again.
    """
    found = store.forceable(rollout_id, expect_epoch=expect_epoch)
    fenced = None
    if yes:
        fenced = store.force(rollout_id, expect_epoch=expect_epoch, reason=reason)
    return {
        "schema": SCHEMA,
        "store_id": store.store_id,
        "done": yes,
        "rollout_id": rollout_id,
        "kind": found.kind if found else None,
        "state": found.state if found else None,
        "worker_id": found.owner.nonce if found else None,
        "claim_epoch": found.claim_epoch if found else None,
        "fenced_epoch": fenced,
    }


def reap_document(
    store: FileClaimStore,
    *,
    owner_missing: str | None = None,
    tombstones_older_than: timedelta | None = None,
    yes: bool,
    step: Callable[[], bool],
) -> dict[str, Any]:
    """Free the rollouts of workers that are proven dead, and clear what they left.

    Args:
        store: whose claims; opened to change it where *yes*.
        owner_missing: instead, free the claims of this worker, whose owner file is gone.
        tombstones_older_than: also forget sessions that were lost longer ago.
        yes: do it.
        step: called at each record; says True to go on.

    Raises:
        ForceRefused: with *owner_missing*, the owner file that the claims name is there.
        StoreUnavailable: the store cannot be read; what was cleared stays cleared.
    """
    if owner_missing is None:
        age = timedelta.max if tombstones_older_than is None else tombstones_older_than
        swept = sweep(
            store,
            now=datetime.now(UTC),
            tombstone_age_max=age,
            dry_run=not yes,
            pace=step,
        )
        unreadable, failed, ended = swept.unreadable, swept.failed, None
        cleared = {
            "freed": [claim.rollout_id for claim in swept.freed],
            "lost": [claim.rollout_id for claim in swept.lost],
            "forgotten": [claim.rollout_id for claim in swept.forgotten],
            "owners": list(swept.owners),
            "sockets": list(swept.sockets),
            "leftovers": list(swept.leftovers),
        }
    else:
        orphans = free_orphans(store, owner_missing, dry_run=not yes, step=step)
        unreadable, failed = orphans.unreadable, orphans.failed
        ended = orphans.ended_by
        names = ("freed", "lost", "moved")
        cleared = {name: list(getattr(orphans, name)) for name in names}
    return {
        "schema": SCHEMA,
        "done": yes,
        "owner_missing": owner_missing,
        **{name: cleared.get(name, []) for name in CLEARED},
        "unreadable": [described(bad) for bad in unreadable],
        "failed": [described(bad) for bad in failed],
        "ended_by": None if ended is None else str(ended),  # why the rest was not tried
    }
