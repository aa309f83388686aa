# SPDX-License-Identifier: Apache-2.0
"""The journal of an agent server: what its rollouts did, and the results that nobody has yet (F1).

F1  The journal keeps the highest claim epoch that it saw of a rollout. Every write names the epoch
    that it is made under, and is refused below that one in the transaction that would have written.
    Opening a rollout at an epoch shuts out every earlier owner for good. The file is bound to one
    claim store: epochs of another cannot be compared.

Completion and the entry in the outbox are one transaction: what can be continued (``open``) and
what can be delivered (``completed``) are never the same rollout. Every call either changes what it
says or changes nothing.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from rollout_router.checkpoint.database import BUSY_S, Database
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.refusing import (
    Completed,
    check_epoch,
    check_same,
    completed_of,
    known,
    not_open,
    restartable,
    with_receipt,
)
from rollout_router.checkpoint.rows import DISCARDED, Recorded, Rollout, receipt_of
from rollout_router.checkpoint.tables import (
    SCHEMA,
    VERSION,
    insert,
    insert_row,
    remove_intent,
    rollout_of,
    rows_of,
    update_rollout,
)
from rollout_router.checkpoint.wire import IDENTIFIER

__all__ = ["Completed", "Journal", "Opened"]

_PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL})
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A rollout under the claim epoch that opened it, with everything that it recorded."""

    rollout: Rollout
    rows: tuple[Recorded, ...]


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Journal:
    """The journal in one file, shared by all workers of one agent server.

    Args:
        path: see :class:`Database`.
        instance: the name of the server; no other one's checkpoints or results are ever its own.
        run: the name of the training or evaluation run: ids of rollouts repeat between runs.
        store_id: the claim store whose epochs fence this file.
        now: the time in UTC, to print.
        on_poisoned: see :class:`Database`.

    Raises:
        CheckpointRefusal: ``journal_of_another``, or as :class:`Database`.
        ValueError: a name has another form than an id: no checkpoint could be published under it.
    """

    def __init__(
        self,
        path: Path,
        *,
        instance: str,
        run: str,
        store_id: str,
        now: Callable[[], str] = _utc_now,
        on_poisoned: Callable[[], None] = lambda: None,
    ) -> None:
        for name in (instance, run, store_id):
            if IDENTIFIER.fullmatch(name) is None:
                raise ValueError(f"not an id: {name!r:.210}")
        self.instance, self.run, self.store_id = instance, run, store_id
        self.now = now
        self.database = Database(
            path,
            schema=SCHEMA,
            version=VERSION,
            what="the journal",
            code="journal_unavailable",
            on_poisoned=on_poisoned,
        )
        try:
            if self.database.read(self._unbound):
                self.database.write_now(self._bind)
        except BaseException:
            self.database.close()
            raise

    @classmethod
    def existing(cls, path: Path) -> Self:
        """The journal at *path*, as whom it says it is of: for commands.

        Raises:
            CheckpointRefusal: ``journal_of_another``: there is none; or as for opening it.
        """
        # Not read-only: what a death left half written is taken back by whoever reads next.
        file = f"{path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(file, uri=True, timeout=BUSY_S)) as db:
                told = dict(db.execute("SELECT name, value FROM meta"))
            return cls(path, **{name: told[name] for name in ("instance", "run", "store_id")})
        except (sqlite3.Error, KeyError) as error:
            passing = getattr(error, "sqlite_errorcode", None) in _PASSING
            raise CheckpointRefusal(
                "journal_unavailable" if passing else "journal_of_another",
                f"{path} cannot be read as the journal of an agent server: {error!r}",
            ) from error

    def close(self) -> None:
        """Finish what is being written."""
        self.database.close()

    async def open_rollout(
        self,
        rollout_id: str,
        claim_epoch: int,
        *,
        task: Any,
        loop_digest: str,
        configuration_digest: str,
    ) -> Opened | Completed:
        """Begin a rollout, or go on with it, as the owner under *claim_epoch* (F1).

        Returns:
            What it recorded, not checked yet; or its result, where it is completed.

        Raises:
            CheckpointRefusal: ``stale_attempt``, ``task_changed``, ``loop_changed``,
                ``configuration_changed``, ``result_acknowledged``, ``rollout_quarantined``,
                ``chain_broken`` of a result, or the journal's own. It is as it was.
        """
        asked = (canonical(task), loop_digest, configuration_digest)
        new = Rollout.begun(
            rollout_id,
            claim_epoch,
            task=asked[0],
            loop_digest=loop_digest,
            configuration_digest=configuration_digest,
            at=self.now(),
        )

        def change(db: sqlite3.Connection) -> Opened | Completed:
            found = rollout_of(db, rollout_id)
            if found is None:
                insert(db, "rollout", asdict(new))
                return Opened(rollout=new, rows=())
            check_epoch(found, claim_epoch)
            if found.discarded:
                adopted = replace(new, restarts=found.restarts, first=found.first)
                db.execute(
                    "UPDATE rollout SET task=?, loop_digest=?, configuration_digest=?, head=?,"
                    " reason='' WHERE rollout_id=?",
                    (*asked, adopted.genesis, rollout_id),
                )
            elif found.status not in ("open", "completed"):
                raise not_open(found)
            else:
                check_same(found, *asked)
            if found.claim_epoch < claim_epoch:
                db.execute(
                    "UPDATE rollout SET claim_epoch=?, attempt=attempt+1, changed_at=?"
                    " WHERE rollout_id=?",
                    (claim_epoch, self.now(), rollout_id),
                )
            db.execute("UPDATE rollout SET reopened=reopened+1 WHERE rollout_id=?", (rollout_id,))
            if found.status == "completed":
                return completed_of(db, rollout_id)
            return Opened(rollout=known(db, rollout_id), rows=rows_of(db, rollout_id))

        return await self.database.write(change)

    async def intend(self, rollout: Rollout, row: Recorded) -> None:
        """Write down that an operation is about to be performed once.

        Raises:
            CheckpointRefusal: as for :meth:`append`.
        """
        await self._fenced(rollout, lambda db: insert_row(db, rollout.rollout_id, row))

    async def withdraw(self, rollout: Rollout, row: Recorded) -> None:
        """Take back an intent that certainly came to nothing.

        Raises:
            CheckpointRefusal: as for :meth:`append`.
        """
        await self._fenced(rollout, lambda db: remove_intent(db, rollout.rollout_id, row.sequence))

    async def append(self, rollout: Rollout, row: Recorded) -> Rollout:
        """Record the result of an operation, in place of its intent where there is one.

        Returns:
            The rollout after it.

        Raises:
            CheckpointRefusal: ``stale_attempt``: another owner opened it, or it was restarted;
                or the journal's own. Nothing was recorded.
        """

        def change(db: sqlite3.Connection) -> Rollout:
            insert_row(db, rollout.rollout_id, row)
            db.execute(
                "UPDATE rollout SET next=next+1, head=?, reopened=0, changed_at=?"
                " WHERE rollout_id=?",
                (row.chain, self.now(), rollout.rollout_id),
            )
            return known(db, rollout.rollout_id)

        return await self._fenced(rollout, change)

    async def complete(self, rollout: Rollout, payload: Any) -> Completed:
        """Make the rollout a result that waits to be acknowledged: one transaction.

        Raises:
            CheckpointRefusal: as for :meth:`append`.
        """
        text = canonical(payload)
        done = Completed(
            rollout_id=rollout.rollout_id, receipt=receipt_of(rollout, text), payload=text
        )

        def change(db: sqlite3.Connection) -> Completed:
            self._mark(db, rollout.rollout_id, "completed", "")
            insert(db, "outbox", asdict(done))
            return done

        return await self._fenced(rollout, change)

    async def restart(self, rollout: Rollout, reason: str) -> Rollout:
        """Give up what was recorded: the next operation is the first one, with a number of its own.

        Raises:
            CheckpointRefusal: as for :meth:`append`.
        """
        return await self._fenced(rollout, lambda db: self._restarted(db, rollout, reason))

    async def quarantine(self, rollout: Rollout, reason: str) -> None:
        """Set the rollout aside with a code as its reason; what it recorded stays.

        Raises:
            CheckpointRefusal: as for :meth:`append`.
        """
        await self._fenced(
            rollout, lambda db: self._mark(db, rollout.rollout_id, "quarantined", reason)
        )

    async def check_receipt(self, rollout_id: str, claim_epoch: int, receipt: str) -> None:
        """Look whether :meth:`acknowledge` would be refused.

        Raises:
            CheckpointRefusal: as there.
        """
        await self.database.read_in_thread(
            lambda db: with_receipt(db, rollout_id, claim_epoch, receipt)
        )

    def environment_name(self, rollout_id: str, restarts: int) -> str:
        """The environment of a rollout that began anew so often, here and in no other journal."""
        whose = digest(canonical([self.instance, self.run, rollout_id, restarts]))
        return f"{rollout_id[:150]}-{restarts}-{whose[:16]}"

    async def environments_of(self, rollout_id: str) -> set[str]:
        """Every environment that a rollout may have, those before its restarts too."""

        def look(db: sqlite3.Connection) -> set[str]:
            found, rows = rollout_of(db, rollout_id), rows_of(db, rollout_id)
            if found is None or found.status == "acknowledged":
                return set()
            begun = range(found.restarts + 1)
            return {
                *(self.environment_name(rollout_id, number) for number in begun),
                *(row.environment_id for row in rows if row.environment_id is not None),
            }

        return await self.database.read_in_thread(look)

    async def acknowledge(self, rollout_id: str, claim_epoch: int, receipt: str) -> None:
        """Free a result whose taker has it. Again with the same receipt is fine.

        Raises:
            CheckpointRefusal: ``rollout_unknown``, ``receipt_mismatch``, ``rollout_open``,
                ``stale_attempt``, or the journal's own. Everything is kept.
        """

        def change(db: sqlite3.Connection) -> None:
            found = with_receipt(db, rollout_id, claim_epoch, receipt)
            db.execute(
                "UPDATE rollout SET claim_epoch=? WHERE rollout_id=?", (claim_epoch, rollout_id)
            )
            if found.status == "completed":
                db.execute("DELETE FROM operation WHERE rollout_id=?", (rollout_id,))
                db.execute("UPDATE outbox SET payload=NULL WHERE rollout_id=?", (rollout_id,))
                db.execute("UPDATE rollout SET task='null' WHERE rollout_id=?", (rollout_id,))
                self._mark(db, rollout_id, "acknowledged", "")

        await self.database.write(change)

    def restart_now(self, rollout_id: str) -> Rollout:
        """An operator's restart: also of a rollout that is quarantined. Blocks.

        An owner that is at work on it is refused at its next write. The next owner may bring
        another loop, configuration or task: nothing is left that they could contradict.

        Raises:
            CheckpointRefusal: ``rollout_unknown``, ``rollout_completed``; it is as it was.
        """

        def change(db: sqlite3.Connection) -> Rollout:
            return self._restarted(db, restartable(db, rollout_id), DISCARDED)

        return self.database.write_now(change)

    async def _fenced(
        self, rollout: Rollout, change: Callable[[sqlite3.Connection], _Result]
    ) -> _Result:
        """Run *change* where the rollout is open, under this epoch, and as *rollout* has it."""

        def checked(db: sqlite3.Connection) -> _Result:
            found = known(db, rollout.rollout_id)
            check_epoch(found, rollout.claim_epoch)
            if found.status != "open":
                raise not_open(found)
            if (found.restarts, found.next, found.head) != (
                rollout.restarts,
                rollout.next,
                rollout.head,
            ):
                raise found.refused("stale_attempt", "another one wrote to it")
            return change(db)

        return await self.database.write(checked)

    def _mark(self, db: sqlite3.Connection, rollout_id: str, status: str, reason: str) -> None:
        db.execute(
            "UPDATE rollout SET status=?, reason=?, changed_at=? WHERE rollout_id=?",
            (status, reason, self.now(), rollout_id),
        )

    def _restarted(self, db: sqlite3.Connection, rollout: Rollout, reason: str) -> Rollout:
        anew = replace(rollout.begun_anew(reason), changed_at=self.now())
        for table in ("operation", "outbox"):  # a result only where it is damaged
            db.execute(f"DELETE FROM {table} WHERE rollout_id=?", (rollout.rollout_id,))  # noqa: S608 - our names
        update_rollout(db, anew)
        return anew

    def _unbound(self, db: sqlite3.Connection) -> dict[str, str]:
        """What the file does not say yet of whose it is."""
        found = dict(db.execute("SELECT name, value FROM meta"))
        ours = {"instance": self.instance, "run": self.run, "store_id": self.store_id}
        for name, value in ours.items():
            if found.get(name, value) != value:
                raise CheckpointRefusal(
                    "journal_of_another",
                    f"the journal at {self.database.path} belongs to {name} {found[name]!r}, not to"
                    f" {value!r}: use a file of its own; a checkpoint can be restored into it",
                )
        return {name: value for name, value in ours.items() if name not in found}

    def _bind(self, db: sqlite3.Connection) -> None:
        db.executemany("INSERT INTO meta VALUES (?, ?)", self._unbound(db).items())
