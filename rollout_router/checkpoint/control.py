# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one agent server: prepare, commit, resume, restore, status. It blocks.

    prepare   closes the gate with a budget, and waits until no operation is in hand
    commit    cuts the journal, takes a copy of each environment, and publishes both
    resume    opens the gate; what was not committed by then never will be
    restore   fills an empty journal and the environments from what was published, gate closed

Everything is told by the checkpoint's id: the same request again has the same answer, the same id
with other arguments is a conflict. The journal remembers every id. One authority decides: the row
of the checkpoint is looked at, and the manifest published, in one transaction of the journal, so an
abandoned checkpoint never publishes and a published one was never abandoned.

The gate only makes a cut possible; that it is one is checked: journal and environments must stand
at the same revisions.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rollout_router.checkpoint.archive import publish, read_archive
from rollout_router.checkpoint.cut import Cut
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.environment_server import EnvironmentServer
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.manifest import Heading, Manifest
from rollout_router.checkpoint.phases import ACTIVE, Checkpoint, Event, Phase, follow
from rollout_router.checkpoint.records import Kept, parse
from rollout_router.checkpoint.tables import (
    checkpoints,
    insert,
    insert_row,
    rollout_of,
    save_checkpoint,
)
from rollout_router.claims import Moment, read_gate
from rollout_router.operate import AdmissionHeld, Blocker, hold_admission, release_admission

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
    """

    def __init__(
        self, journal: Journal, state_dir: Path, *, now: Callable[[], Moment] = Moment.now
    ) -> None:
        self._journal = journal
        self._state_dir = state_dir
        self._now = now

    def known(self) -> list[Checkpoint]:
        """Every checkpoint, each in the phase that it is in now. Changes nothing."""
        return self._journal.database.read(self._looked_at)

    def prepare(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> Prepared:
        """Close the gate for *budget_s* and wait up to *wait_s* until nothing is in hand.

        Again: the budget begins anew. With blockers the gate stays closed until the budget is over.

        Raises:
            CheckpointRefusal: ``checkpoint_busy``: somebody else holds the gate, who is named;
                ``checkpoint_abandoned``, ``checkpoint_phase``. The gate is as it was.
            ValueError, ClaimsError: see :func:`hold_admission`; likewise.
        """
        until = self._now().later(budget_s)  # before the gate's own end: never after it
        before = self._of(checkpoint_id)
        self._step(checkpoint_id, "prepare", until=until)
        try:
            blockers = self._hold(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
        except BaseException:
            self._journal.database.write_now(lambda db: save_checkpoint(db, before))
            raise
        if not blockers:
            self._step(checkpoint_id, "quiet")
        return Prepared(checkpoint=self._of(checkpoint_id), blockers=blockers)

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
            scope: the rollouts that must go on from it; None: all that can.

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
        found = self._step(checkpoint_id, "commit", asked=asked, keep_phase=True)
        if found.phase != "prepared":
            return read_archive(directory, **self._names(checkpoint_id)).manifest
        cut = Cut(self._journal, environments, asked["scope"])

        def permit(link: Callable[[], None]) -> None:
            """Nothing can end the checkpoint between the look at it and the manifest's name."""
            self._step(
                checkpoint_id,
                "commit",
                asked=asked,
                change=partial(self._link, checkpoint_id, link),
            )

        heading = Heading(
            instance=self._journal.instance,
            run=self._journal.run,
            checkpoint_id=checkpoint_id,
            store_id=self._journal.store_id,
            arguments_digest=digest(canonical(asked)),
        )
        lines = (kept.line() for kept in cut)
        return publish(directory, heading, lines, permit=permit, completed=cut.completed)

    def resume(self, checkpoint_id: str) -> Checkpoint:
        """Open the gate; also the abort of what is not committed. Again is fine.

        Raises:
            CheckpointRefusal: ``checkpoint_phase``: there is no such checkpoint.
        """
        found = self._step(checkpoint_id, "resume")
        release_admission(self._state_dir, by=_by(checkpoint_id))
        return found

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

        Args:
            checkpoint_id: published by a server of the same instance and run.
            directory: of archives.
            environments: where the copies go.
            budget_s: see :meth:`prepare`.
            wait_s: likewise.

        Raises:
            CheckpointRefusal: ``manifest_missing``, ``manifest_damaged``, ``manifest_of_another``,
                ``unknown_schema`` and what else is wrong with it; ``restore_into_live``: the
                journal knows other rollouts; ``restore_conflict``, ``checkpoint_conflict``,
                ``checkpoint_busy``, ``environment_unreachable``. The journal is as it was.
        """
        asked = {"directory": str(directory.resolve())}
        found = self._step(checkpoint_id, "restore", asked=asked, keep_phase=True)
        archive = read_archive(directory, **self._names(checkpoint_id))
        kept = [parse(line) for line in archive.records()]
        result = Restored(checkpoint=found, numbers=Counter(one.kind for one in kept))
        if found.phase != "none":
            return result
        self._journal.database.read(lambda db: _check_absent(db, kept))
        until = self._now().later(budget_s)
        self._hold(checkpoint_id, budget_s=budget_s, wait_s=wait_s)
        for one in kept:
            for copy in one.environments:
                if environments is None:
                    raise CheckpointRefusal(
                        "environment_unreachable",
                        f"rollout {one.rollout.rollout_id} has an environment: name its server",
                    )
                environments.restore(copy, store_id=self._journal.store_id)
        same_store = archive.manifest.store_id == self._journal.store_id

        def bring_back(db: sqlite3.Connection) -> None:
            _check_absent(db, kept)
            for one in kept:
                _put_back(db, one, same_store=same_store)

        done = self._step(checkpoint_id, "restore", asked=asked, until=until, change=bring_back)
        return replace(result, checkpoint=done)

    def _step(
        self,
        checkpoint_id: str,
        event: Event,
        *,
        asked: Mapping[str, Any] | None = None,
        until: Moment | None = None,
        keep_phase: bool = False,
        change: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> Checkpoint:
        """Look at a checkpoint, decide what follows, do *change* and write it: one transaction.

        With *keep_phase* nothing follows yet: it is only looked at, and what is asked is noted.
        """

        def act(db: sqlite3.Connection) -> Checkpoint:
            known = {one.checkpoint_id: one for one in self._looked_at(db)}
            for expired in (one for one in known.values() if one.phase not in ACTIVE):
                save_checkpoint(db, expired)
            found = known.get(checkpoint_id) or self._new(checkpoint_id)
            phase = follow(checkpoint_id, found.phase, event)
            others = [one for one in known.values() if one.phase in ACTIVE and one != found]
            if phase in ACTIVE and others:
                raise _busy(checkpoint_id, f"checkpoint {others[0].checkpoint_id} holds the gate")
            done = replace(_noting(found, event, asked), phase=found.phase if keep_phase else phase)
            if until is not None:
                done = replace(done, boot_id=until.boot_id, until=until.seconds)
            change(db)
            if done != found:
                save_checkpoint(db, replace(done, changed_at=self._journal.now()))
            return done

        return self._journal.database.write_now(act)

    def _link(self, checkpoint_id: str, link: Callable[[], None], _: sqlite3.Connection) -> None:
        """Give the manifest its name, where the gate was not opened by somebody meanwhile."""
        if not read_gate(self._state_dir).is_held(by=_by(checkpoint_id)):
            raise CheckpointRefusal(
                "checkpoint_phase",
                f"checkpoint {checkpoint_id}: its gate was opened by somebody else; prepare again",
            )
        link()

    def _looked_at(self, db: sqlite3.Connection) -> list[Checkpoint]:
        """All of them, those as expired whose budget is over."""
        now = self._now()
        return [
            replace(one, phase=self._after_expiry(one))
            if one.expired(now.boot_id, now.seconds)
            else one
            for one in checkpoints(db)
        ]

    def _after_expiry(self, checkpoint: Checkpoint) -> Phase:
        phase = follow(checkpoint.checkpoint_id, checkpoint.phase, "expire")
        published_all_the_same = phase == "abandoned" and self._is_published(checkpoint)
        return "resumed" if published_all_the_same else phase

    def _is_published(self, checkpoint: Checkpoint) -> bool:
        """Whether its manifest got its name just before whoever committed it died."""
        asked = json.loads(checkpoint.arguments).get("commit")
        if asked is None:
            return False
        try:
            archive = read_archive(
                Path(asked["directory"]), **self._names(checkpoint.checkpoint_id)
            )
        except CheckpointRefusal as refusal:
            if refusal.code == "manifest_missing":
                return False
            raise
        return archive.manifest.arguments_digest == digest(canonical(asked))

    def _of(self, checkpoint_id: str) -> Checkpoint:
        known = {one.checkpoint_id: one for one in self.known()}
        return known.get(checkpoint_id) or self._new(checkpoint_id)

    def _new(self, checkpoint_id: str) -> Checkpoint:
        return Checkpoint(
            checkpoint_id=checkpoint_id,
            phase="none",
            arguments="{}",
            boot_id="",
            until=0.0,
            changed_at="",
        )

    def _hold(self, checkpoint_id: str, *, budget_s: float, wait_s: float) -> tuple[Blocker, ...]:
        why = f"checkpoint {checkpoint_id} is being taken; it goes on by itself"
        try:
            return hold_admission(
                self._state_dir,
                by=_by(checkpoint_id),
                why=why,
                budget_s=budget_s,
                wait_s=wait_s,
            )
        except AdmissionHeld as held:
            raise _busy(checkpoint_id, str(held)) from held

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


def _noting(found: Checkpoint, event: Event, asked: Mapping[str, Any] | None) -> Checkpoint:
    """*found* with what its event was asked for, which is the same each time."""
    if asked is None:
        return found
    arguments = json.loads(found.arguments)
    if arguments.setdefault(event, asked) != asked:
        raise CheckpointRefusal(
            "checkpoint_conflict",
            f"checkpoint {found.checkpoint_id}: its {event} was asked for as {arguments[event]},"
            f" and now as {asked}; another one needs another id",
        )
    return replace(found, arguments=canonical(arguments))


def _check_absent(db: sqlite3.Connection, kept: Sequence[Kept]) -> None:
    for one in kept:
        rollout_id = one.rollout.rollout_id
        if rollout_of(db, rollout_id) is not None:
            raise CheckpointRefusal(
                "restore_into_live",
                f"rollout {rollout_id}: this journal knows it already; restore into a new one",
                rollout_id=rollout_id,
            )


def _put_back(db: sqlite3.Connection, kept: Kept, *, same_store: bool) -> None:
    """One rollout into the journal. Epochs of another store say nothing in this one."""
    rollout = kept.rollout
    if kept.kind == "restart":
        rollout = rollout.begun_anew(kept.reason)
    if not same_store:
        rollout = replace(rollout, claim_epoch=0)
    insert(db, "rollout", asdict(rollout))
    for row in kept.rows:
        insert_row(db, rollout.rollout_id, row)
    if kept.receipt is not None:
        outbox = {"receipt": kept.receipt, "payload": kept.payload}
        insert(db, "outbox", {"rollout_id": rollout.rollout_id, **outbox})
