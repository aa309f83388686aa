# SPDX-License-Identifier: Apache-2.0
"""Rollouts of an archive on their way into a journal, one at a time; most run in a transaction.

An archive may be larger than the memory. Of what a rollout recorded nothing changes, and none of
its numbers is used again. Claim epochs stay a floor in their own store, and say nothing in another.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rollout_router.checkpoint.archive import Archive
from rollout_router.checkpoint.environment_server import EnvironmentServer
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.ledger import busy
from rollout_router.checkpoint.records import Kept, parse
from rollout_router.checkpoint.tables import insert, insert_row, rollout_of
from rollout_router.operate import Blocker

__all__ = ["Imports", "alone", "check_absent", "kept_in", "not_quiet", "put_back"]


@contextmanager
def alone(journal: Path, checkpoint_id: str) -> Iterator[None]:
    """Be the one process that restores into *journal*; the kernel tells when another has died.

    Raises:
        CheckpointRefusal: ``checkpoint_busy``: another one does; ``journal_unavailable``.
    """
    path = f"{journal}.restoring"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CheckpointRefusal("journal_unavailable", f"{path}: {error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy(
                checkpoint_id, f"{journal} is being restored by another: ask again when it is done"
            ) from error
        yield
    finally:
        os.close(lock)


class Imports:
    """The environments that a restore makes, so that it can take them back where it fails.

    Args:
        server: of them; None where there are none.
        store_id: whose claims they follow from now on.
    """

    def __init__(self, server: EnvironmentServer | None, store_id: str) -> None:
        self._server = server
        self._store_id = store_id
        self._made: list[tuple[str, str]] = []  # what was there before is not ours
        self._unsure: list[str] = []  # the answer was lost

    def give(self, copy: Mapping[str, Any]) -> None:
        """Give the server a copy; see :meth:`EnvironmentServer.restore`."""
        if self._server is None:
            raise AssertionError("an environment without a server")
        try:
            made = self._server.restore(copy, store_id=self._store_id)
        except CheckpointRefusal as refusal:
            if refusal.code == "environment_unreachable":
                self._unsure.append(copy["environment_id"])
            raise
        if made is not None:
            self._made.append((copy["environment_id"], made))

    def take_back(self) -> list[str]:
        """Remove what was made, but for what was used since.

        Returns:
            What may be there still, as the server gave no answer.
        """
        while self._made and self._server is not None:
            try:
                self._server.take_back(*self._made[-1])
            except CheckpointRefusal as refusal:
                if refusal.code != "restore_conflict":
                    break
            self._made.pop()
        return [environment_id for environment_id, _ in self._made] + self._unsure


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
