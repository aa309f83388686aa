# SPDX-License-Identifier: Apache-2.0
"""What a journal looks at before it changes anything (F1). All of it runs in a transaction."""

import sqlite3
from dataclasses import dataclass

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.rows import Rollout, receipt_of
from rollout_router.checkpoint.tables import rollout_of

__all__ = [
    "Completed",
    "check_epoch",
    "check_same",
    "completed_of",
    "known",
    "not_open",
    "restartable",
    "with_receipt",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A result, until it is acknowledged."""

    rollout_id: str
    receipt: str
    payload: str  # canonical JSON


def known(db: sqlite3.Connection, rollout_id: str) -> Rollout:
    """One rollout; ``rollout_unknown`` where there is none."""
    found = rollout_of(db, rollout_id)
    if found is None:
        raise CheckpointRefusal(
            "rollout_unknown",
            f"rollout {rollout_id}: this journal does not know it",
            rollout_id=rollout_id,
        )
    return found


def restartable(db: sqlite3.Connection, rollout_id: str) -> Rollout:
    """One rollout that may begin anew; ``rollout_unknown``, ``rollout_completed``.

    One that is completed may where its result is damaged: nobody will ever be given that.
    """
    found = known(db, rollout_id)
    if found.status == "acknowledged" or (found.status == "completed" and _told(db, rollout_id)):
        raise found.refused("rollout_completed", "it is completed; its result stands")
    return found


def _told(db: sqlite3.Connection, rollout_id: str) -> bool:
    """Whether its result is what was completed."""
    try:
        completed_of(db, rollout_id)
    except CheckpointRefusal:
        return False
    return True


def with_receipt(
    db: sqlite3.Connection, rollout_id: str, claim_epoch: int, receipt: str
) -> Rollout:
    """A rollout whose result has *receipt*, asked for under an epoch that still counts."""
    found = known(db, rollout_id)
    check_epoch(found, claim_epoch)
    held = db.execute("SELECT receipt FROM outbox WHERE rollout_id=?", (rollout_id,)).fetchone()
    if held is None:
        raise found.refused("rollout_open", "it is not completed: there is no result")
    if held[0] != receipt:
        raise found.refused("receipt_mismatch", "that is not the receipt of its result")
    return found


def completed_of(db: sqlite3.Connection, rollout_id: str) -> Completed:
    """The result of a rollout that is completed; ``chain_broken`` where it is another by now."""
    found = known(db, rollout_id)
    row = db.execute(
        "SELECT rollout_id, receipt, payload FROM outbox WHERE rollout_id=?", (rollout_id,)
    ).fetchone()
    if row is None or row[2] is None or receipt_of(found, row[2]) != row[1]:
        raise found.refused("chain_broken", "its result is not what it was completed with")
    return Completed(rollout_id=row[0], receipt=row[1], payload=row[2])


def check_epoch(found: Rollout, claim_epoch: int) -> None:
    """Refuse an epoch below the highest that was seen: ``stale_attempt``."""
    if claim_epoch < found.claim_epoch:
        raise found.refused(
            "stale_attempt", f"claim epoch {claim_epoch} is behind {found.claim_epoch}"
        )


def check_same(found: Rollout, task: str, loop_digest: str, configuration_digest: str) -> None:
    """Refuse what would contradict the record: ``task_changed`` and its like."""
    for what, asked, recorded in (
        ("task", task, found.task),
        ("loop", loop_digest, found.loop_digest),
        ("configuration", configuration_digest, found.configuration_digest),
    ):
        # A result stands, whatever loop would make of it now.
        if asked != recorded and (found.status == "open" or what == "task"):
            raise found.refused(
                f"{what}_changed",
                f"its {what} is not the one that it was begun with; give it that one, or restart"
                " it (`rollout-router sessions restart`)",
            )


def not_open(found: Rollout) -> CheckpointRefusal:
    """Why a rollout that is not open cannot be continued."""
    match found.status:
        case "quarantined":
            why = f"it was set aside ({found.reason}): `rollout-router sessions restart` begins it"
            return found.refused("rollout_quarantined", f"{why} anew")
        case "acknowledged":
            return found.refused("result_acknowledged", "its result was taken and acknowledged")
        case _:
            return found.refused("rollout_completed", "it is completed")
