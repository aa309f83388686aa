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
an abandoned checkpoint never publishes, and a published one is never abandoned. What was refused
changed nothing.

The gate only makes a cut possible; that it is one is checked: journal and environments must stand
at the same revisions.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollout_router.checkpoint.archive import Archive, is_published, publish, read_archive
from rollout_router.checkpoint.cut import Cut
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.environment_server import EnvironmentServer, unnamed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.manifest import Heading, Manifest
from rollout_router.checkpoint.phases import ACTIVE, Checkpoint, Event, after, follow
from rollout_router.checkpoint.restoring import check_absent, kept_in, not_quiet, put_back
from rollout_router.checkpoint.tables import checkpoints, save_checkpoint
from rollout_router.checkpoint.wire import IDENTIFIER
from rollout_router.claims import FileClaimStore, Moment, read_gate, release_gate
from rollout_router.operate import AdmissionHeld, Blocker, hold_admission

__all__ = ["Checkpoints", "Prepared", "Restored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """How far a prepare came: quiet where nothing blocks it."""

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
        self._state_dir = state_dir
        self._now = now

    def known(self) -> list[Checkpoint]:
        """Every checkpoint, each in the phase that it is in now. Changes nothing.

        Raises:
            CheckpointRefusal: ``archive_unavailable``: whether one that died in its commit was
                published cannot be seen.
        """
        return self._journal.database.read(lambda db: list(self._now_known(db).values()))

    def prepare(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> Prepared:
        """Close the gate for *budget_s* and wait up to *wait_s* until nothing is in hand.

        Again: the budget begins anew. With blockers the gate stays closed until the budget is over.

        Raises:
            CheckpointRefusal: ``checkpoint_busy``: somebody else holds the gate, who is named;
                ``checkpoint_abandoned``, ``checkpoint_phase``. The gate is as it was.
            ValueError, ClaimsError: see :func:`hold_admission`; likewise.
        """
        until = self._now().later(budget_s)  # before the gate's own end: never after it
        before, written = self._step(checkpoint_id, "prepare", until=until)
        with self._undone(before, written):
            blockers = self._hold(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
            if blockers:
                done = self._look(checkpoint_id, "prepare")
            else:
                _, done = self._step(checkpoint_id, "quiet")
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
        if self._look(checkpoint_id, "commit", asked).phase != "prepared":
            self._step(checkpoint_id, "commit", asked=asked)
            return read_archive(directory, **self._names(checkpoint_id)).manifest

        def permit(link: Callable[[], None]) -> None:
            """Nothing can end the checkpoint between the look at it and the manifest's name."""
            self._step(checkpoint_id, "commit", asked=asked, only_noted=True)
            self._step(checkpoint_id, "commit", asked=asked, change=self._naming(link))

        cut = Cut(self._journal, environments, asked["scope"])
        return publish(
            directory,
            self._heading(checkpoint_id, asked),
            (kept.line() for kept in cut),
            permit=permit,
            completed=cut.completed,
        )

    def resume(self, checkpoint_id: str) -> Checkpoint:
        """Open the gate; also the abort of what is not committed. Again is fine.

        Raises:
            CheckpointRefusal: ``checkpoint_phase``: there is no such checkpoint.
        """
        _, done = self._step(checkpoint_id, "resume")
        self._let_go(checkpoint_id)
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
        one transaction; environments before them, where they are of no matter to anybody else.
        A gate that an operator closed is closed already: it is left to them, also by the resume.

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
                ``checkpoint_busy``, ``environment_unreachable``. Journal and gate are as they were.
            ValueError, ClaimsError: see :func:`hold_admission`; likewise.
        """
        asked = {"directory": str(directory.resolve())}
        found = self._look(checkpoint_id, "restore", asked)
        archive = read_archive(directory, **self._names(checkpoint_id))
        numbers, ids = Counter[str](), list[str]()
        for one in kept_in(archive):
            numbers[one.kind] += 1
            ids.append(one.rollout.rollout_id)
            if one.environments and environments is None:
                raise unnamed(one.rollout.rollout_id)
        if found.phase == "none":
            self._journal.database.read(lambda db: check_absent(db, ids))
            until = self._now().later(budget_s)
            with self._undone(found, found):
                self._close_for(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
                found = self._bring_back(archive, environments, asked, until)
        return Restored(checkpoint=found, numbers=numbers)

    def _bring_back(
        self,
        archive: Archive,
        environments: EnvironmentServer | None,
        asked: Mapping[str, Any],
        until: Moment,
    ) -> Checkpoint:
        for one in kept_in(archive):
            for copy in one.environments:
                if environments is not None:  # else none has any, as was looked at
                    environments.restore(copy, store_id=self._journal.store_id)

        def change(db: sqlite3.Connection, before: Checkpoint) -> None:
            if before.phase == "none":
                put_back(db, archive, store_id=self._journal.store_id)

        checkpoint_id = archive.manifest.checkpoint_id
        return self._step(checkpoint_id, "restore", asked=asked, until=until, change=change)[1]

    def _look(
        self, checkpoint_id: str, event: Event, asked: Mapping[str, Any] | None = None
    ) -> Checkpoint:
        """The checkpoint as it is, where *event* may follow."""
        return self._journal.database.read(
            lambda db: self._decided(self._now_known(db), checkpoint_id, event, asked)[0]
        )

    def _step(
        self,
        checkpoint_id: str,
        event: Event,
        *,
        asked: Mapping[str, Any] | None = None,
        until: Moment | None = None,
        only_noted: bool = False,
        change: Callable[[sqlite3.Connection, Checkpoint], None] = lambda _, __: None,
    ) -> tuple[Checkpoint, Checkpoint]:
        """Look at a checkpoint, decide what follows, do *change* and write it: one transaction.

        With *only_noted* what is asked is written down alone. Returns it as it was and as it is.
        """

        def act(db: sqlite3.Connection) -> tuple[Checkpoint, Checkpoint]:
            known = self._now_known(db)
            before, done = self._decided(known, checkpoint_id, event, asked)
            if only_noted:
                done = replace(done, phase=before.phase)
            if until is not None:
                done = replace(done, boot_id=until.boot_id, until=until.seconds)
            change(db, before)
            known[checkpoint_id] = done
            written = {one.checkpoint_id: one for one in checkpoints(db)}
            for name, one in known.items():
                if one != written.get(name):
                    known[name] = replace(one, changed_at=self._journal.now())
                    save_checkpoint(db, known[name])
            return before, known[checkpoint_id]

        return self._journal.database.write_now(act)

    def _decided(
        self,
        known: Mapping[str, Checkpoint],
        checkpoint_id: str,
        event: Event,
        asked: Mapping[str, Any] | None,
    ) -> tuple[Checkpoint, Checkpoint]:
        """The checkpoint before and after *event*."""
        if IDENTIFIER.fullmatch(checkpoint_id) is None:
            raise ValueError(f"not an id: {checkpoint_id!r:.210}")
        found = known.get(checkpoint_id, Checkpoint(checkpoint_id=checkpoint_id))
        done = after(found, event, asked)
        for name, other in known.items():
            if name != checkpoint_id and {done.phase, other.phase} <= ACTIVE:
                raise _busy(checkpoint_id, f"checkpoint {name} holds the gate")
        return found, done

    def _now_known(self, db: sqlite3.Connection) -> dict[str, Checkpoint]:
        """All of them, each in the phase that it is in now."""
        now = self._now()
        return {one.checkpoint_id: self._at(one, now) for one in checkpoints(db)}

    def _at(self, checkpoint: Checkpoint, now: Moment) -> Checkpoint:
        asked = checkpoint.asked("commit") if checkpoint.phase == "prepared" else None
        if asked is not None:  # whoever committed it died, and perhaps after the manifest's name
            heading = self._heading(checkpoint.checkpoint_id, asked)
            if is_published(Path(asked["directory"]), heading):
                checkpoint = replace(checkpoint, phase="committed")
        if checkpoint.expired(now.boot_id, now.seconds):
            ended = follow(checkpoint.checkpoint_id, checkpoint.phase, "expire")
            checkpoint = replace(checkpoint, phase=ended)
        return checkpoint

    def _naming(self, link: Callable[[], None]) -> Callable[[sqlite3.Connection, Checkpoint], None]:
        """Give the manifest its name, where the gate was not opened by somebody meanwhile."""

        def name_it(_: sqlite3.Connection, before: Checkpoint) -> None:
            by = _by(before.checkpoint_id)
            if not read_gate(self._state_dir, now=self._now).is_held(by=by):
                raise CheckpointRefusal(
                    "checkpoint_phase",
                    f"{by}: its gate was opened by somebody else; prepare it again",
                )
            link()

        return name_it

    @contextmanager
    def _undone(self, before: Checkpoint, written: Checkpoint) -> Iterator[None]:
        """What fails in this context leaves row and gate as they were, but for others' changes."""
        try:
            yield
        except BaseException:
            self._journal.database.write_now(lambda db: self._undo(db, before, written))
            raise

    def _undo(self, db: sqlite3.Connection, before: Checkpoint, written: Checkpoint) -> None:
        found = next(
            (x for x in checkpoints(db) if x.checkpoint_id == before.checkpoint_id), before
        )
        if found == written:
            save_checkpoint(db, before)
            found = before
        if self._at(found, self._now()).phase not in ACTIVE:
            self._let_go(before.checkpoint_id)

    def _close_for(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> None:
        """Close the gate for a restore and wait until all is quiet, unless an operator did."""
        try:
            blockers = self._hold(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
        except CheckpointRefusal:
            gate = read_gate(self._state_dir, now=self._now)
            if gate.open or gate.until is not None:
                raise
            return
        if blockers:
            raise not_quiet(checkpoint_id, blockers)

    def _hold(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> tuple[Blocker, ...]:
        why = f"checkpoint {checkpoint_id} is being taken or brought back; it goes on by itself"
        try:
            return hold_admission(
                self._state_dir,
                by=_by(checkpoint_id),
                why=why,
                budget_s=budget_s,
                wait_s=wait_s,
                now=self._now,
            )
        except AdmissionHeld as held:
            raise _busy(checkpoint_id, str(held)) from held

    def _let_go(self, checkpoint_id: str) -> None:
        """Open the gate, if this checkpoint holds it."""
        by = _by(checkpoint_id)
        if read_gate(self._state_dir, now=self._now).is_held(by=by):
            release_gate(self._state_dir, by=by, now=self._now)

    def _heading(self, checkpoint_id: str, asked: Mapping[str, Any]) -> Heading:
        return Heading(
            instance=self._journal.instance,
            run=self._journal.run,
            checkpoint_id=checkpoint_id,
            store_id=self._journal.store_id,
            arguments_digest=digest(canonical(asked)),
        )

    def _names(self, checkpoint_id: str) -> dict[str, str]:
        return {
            "instance": self._journal.instance,
            "run": self._journal.run,
            "checkpoint_id": checkpoint_id,
        }


def _by(checkpoint_id: str) -> str:
    return f"checkpoint {checkpoint_id}"


def _busy(checkpoint_id: str, why: str) -> CheckpointRefusal:
    return CheckpointRefusal("checkpoint_busy", f"checkpoint {checkpoint_id}: {why}")
