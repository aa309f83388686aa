# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one agent server: prepare, commit, resume, restore, status. It blocks.

    prepare   closes the gate with a budget, and waits until no operation is in hand
    commit    cuts the journal, takes a copy of each environment, and publishes both
    resume    opens the gate; what was not committed by then never will be
    restore   fills journal and environments from what was published, gate closed

Everything is told by the checkpoint's id: the same request again has the same answer, the same id
with other arguments is a conflict. The journal remembers every id. One authority decides: the row
of the checkpoint is looked at, and the manifest named, in one transaction of the journal. Where
that died in between, the manifest tells: what is asked for is written down before it is named. So
an abandoned checkpoint never publishes, and a published one is never abandoned (see
:mod:`.ledger`). What was refused changed nothing.

The gate only makes a cut possible; that it is one is checked: journal and environments must stand
at the same revisions.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout_router.checkpoint.archive import Archive, publish, read_archive
from rollout_router.checkpoint.cut import Cut
from rollout_router.checkpoint.environment_server import EnvironmentServer, unnamed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.holding import CheckpointGate
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.ledger import Ledger
from rollout_router.checkpoint.manifest import Manifest
from rollout_router.checkpoint.phases import ACTIVE, Checkpoint
from rollout_router.checkpoint.restoring import (
    Imports,
    alone,
    check_absent,
    kept_in,
    not_quiet,
    put_back,
)
from rollout_router.claims import FileClaimStore, Moment
from rollout_router.operate import Blocker, check_budget

__all__ = ["Checkpoints", "Prepared", "Restored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """How far a prepare came: quiet where nothing blocks it, ``abandoned`` where time was up."""

    checkpoint: Checkpoint
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore brought back: so many rollouts of each kind."""

    checkpoint: Checkpoint
    numbers: Mapping[str, int]


class Checkpoints:
    """The checkpoints of the server whose journal this is.

    Args:
        journal: of the server; no worker of it need run.
        state_dir: the claim store of its service, whose gate is closed.
        now: the present moment of this boot.

    Raises:
        CheckpointRefusal: ``journal_of_another``: the journal is fenced by another store, and the
            gate of this one would close nothing.
        ClaimsError: there is no store.
    """

    def __init__(
        self, journal: Journal, state_dir: Path, *, now: Callable[[], Moment] = Moment.now
    ) -> None:
        store_id = FileClaimStore.inspect(state_dir).store_id
        if store_id != journal.store_id:
            raise CheckpointRefusal(
                "journal_of_another",
                f"{state_dir} is store {store_id}, and the journal at {journal.database.path} is"
                f" fenced by {journal.store_id}: name the store of its server",
            )
        self._journal = journal
        self._now = now
        self._ledger = Ledger(journal, now)
        self._gate = CheckpointGate(state_dir, journal, now)

    def known(self) -> list[Checkpoint]:
        """Every checkpoint, each in the phase that it is in now. Changes nothing.

        One that died in its commit is ``unknown`` while its archive cannot be read.
        """
        return self._ledger.known()

    def prepare(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> Prepared:
        """Close the gate for *budget_s* and wait up to *wait_s* until nothing is in hand.

        Again: the budget begins anew. With blockers the gate stays closed until the budget is over;
        where it was over first, the checkpoint is abandoned and the gate open.

        Raises:
            CheckpointRefusal: ``checkpoint_busy``: somebody else holds the gate, who is named;
                ``checkpoint_abandoned``, ``checkpoint_phase``. The gate is as it was.
            ValueError, ClaimsError: see :func:`hold_admission`; likewise.
        """
        check_budget(budget_s, wait_s)
        until = self._now().later(budget_s)  # before the gate's own end: never after it
        found = self._ledger.look(checkpoint_id, "prepare")
        if found.phase == "prepared" and self._gate.renew(checkpoint_id, budget_s=budget_s):
            with self._undone(found, found):
                _, done = self._ledger.step(checkpoint_id, "renew", until=until)
            return Prepared(checkpoint=done, blockers=())
        before, written = self._ledger.step(checkpoint_id, "prepare", until=until)
        with self._undone(before, written):
            blockers = self._gate.hold(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
            if blockers:
                done = self._ledger.settle(checkpoint_id)
            else:
                _, done = self._ledger.step(checkpoint_id, "quiet")
        if done.phase not in ACTIVE:
            self._gate.release(checkpoint_id)
        return Prepared(checkpoint=done, blockers=blockers)

    def commit(
        self,
        checkpoint_id: str,
        directory: Path,
        *,
        environments: EnvironmentServer | None,
        scope: Sequence[str] | None = None,
    ) -> Manifest:
        """Publish what a prepared checkpoint holds; again: the same manifest.

        Args:
            checkpoint_id: prepared, and within its budget.
            directory: of archives; a folder of this instance is made in it.
            environments: where copies are taken; None where no loop has environments.
            scope: the rollouts that must go on from it, and no others; None: all that can.

        Raises:
            CheckpointRefusal: ``checkpoint_phase``, ``checkpoint_abandoned``,
                ``checkpoint_conflict``, ``completed_in_scope``, ``restart_in_scope``,
                ``quarantined_in_scope``, ``rollout_unknown``, ``revision_mismatch``,
                ``environment_unreachable``, or the archive's own. Nothing is published.
        """
        asked = {
            "directory": str(directory.resolve()),
            "scope": None if scope is None else sorted(set(scope)),
        }
        if self._ledger.look(checkpoint_id, "commit", asked).phase != "prepared":
            self._ledger.step(checkpoint_id, "commit", asked=asked)
            return read_archive(directory, **self._ledger.names(checkpoint_id)).manifest

        def permit(link: Callable[[], None]) -> None:
            """Nothing can end the checkpoint between the look at it and the manifest's name."""

            def name_it(_: sqlite3.Connection) -> None:
                self._gate.check(checkpoint_id)
                link()

            self._ledger.step(checkpoint_id, "commit", asked=asked, only_noted=True)
            self._ledger.step(checkpoint_id, "commit", asked=asked, change=name_it)

        cut = Cut(self._journal, environments, asked["scope"])
        return publish(
            directory,
            self._ledger.heading(checkpoint_id, asked),
            (kept.line() for kept in cut),
            permit=permit,
            completed=cut.completed,
        )

    def resume(self, checkpoint_id: str) -> Checkpoint:
        """Open the gate; also the abort of what is not committed. Again is fine.

        Raises:
            CheckpointRefusal: ``checkpoint_phase``: there is no such checkpoint;
                ``archive_unavailable``: whether it was committed cannot be seen. The gate is open.
        """
        if self._ledger.has(checkpoint_id):
            self._gate.release(checkpoint_id)
        _, done = self._ledger.step(checkpoint_id, "resume")
        self._gate.release(checkpoint_id)  # a prepare may have come between
        return done

    def restore(
        self,
        checkpoint_id: str,
        directory: Path,
        *,
        environments: EnvironmentServer | None,
        budget_s: float,
        wait_s: float,
    ) -> Restored:
        """Bring back what was published under *checkpoint_id*; the gate is closed until a resume.

        All of it is read and checked before anything is closed or written. Rollouts come back in
        one transaction; environments before them, and they are taken back where it fails. A gate
        that an operator closed is closed already: it is left to them, also by the resume.

        Args:
            checkpoint_id: published by a server of the same instance and run.
            directory: of archives.
            environments: where the copies go.
            budget_s: see :meth:`prepare`.
            wait_s: likewise.

        Raises:
            CheckpointRefusal: ``manifest_missing``, ``manifest_damaged``, ``manifest_of_another``,
                ``unknown_schema`` and what else is wrong with it; ``restore_into_live``: the
                journal knows one of its rollouts; ``checkpoint_not_quiet``, who is named;
                ``restore_conflict``, ``checkpoint_conflict``, ``checkpoint_phase``,
                ``checkpoint_busy``, ``environment_unreachable``. All is as it was; environments
                that could not be taken back are named.
            ValueError, ClaimsError: see :func:`hold_admission`; likewise.
        """
        check_budget(budget_s, wait_s)
        asked = {"directory": str(directory.resolve())}
        found = self._ledger.look(checkpoint_id, "restore", asked)
        archive = read_archive(directory, **self._ledger.names(checkpoint_id))
        numbers, ids = Counter[str](), list[str]()
        for one in kept_in(archive):
            numbers[one.kind] += 1
            ids.append(one.rollout.rollout_id)
            if one.environments and environments is None:
                raise unnamed(one.rollout.rollout_id)
        if found.phase in ("none", "restoring"):
            self._journal.database.read(lambda db: check_absent(db, ids))
            with alone(self._journal.database.path, checkpoint_id):
                imports = Imports(environments, self._journal.store_id)
                found = self._restore(archive, imports, asked, budget_s=budget_s, wait_s=wait_s)
        return Restored(checkpoint=found, numbers=numbers)

    def _restore(
        self,
        archive: Archive,
        imports: Imports,
        asked: Mapping[str, Any],
        *,
        budget_s: float,
        wait_s: float,
    ) -> Checkpoint:
        checkpoint_id = archive.manifest.checkpoint_id
        until = self._now().later(budget_s)
        before, written = self._ledger.step(checkpoint_id, "restore", asked=asked, until=until)
        if written.phase != "restoring":  # another one was faster
            return written

        def change(db: sqlite3.Connection) -> None:
            put_back(db, archive, store_id=self._journal.store_id)
            self._gate.check(checkpoint_id, operators=True)

        with self._undone(before, written, imports):
            blockers = self._gate.hold_or_leave(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
            if blockers:
                raise not_quiet(checkpoint_id, blockers)
            for one in kept_in(archive):
                for copy in one.environments:
                    imports.give(copy)
            return self._ledger.step(checkpoint_id, "put_back", change=change)[1]

    @contextmanager
    def _undone(
        self, before: Checkpoint, written: Checkpoint, imports: Imports | None = None
    ) -> Iterator[None]:
        """What fails in this context leaves all as it was, but for others' changes."""
        stay: list[str] = []
        try:
            yield
        except BaseException as error:
            if imports is not None and not self._ledger.was_restored(before.checkpoint_id):
                stay = imports.take_back()
            if not self._ledger.undo(before, written):
                self._gate.release(before.checkpoint_id)
            if stay and isinstance(error, CheckpointRefusal):
                raise CheckpointRefusal(
                    error.code,
                    f"{error.message}; {len(stay)} environments may be there still, as their server"
                    f" gave no answer: {', '.join(stay[:10])}. Restore again, or remove them",
                ) from error
            raise
