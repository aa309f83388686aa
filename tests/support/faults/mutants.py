# SPDX-License-Identifier: Apache-2.0
"""What each guard is worth: the product without it, in the processes of one cell.

A mutant that no cell notices would mean that nothing tests the guard.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from support.faults import control

from rollout_router.checkpoint import control as checkpoint_control
from rollout_router.checkpoint import (
    cut,
    environments,
    journal,
    receiver,
    records,
    restoring,
    rows,
    wire,
)
from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.tables import insert

__all__ = ["MUTANTS"]


def _no_repeats_told() -> None:
    """The environment applies whatever comes."""
    real = receiver.decide

    def decide(found: Any, operation: wire.Operation, **named: Any) -> Any:
        done = found.last.sequence if isinstance(found, environments.Environment) else None
        if operation.sequence == done:
            return receiver.Apply(recorded=found)
        return real(found, operation, **named)

    vars(receiver)["decide"] = decide


def _epoch_in_the_id() -> None:
    """Each attempt names its operations anew; the bench reads the number without its thousands."""
    real = wire.Operation.headers

    def headers(self: wire.Operation) -> dict[str, str]:
        return real(replace(self, sequence=1000 * self.claim_epoch + self.sequence))

    setattr(wire.Operation, "headers", headers)  # noqa: B010 - mypy forbids the assignment


def _outbox_later() -> None:
    """Completion and the entry in the outbox are two transactions."""

    async def complete(self: journal.Journal, rollout: rows.Rollout, payload: Any) -> Any:
        text = canonical(payload)
        done = journal.Completed(
            rollout_id=rollout.rollout_id, receipt=rows.receipt_of(rollout, text), payload=text
        )
        await self._fenced(rollout, lambda db: self._mark(db, "r1", "completed", ""))
        await self.database.write(lambda db: insert(db, "outbox", asdict(done)))
        return done

    setattr(journal.Journal, "complete", complete)  # noqa: B010 - as above


def _no_fence() -> None:
    """The journal takes every write."""

    async def fenced(
        self: journal.Journal, _: rows.Rollout, change: Callable[[sqlite3.Connection], Any]
    ) -> Any:
        return await self.database.write(change)

    setattr(journal.Journal, "_fenced", fenced)  # noqa: B010 - as above


def _no_intents() -> None:
    """What happens at most once is not announced."""

    async def intend(self: journal.Journal, rollout: rows.Rollout, row: rows.Recorded) -> None:
        """Say nothing."""

    setattr(journal.Journal, "intend", intend)  # noqa: B010 - as above


def _answers_from_memory() -> None:
    """The environment answers before it records, and records with the operation after."""
    file, real = environments.Environments, environments.Environment
    kept: dict[str, environments.Environment] = {}
    record, look = file.record, file.look

    async def recorded(self: Any, _: Any, after: environments.Environment) -> Any:
        if (waits := kept.get(after.environment_id)) is not None:
            found = await look(self, waits.environment_id)
            await record(self, found if isinstance(found, real) else None, waits)
        kept[after.environment_id] = replace(after, number=1)
        return kept[after.environment_id]

    async def looked(self: Any, environment_id: str, **named: Any) -> Any:
        return kept.get(environment_id) or await look(self, environment_id, **named)

    setattr(file, "record", recorded)  # noqa: B010 - as above
    setattr(file, "look", looked)  # noqa: B010 - as above


def _numbers_again() -> None:
    """A restart counts from one."""
    real = rows.Rollout.begun_anew

    def begun_anew(self: rows.Rollout, reason: str) -> rows.Rollout:
        anew = replace(real(self, reason), first=1, next=1)
        return replace(anew, head=anew.genesis)

    setattr(rows.Rollout, "begun_anew", begun_anew)  # noqa: B010 - as above


def _no_gate() -> None:
    """An agent works behind a closed gate."""

    setattr(control.Gated, "begin", lambda _: True)  # noqa: B010 - as above


def _never_ahead() -> None:
    """An environment stands where the journal does, whatever died between the two."""
    real = records.agree

    def agree(rollout: rows.Rollout, *told: Any) -> None:
        real(replace(rollout, next=-1), *told)

    vars(cut)["agree"] = agree


def _epochs_of_another_store() -> None:
    """A restore keeps the epochs that it finds."""
    real = restoring.put_back

    def put_back(db: sqlite3.Connection, archive: Any, **_: str) -> None:
        real(db, archive, store_id=archive.manifest.store_id)

    vars(checkpoint_control)["put_back"] = put_back


def _no_result_carried() -> None:
    """A restore brings back what goes on, and no results."""

    def insert_some(db: sqlite3.Connection, table: str, fields: Any) -> None:
        if table != "outbox" and fields.get("status") != "completed":
            insert(db, table, fields)

    vars(restoring)["insert"] = insert_some


MUTANTS: Final[Mapping[str, Callable[[], None]]] = {
    "no repeats told": _no_repeats_told,
    "epoch in the id": _epoch_in_the_id,
    "outbox later": _outbox_later,
    "no fence": _no_fence,
    "no intents": _no_intents,
    "answers from memory": _answers_from_memory,
    "numbers again": _numbers_again,
    "no gate": _no_gate,
    "never ahead": _never_ahead,
    "epochs of another store": _epochs_of_another_store,
    "no result carried": _no_result_carried,
}
