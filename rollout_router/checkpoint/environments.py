# SPDX-License-Identifier: Apache-2.0
"""The environments of one server in one SQLite file: state, last reply and fence of each.

* A row changes as a whole, in one transaction that is on the disk when it returns.
* Every change names the row that it was decided on (its number, revision and fence) and changes
  nothing where another process was faster: ``environment_unavailable``, decide anew.
* A number is never used twice: a row that was removed and made anew is another one, also where its
  revision is the same.
* A removed environment leaves its highest sequence and its fence. Of those rows the oldest go
  beyond :data:`FORGOTTEN_MAX`; only then could a late repeat of an operation that made one make it
  again: an orphan, which costs memory, and which nobody uses.
"""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rollout_router.checkpoint.database import Database
from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.replies import Reply

__all__ = ["FORGOTTEN_MAX", "Environment", "Environments", "Forgotten", "Last"]

FORGOTTEN_MAX: Final = 100_000
"""Removed environments that are remembered, about 200 bytes each: 20 MB on the disk."""

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS environment (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  environment_id TEXT NOT NULL UNIQUE,
  rollout_id TEXT NOT NULL,
  store_id TEXT NOT NULL,
  claim_epoch INTEGER NOT NULL,
  revision INTEGER NOT NULL,
  lost INTEGER NOT NULL,
  sequence INTEGER NOT NULL,
  request_digest TEXT NOT NULL,
  status INTEGER NOT NULL,
  headers TEXT NOT NULL,
  body BLOB NOT NULL,
  state BLOB
) STRICT;
CREATE TABLE IF NOT EXISTS forgotten (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  environment_id TEXT NOT NULL UNIQUE,
  rollout_id TEXT NOT NULL,
  store_id TEXT NOT NULL,
  claim_epoch INTEGER NOT NULL,
  sequence INTEGER NOT NULL
) STRICT
"""
_LOOK: Final = """
SELECT number, rollout_id, store_id, claim_epoch, revision, lost, sequence, request_digest, status,
  headers, body, CASE WHEN (number, revision) = (?, ?) THEN NULL ELSE state END
FROM environment WHERE environment_id = ?
"""
_LOOK_BACK: Final = """
SELECT rollout_id, store_id, claim_epoch, sequence FROM forgotten WHERE environment_id = ?
"""
_ADD: Final = """
INSERT INTO environment (environment_id, rollout_id, store_id, claim_epoch, revision, lost,
  sequence, request_digest, status, headers, body, state) VALUES (?,?,?,?,?,0,?,?,?,?,?,?)
"""
_ADVANCE: Final = """
UPDATE environment SET store_id = ?, claim_epoch = ?, revision = ?, sequence = ?,
  request_digest = ?, status = ?, headers = ?, body = ?, state = ?
"""
_UNCHANGED: Final = " WHERE (number, revision, store_id, claim_epoch, lost) = (?, ?, ?, ?, 0)"
_REMEMBER: Final = """
INSERT OR REPLACE INTO forgotten (environment_id, rollout_id, store_id, claim_epoch, sequence)
SELECT environment_id, rollout_id, store_id, claim_epoch, sequence FROM environment
WHERE environment_id = ?
"""
_TRIM: Final = """
DELETE FROM forgotten WHERE number <= (SELECT max(number) FROM forgotten) - ?
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """The last operation that an environment did, and what it answered."""

    sequence: int
    request_digest: str
    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One recorded environment, as it is after its last operation.

    Attributes:
        revision: counts the operations that it did.
        claim_epoch: the highest that it met; 0 where it met none of this store.
        state: None: nothing of it outlives its process.
        number: of its row; 0 before it is recorded.
        lost: it failed and cannot be brought back.
    """

    environment_id: str
    rollout_id: str
    store_id: str
    claim_epoch: int
    revision: int
    last: Last
    state: bytes | None
    number: int = 0
    lost: bool = False

    @property
    def held(self) -> tuple[int, int]:
        """What tells this state of it from every other."""
        return self.number, self.revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What is left of a removed environment: no operation up to *sequence* makes it again."""

    environment_id: str
    rollout_id: str
    store_id: str
    claim_epoch: int
    sequence: int


class Environments:
    """The file. Every method refuses with ``environment_unavailable`` where it cannot be used.

    Args:
        path: of the SQLite file, on a local disk.
        forgotten_max: removed environments that are remembered.
        on_poisoned: see :class:`Database`.

    Raises:
        CheckpointRefusal: as :class:`Database`; nothing was changed.
    """

    def __init__(
        self,
        path: Path,
        *,
        forgotten_max: int = FORGOTTEN_MAX,
        on_poisoned: Callable[[], None] = lambda: None,
    ) -> None:
        self._forgotten_max = forgotten_max
        self._database = Database(
            path,
            schema=_SCHEMA,
            version=_VERSION,
            what="the environments",
            code="environment_unavailable",
            on_poisoned=on_poisoned,
        )

    async def look(
        self, environment_id: str, *, held: tuple[int, int] | None = None
    ) -> Environment | Forgotten | None:
        """What is recorded, in one read; without the state where it is the one that is *held*."""
        return await self._database.read_in_thread(
            lambda connection: _look(connection, environment_id, held)
        )

    async def record(self, before: Environment | None, after: Environment) -> Environment:
        """Make *after* the successor of *before*, or the first of its id; with its number.

        Raises:
            CheckpointRefusal: ``environment_unavailable``: *before* is not what is recorded now.
        """

        def change(connection: sqlite3.Connection) -> Environment:
            if before is not None:
                _change(connection, before, _ADVANCE, *_written(after)[2:])
                return replace(after, number=before.number)
            found = _look(connection, after.environment_id, None)
            if isinstance(found, Environment) or (
                found is not None and found.sequence >= after.last.sequence
            ):
                raise _overtaken(after)
            return _add(connection, after)

        return await self._database.write(change)

    async def raise_fence(self, before: Environment, claim_epoch: int) -> None:
        """Refuse lower epochs from now on.

        Raises:
            CheckpointRefusal: ``environment_unavailable``: *before* is not what is recorded now.
        """
        await self._database.write(
            lambda connection: _change(
                connection, before, "UPDATE environment SET claim_epoch = ?", claim_epoch
            )
        )

    async def lose(self, before: Environment) -> None:
        """Record that it cannot be brought back; as :meth:`raise_fence`."""
        await self._database.write(
            lambda connection: _change(connection, before, "UPDATE environment SET lost = 1")
        )

    async def restore(self, environment: Environment) -> str | None:
        """Record it where there is none of its id; where it is recorded already, nothing.

        Its fence is no lower than that of a removed one of the same store.

        Returns:
            The name of the import, for :meth:`take_back`; None where it was recorded already.

        Raises:
            CheckpointRefusal: ``restore_conflict``: another one has its id; it is as it was.
        """

        def change(connection: sqlite3.Connection) -> str | None:
            found = _look(connection, environment.environment_id, None)
            if isinstance(found, Environment):
                fence = max(found.claim_epoch, environment.claim_epoch)
                if replace(environment, number=found.number, claim_epoch=fence) != found:
                    raise CheckpointRefusal(
                        "restore_conflict",
                        f"another environment {environment.environment_id} is here, at revision"
                        f" {found.revision}: remove it first, or leave it",
                        rollout_id=found.rollout_id,
                    )
                return None
            floor = 0
            if found is not None and found.store_id == environment.store_id:
                floor = found.claim_epoch
            epoch = max(floor, environment.claim_epoch)
            # What is left of a removed one stays below it, for who takes it back.
            return _import_of(_insert(connection, replace(environment, claim_epoch=epoch)))

        return await self._database.write(change)

    async def take_back(self, environment_id: str, made: str) -> None:
        """Undo the import *made*, as if it never had been; nothing where there is no environment.

        Raises:
            CheckpointRefusal: ``restore_conflict``: it was used since, or is another one.
        """

        def change(connection: sqlite3.Connection) -> None:
            found = _look(connection, environment_id, None)
            if not isinstance(found, Environment):
                return
            if _import_of(found) != made or found.lost:
                raise CheckpointRefusal(
                    "restore_conflict",
                    f"environment {environment_id} was used since it was imported: it stays",
                    rollout_id=found.rollout_id,
                )
            connection.execute("DELETE FROM environment WHERE number = ?", (found.number,))

        await self._database.write(change)

    async def forget(self, environment_id: str) -> None:
        """Remove it, and remember that it was here. Nothing where there is none."""

        def change(connection: sqlite3.Connection) -> None:
            connection.execute(_REMEMBER, (environment_id,))
            connection.execute(
                "DELETE FROM environment WHERE environment_id = ?", (environment_id,)
            )
            connection.execute(_TRIM, (self._forgotten_max,))

        await self._database.write(change)

    def close(self) -> None:
        """Write what waits; what is asked for later is refused."""
        self._database.close()


def _look(
    connection: sqlite3.Connection, environment_id: str, held: tuple[int, int] | None
) -> Environment | Forgotten | None:
    row = connection.execute(_LOOK, (*(held or (0, 0)), environment_id)).fetchone()
    if row is not None:
        last = Last(
            sequence=row[6],
            request_digest=row[7],
            reply=Reply(
                status=row[8],
                headers=tuple((name, value) for name, value in json.loads(row[9])),
                body=row[10],
            ),
        )
        return Environment(
            environment_id=environment_id,
            number=row[0],
            rollout_id=row[1],
            store_id=row[2],
            claim_epoch=row[3],
            revision=row[4],
            lost=bool(row[5]),
            last=last,
            state=row[11],
        )
    left = connection.execute(_LOOK_BACK, (environment_id,)).fetchone()
    if left is None:
        return None
    names = ("rollout_id", "store_id", "claim_epoch", "sequence")
    return Forgotten(environment_id=environment_id, **dict(zip(names, left, strict=True)))


def _written(environment: Environment) -> tuple[str | int | bytes | None, ...]:
    last, reply = environment.last, environment.last.reply
    return (
        environment.environment_id,
        environment.rollout_id,
        environment.store_id,
        environment.claim_epoch,
        environment.revision,
        last.sequence,
        last.request_digest,
        reply.status,
        canonical(reply.headers),
        reply.body,
        environment.state,
    )


def _import_of(environment: Environment) -> str:
    """The name of its import while nobody used it: any use changes revision or fence."""
    return f"{environment.number}-{environment.revision}-{environment.claim_epoch}"


def _add(connection: sqlite3.Connection, environment: Environment) -> Environment:
    connection.execute(
        "DELETE FROM forgotten WHERE environment_id = ?", (environment.environment_id,)
    )
    return _insert(connection, environment)


def _insert(connection: sqlite3.Connection, environment: Environment) -> Environment:
    number = connection.execute(_ADD, _written(environment)).lastrowid
    if number is None:
        raise AssertionError("an INSERT has a row")
    return replace(environment, number=number)


def _change(
    connection: sqlite3.Connection,
    before: Environment,
    update: str,
    *values: str | int | bytes | None,
) -> None:
    fence = (before.number, before.revision, before.store_id, before.claim_epoch)
    if connection.execute(update + _UNCHANGED, (*values, *fence)).rowcount != 1:
        raise _overtaken(before)


def _overtaken(environment: Environment) -> CheckpointRefusal:
    return CheckpointRefusal(
        "environment_unavailable",
        f"another process of this server changed environment {environment.environment_id} in the"
        " meantime; nothing of this operation was recorded: send it again",
        rollout_id=environment.rollout_id,
        claim_epoch=environment.claim_epoch,
    )
