# SPDX-License-Identifier: Apache-2.0
"""Rollouts of an archive on their way into a journal, one at a time; most run in a transaction.

An archive may be larger than the memory. Of what a rollout recorded nothing changes, and none of
its numbers is used again. Claim epochs stay a floor in their own store, and say nothing in another.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace

from rollout_router.checkpoint.archive import Archive
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.records import Kept, parse
from rollout_router.checkpoint.tables import insert, insert_row, rollout_of
from rollout_router.operate import Blocker

__all__ = ["check_absent", "kept_in", "not_quiet", "put_back"]


def kept_in(archive: Archive) -> Iterator[Kept]:
    """What *archive* keeps of each rollout, checked.

    Raises:
        CheckpointRefusal: as :func:`parse` and :meth:`Archive.records`.
    """
    return map(parse, archive.records())


def check_absent(db: sqlite3.Connection, rollout_ids: Iterable[str]) -> None:
    """Refuse with ``restore_into_live`` where the journal knows one of them."""
    for rollout_id in rollout_ids:
        if rollout_of(db, rollout_id) is not None:
            raise CheckpointRefusal(
                "restore_into_live",
                f"rollout {rollout_id}: this journal knows it already; restore into a new one",
                rollout_id=rollout_id,
            )


def not_quiet(checkpoint_id: str, blockers: Sequence[Blocker]) -> CheckpointRefusal:
    """Something is in hand; the first of it are named."""
    named = "; ".join(
        f"worker {one.worker_id}, rollout {one.rollout_id}: {one.why}" for one in blockers[:10]
    )
    return CheckpointRefusal(
        "checkpoint_not_quiet",
        f"checkpoint {checkpoint_id}: nothing was restored, for {len(blockers)} are in hand:"
        f" {named}",
    )


def put_back(db: sqlite3.Connection, archive: Archive, *, store_id: str) -> None:
    """Write all of it into a journal that is fenced by *store_id* and knows none of it."""
    for kept in kept_in(archive):
        rollout = kept.rollout
        check_absent(db, [rollout.rollout_id])
        if kept.kind == "restart":
            rollout = rollout.begun_anew(kept.reason)
        if archive.manifest.store_id != store_id:
            rollout = replace(rollout, claim_epoch=0)
        insert(db, "rollout", asdict(rollout))
        for row in kept.rows:
            insert_row(db, rollout.rollout_id, row)
        if kept.receipt is not None:
            outbox = {"receipt": kept.receipt, "payload": kept.payload}
            insert(db, "outbox", {"rollout_id": rollout.rollout_id, **outbox})
