# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint keeps of each rollout, read one after the other.

Each is consistent in itself: its operations are read at one moment, and its environments must stand
at the revisions that these recorded. Rollouts share nothing, so no moment is common to them.

What a restore would refuse is not published: a damaged rollout is kept as one that is set aside.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rollout_router.checkpoint.boundary import boundary_of, revisions_of
from rollout_router.checkpoint.environment_server import EnvironmentServer, unnamed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.manifest import Deliverable, Heading
from rollout_router.checkpoint.records import Kept, agree, parse
from rollout_router.checkpoint.refusing import known
from rollout_router.checkpoint.rows import Recorded, Rollout, check_whole
from rollout_router.checkpoint.tables import outbox_of, rows_of
from rollout_router.checkpoint.tool_session import SessionTask

__all__ = ["Cut", "boundary_document"]

_DAMAGE: Final = frozenset({"gap", "chain_broken", "receipt_mismatch", "unknown_schema"})
"""What is wrong with one rollout, and no matter to the others."""

_IN_SCOPE: Final[Mapping[str, str]] = {
    "restart": "restart_in_scope",
    "quarantined": "quarantined_in_scope",
}


class Cut:
    """The rollouts of a journal, each as a checkpoint keeps it; iterate once.

    Args:
        journal: whose rollouts.
        server: where their environments are; None where no loop has any.
        scope: ids of rollouts that must be able to go on, and no others; None: all, as they are.
    """

    def __init__(
        self, journal: Journal, server: EnvironmentServer | None, scope: Sequence[str] | None
    ) -> None:
        self._journal = journal
        self._server = server
        self._scope = scope
        self._restarts: list[str] = []
        self._deliverable: list[Deliverable] = []

    def completed(self, heading: Heading) -> Heading:
        """*heading* with who begins again and which results wait; after all was iterated."""
        return replace(
            heading, restarts=tuple(self._restarts), deliverable=tuple(self._deliverable)
        )

    def __iter__(self) -> Iterator[Kept]:
        """Each rollout.

        Raises:
            CheckpointRefusal: as :meth:`Checkpoints.commit`.
        """
        ids = self._scope
        if ids is None:
            ids = self._journal.database.read(_ids)
        for rollout_id in ids:
            kept = self._kept(rollout_id)
            self._count(kept)
            yield kept

    def _count(self, kept: Kept) -> None:
        rollout_id = kept.rollout.rollout_id
        if self._scope is not None and kept.kind != "open":
            code = _IN_SCOPE.get(kept.kind, "completed_in_scope")
            raise kept.rollout.refused(code, f"it is asked to go on, and it is {kept.kind}")
        if kept.kind == "restart":
            self._restarts.append(rollout_id)
        if kept.kind == "completed" and kept.receipt is not None:
            self._deliverable.append(Deliverable(rollout_id=rollout_id, receipt=kept.receipt))

    def _kept(self, rollout_id: str) -> Kept:
        def look(
            db: sqlite3.Connection,
        ) -> tuple[Rollout, tuple[Recorded, ...], tuple[str, str | None] | None]:
            return known(db, rollout_id), rows_of(db, rollout_id), outbox_of(db, rollout_id)

        rollout, rows, outbox = self._journal.database.read(look)
        try:
            kept = _ended(rollout, rows, outbox)
        except CheckpointRefusal as refusal:
            if self._scope is not None or refusal.code not in _DAMAGE:
                raise
            kept = _aside(rollout, rows, refusal.code)
        return kept or self._going_on(rollout, rows)

    def _going_on(self, rollout: Rollout, rows: tuple[Recorded, ...]) -> Kept:
        copies = []
        for environment_id in revisions_of(rows):
            if self._server is None:  # it may be alive somewhere: nobody gave it up
                raise unnamed(rollout.rollout_id)
            copy = self._server.export(environment_id)
            if copy is None:
                return Kept(kind="restart", rollout=rollout, reason="environment_lost")
            copies.append(copy)
        agree(rollout, rows, copies)
        return Kept(
            kind="open",
            rollout=rollout,
            rows=rows,
            environments=tuple(copies),
            boundary=boundary_document(self._journal, rollout, rows),
        )


def boundary_document(
    journal: Journal, rollout: Rollout, rows: tuple[Recorded, ...]
) -> Mapping[str, Any] | None:
    """Where a tool-using session stands; None where no operation is left, and for other loops."""
    environment_id = journal.environment_name(rollout.rollout_id, rollout.restarts)
    try:
        task = SessionTask.from_document(json.loads(rollout.task))
        return boundary_of(rollout, rows, task, environment_id).document()
    except (ValueError, CheckpointRefusal):  # its task or its operations are not those of one
        return None


def _ids(db: sqlite3.Connection) -> list[str]:
    """Of all rollouts; the rest of each is read in its turn."""
    return [row[0] for row in db.execute("SELECT rollout_id FROM rollout ORDER BY 1")]


def _ended(
    rollout: Rollout, rows: Sequence[Recorded], outbox: tuple[str, str | None] | None
) -> Kept | None:
    """What is kept of a rollout that does not go on; None of one that does, and is whole."""
    if rollout.status == "open":
        check_whole(rollout, rows)
        return None
    if rollout.status == "quarantined":
        return _aside(rollout, rows, rollout.reason)
    receipt, payload = outbox or (None, None)
    kept = Kept(kind=rollout.status, rollout=rollout, receipt=receipt, payload=payload)
    return parse(kept.line())


def _aside(rollout: Rollout, rows: Sequence[Recorded], code: str) -> Kept:
    aside = rollout.set_aside(code, max((row.sequence for row in rows), default=0))
    return Kept(kind="quarantined", rollout=aside, reason=code)
