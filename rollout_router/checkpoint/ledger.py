# SPDX-License-Identifier: Apache-2.0
"""What a journal knows of each checkpoint: looked at, decided and written in one transaction.

A row says what was written; what it is now depends on the clock, and on the archive where a commit
was asked for: whoever committed it may have died after the manifest got its name. Of the archive
the one checkpoint that is meant is asked alone, and first without a lock of the journal.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout_router.checkpoint.archive import is_published
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.manifest import Heading
from rollout_router.checkpoint.phases import ACTIVE, Checkpoint, Event, after, follow
from rollout_router.checkpoint.tables import checkpoints, save_checkpoint
from rollout_router.checkpoint.wire import IDENTIFIER
from rollout_router.claims import Moment

__all__ = ["Ledger", "busy"]


class Ledger:
    """The checkpoints of one journal.

    Args:
        journal: whose.
        now: the present moment of this boot.
    """

    def __init__(self, journal: Journal, now: Callable[[], Moment]) -> None:
        self._journal = journal
        self._now = now

    def known(self) -> list[Checkpoint]:
        """Each in the phase that it is in now, ``unknown`` where its archive cannot be read."""
        found = []
        for one in self._journal.database.read(checkpoints):
            try:
                found.append(self._at(one))
            except CheckpointRefusal:  # archive_unavailable, and nothing else
                found.append(replace(one, phase="unknown"))
        return [one for one in found if one.phase != "none"]

    def has(self, checkpoint_id: str) -> bool:
        """Whether there is a row of it, whatever it says."""
        return checkpoint_id in self._journal.database.read(_rows)

    def look(
        self, checkpoint_id: str, event: Event, asked: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """The checkpoint as it is, where *event* may follow; as :meth:`step`."""
        rows = self._journal.database.read(_rows)
        return self._decided(rows, checkpoint_id, event, asked)[0]

    def step(
        self,
        checkpoint_id: str,
        event: Event,
        *,
        asked: Mapping[str, Any] | None = None,
        until: Moment | None = None,
        only_noted: bool = False,
        change: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> tuple[Checkpoint, Checkpoint]:
        """Look at a checkpoint, decide what follows, do *change* and write it: one transaction.

        With *only_noted* what is asked is written down alone. Returns it as it was and as it is.

        Raises:
            CheckpointRefusal: as :func:`after`; ``checkpoint_busy``: another one holds the gate;
                ``archive_unavailable``; or what *change* raises. Nothing was written.
            ValueError: the id has another form.
        """

        def act(db: sqlite3.Connection) -> tuple[Checkpoint, Checkpoint]:
            rows = _rows(db)
            before, done = self._decided(rows, checkpoint_id, event, asked)
            if only_noted:
                done = replace(done, phase=before.phase)
            if until is not None and done.phase in ACTIVE - {"restored"}:
                done = replace(done, boot_id=until.boot_id, until=until.seconds)
            change(db)
            if done != rows.get(checkpoint_id):
                done = replace(done, changed_at=self._journal.now())
                save_checkpoint(db, done)
            return before, done

        self.look(checkpoint_id, event, asked)  # an archive that hangs does so here
        return self._journal.database.write_now(act)

    def settle(self, checkpoint_id: str) -> Checkpoint:
        """The checkpoint as it is now, which is written down."""

        def act(db: sqlite3.Connection) -> Checkpoint:
            row = _rows(db).get(checkpoint_id, Checkpoint(checkpoint_id=checkpoint_id))
            found = self._at(row)
            if found != row:
                found = replace(found, changed_at=self._journal.now())
                save_checkpoint(db, found)
            return found

        return self._journal.database.write_now(act)

    def was_restored(self, checkpoint_id: str) -> bool:
        """Whether it was, after all that was asked to be written before."""
        row = self._journal.database.write_now(lambda db: _rows(db).get(checkpoint_id))
        return (
            row is not None and row.phase in ("restored", "resumed") and bool(row.asked("restore"))
        )

    def undo(self, before: Checkpoint, written: Checkpoint) -> bool:
        """Put *before* in the place of *written*, which ends where its budget is over.

        What others wrote meanwhile stays. Returns whether it holds the gate still.
        """

        def act(db: sqlite3.Connection) -> bool:
            found = _rows(db).get(before.checkpoint_id, before)
            if found == written != before:
                found = _ended(written) if self._is_over(written) else before
                save_checkpoint(db, found)
            return found.phase in ACTIVE and not self._is_over(found)

        return self._journal.database.write_now(act)

    def heading(self, checkpoint_id: str, asked: Mapping[str, Any]) -> Heading:
        """What its manifest begins with."""
        return Heading(
            instance=self._journal.instance,
            run=self._journal.run,
            checkpoint_id=checkpoint_id,
            store_id=self._journal.store_id,
            arguments_digest=digest(canonical(asked)),
        )

    def names(self, checkpoint_id: str) -> dict[str, str]:
        """What tells it from every other one."""
        return {
            "instance": self._journal.instance,
            "run": self._journal.run,
            "checkpoint_id": checkpoint_id,
        }

    def _decided(
        self,
        rows: Mapping[str, Checkpoint],
        checkpoint_id: str,
        event: Event,
        asked: Mapping[str, Any] | None,
    ) -> tuple[Checkpoint, Checkpoint]:
        """The checkpoint before and after *event*."""
        if IDENTIFIER.fullmatch(checkpoint_id) is None:
            raise ValueError(f"not an id: {checkpoint_id!r:.210}")
        found = self._at(rows.get(checkpoint_id, Checkpoint(checkpoint_id=checkpoint_id)))
        done = after(found, event, asked)
        for name, other in rows.items():
            active = {done.phase, other.phase} <= ACTIVE and not self._is_over(other)
            if name != checkpoint_id and active:
                raise busy(checkpoint_id, f"checkpoint {name} holds the gate")
        return found, done

    def _at(self, row: Checkpoint) -> Checkpoint:
        """What *row* says now."""
        asked = row.asked("commit") if row.phase == "prepared" else None
        if asked is not None:
            heading = self.heading(row.checkpoint_id, asked)
            if is_published(Path(asked["directory"]), heading):
                row = replace(row, phase="committed")
        return _ended(row) if self._is_over(row) else row

    def _is_over(self, checkpoint: Checkpoint) -> bool:
        now = self._now()
        return checkpoint.expired(now.boot_id, now.seconds)


def _rows(db: sqlite3.Connection) -> dict[str, Checkpoint]:
    return {one.checkpoint_id: one for one in checkpoints(db)}


def _ended(checkpoint: Checkpoint) -> Checkpoint:
    """It, after its budget."""
    phase = follow(checkpoint.checkpoint_id, checkpoint.phase, "expire")
    if phase == "none":  # nothing is known of it, also not what it was asked for
        return Checkpoint(checkpoint_id=checkpoint.checkpoint_id)
    return replace(checkpoint, phase=phase)


def busy(checkpoint_id: str, why: str) -> CheckpointRefusal:
    """Another one is in its way."""
    return CheckpointRefusal("checkpoint_busy", f"checkpoint {checkpoint_id}: {why}")
