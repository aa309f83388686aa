# SPDX-License-Identifier: Apache-2.0
"""The tables of a journal, and how their rows become values. All of it runs in a transaction.

``operation`` holds what is recorded; ``outbox`` a result until it is acknowledged, and its receipt
from then on; ``checkpoint`` what became of each checkpoint (see :mod:`.control`).
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

from rollout_router.checkpoint.phases import Checkpoint
from rollout_router.checkpoint.rows import Recorded, Rollout

__all__ = [
    "SCHEMA",
    "VERSION",
    "all_rollouts",
    "checkpoints",
    "insert",
    "insert_row",
    "outbox_of",
    "remove_intent",
    "rollout_of",
    "rows_of",
    "save_checkpoint",
    "update_rollout",
]

VERSION: Final = 1
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS rollout (
    rollout_id TEXT PRIMARY KEY,
    claim_epoch INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    restarts INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'completed', 'acknowledged', 'quarantined')),
    reason TEXT NOT NULL,
    task TEXT NOT NULL,
    loop_digest TEXT NOT NULL,
    configuration_digest TEXT NOT NULL,
    first INTEGER NOT NULL,
    next INTEGER NOT NULL,
    head TEXT NOT NULL,
    reopened INTEGER NOT NULL,
    changed_at TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS operation (
    rollout_id TEXT NOT NULL REFERENCES rollout,
    sequence INTEGER NOT NULL,
    claim_epoch INTEGER NOT NULL,
    kind TEXT NOT NULL,
    effect TEXT NOT NULL CHECK (effect IN ('keyed', 'resample', 'once')),
    environment_id TEXT,
    request_digest TEXT NOT NULL,
    result TEXT,
    revision INTEGER,
    orphans INTEGER NOT NULL,
    chain TEXT,
    PRIMARY KEY (rollout_id, sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outbox (
    rollout_id TEXT PRIMARY KEY REFERENCES rollout,
    receipt TEXT NOT NULL,
    payload TEXT
) STRICT;
CREATE TABLE IF NOT EXISTS checkpoint (
    checkpoint_id TEXT PRIMARY KEY,
    phase TEXT NOT NULL,
    arguments TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    until REAL NOT NULL,
    changed_at TEXT NOT NULL
) STRICT
"""

_ROLLOUT: Final = ", ".join(field.name for field in fields(Rollout))
_CHECKPOINT: Final = ", ".join(field.name for field in fields(Checkpoint))
_RECORDED: Final = ", ".join(field.name for field in fields(Recorded))


def rollout_of(db: sqlite3.Connection, rollout_id: str) -> Rollout | None:
    """One rollout, or None."""
    found = db.execute(f"SELECT {_ROLLOUT} FROM rollout WHERE rollout_id=?", (rollout_id,))  # noqa: S608 - our columns
    row = found.fetchone()
    return None if row is None else _rollout(row)


def all_rollouts(db: sqlite3.Connection) -> list[Rollout]:
    """Every rollout, by id."""
    return [_rollout(row) for row in db.execute(f"SELECT {_ROLLOUT} FROM rollout ORDER BY 1")]  # noqa: S608 - our columns


def rows_of(db: sqlite3.Connection, rollout_id: str) -> tuple[Recorded, ...]:
    """What a rollout recorded, in order."""
    query = f"SELECT {_RECORDED} FROM operation WHERE rollout_id=? ORDER BY sequence"  # noqa: S608 - our columns
    names = [field.name for field in fields(Recorded)]
    return tuple(
        Recorded(**dict(zip(names, row, strict=True))) for row in db.execute(query, (rollout_id,))
    )


def insert(db: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> None:
    """One row of *table*, an own name."""
    places = ", ".join("?" * len(values))
    db.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})",  # noqa: S608 - our names
        tuple(values.values()),
    )


def update_rollout(db: sqlite3.Connection, rollout: Rollout) -> None:
    """Write every field of a rollout that is there."""
    values = asdict(rollout)
    changes = ", ".join(f"{name}=?" for name in values)
    db.execute(
        f"UPDATE rollout SET {changes} WHERE rollout_id=?",  # noqa: S608 - our columns
        (*values.values(), rollout.rollout_id),
    )


def insert_row(db: sqlite3.Connection, rollout_id: str, row: Recorded) -> None:
    """One operation, or an intent, in place of an intent with its number."""
    remove_intent(db, rollout_id, row.sequence)
    insert(db, "operation", {"rollout_id": rollout_id, **asdict(row)})


def remove_intent(db: sqlite3.Connection, rollout_id: str, sequence: int) -> None:
    """Take back an operation without a result, if there is one."""
    db.execute(
        "DELETE FROM operation WHERE rollout_id=? AND sequence=? AND result IS NULL",
        (rollout_id, sequence),
    )


def _rollout(row: tuple[Any, ...]) -> Rollout:
    return Rollout(**dict(zip([field.name for field in fields(Rollout)], row, strict=True)))


def outbox_of(db: sqlite3.Connection, rollout_id: str) -> tuple[str, str | None] | None:
    """Receipt and payload of a completed rollout; no payload once it was acknowledged."""
    found: tuple[str, str | None] | None = db.execute(
        "SELECT receipt, payload FROM outbox WHERE rollout_id=?", (rollout_id,)
    ).fetchone()
    return found


def checkpoints(db: sqlite3.Connection) -> list[Checkpoint]:
    """Every checkpoint that this journal knows, in the order of their first change."""
    rows = db.execute(f"SELECT {_CHECKPOINT} FROM checkpoint ORDER BY rowid")  # noqa: S608 - our columns
    names = [field.name for field in fields(Checkpoint)]
    return [Checkpoint(**dict(zip(names, row, strict=True))) for row in rows]


def save_checkpoint(db: sqlite3.Connection, checkpoint: Checkpoint) -> None:
    """Write what became of a checkpoint; one that never began is taken out."""
    if checkpoint.phase == "none":
        db.execute("DELETE FROM checkpoint WHERE checkpoint_id=?", (checkpoint.checkpoint_id,))
        return
    values = asdict(checkpoint)
    changes = ", ".join(f"{name}=excluded.{name}" for name in values)
    db.execute(
        f"INSERT INTO checkpoint ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"  # noqa: S608 - our columns
        f" ON CONFLICT (checkpoint_id) DO UPDATE SET {changes}",
        tuple(values.values()),
    )
