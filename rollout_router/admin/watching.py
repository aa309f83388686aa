# SPDX-License-Identifier: Apache-2.0
"""Asking workers, life locks and the store, so that what is known is never older than a second.

It always runs, whether anybody looks or not: a timeline has no holes. Everything that blocks runs
in a thread; every worker has a task and a thread of its own, so that a silent one delays nobody.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from rollout_router.admin.changes import Changes, read_changes
from rollout_router.admin.known import Known, Survey
from rollout_router.admin.threads import Threads
from rollout_router.admin.workers import SeenWorker
from rollout_router.claims import (
    ClaimReader,
    ClaimsError,
    Gate,
    OwnerIdentity,
    Unreadable,
    Verdict,
    read_gate,
)
from rollout_router.operate import WorkerSilent, changes_of
from rollout_router.routing.sweeping import Pace

__all__ = [
    "ASK_S",
    "LOOK_S",
    "SURVEY_AGAIN_S",
    "SURVEY_S",
    "WORKERS_MAX",
    "Watching",
    "look",
    "survey",
]

ASK_S: Final = 0.5
"""Pause between two questions to a worker: a page shows what happened within a second, and a worker
answers in a millisecond."""

LOOK_S: Final = 0.25
"""Pause between two looks at owner files and life locks: a kill is known within half a second."""

SURVEY_S: Final = 30.0
"""How often the store is read although nothing asks for it: a claim that an operator or a cleaner
changed is known to nobody else."""

SURVEY_AGAIN_S: Final = 2.0
"""The least pause between two surveys, however much happens."""

WORKERS_MAX: Final = 1024
"""Workers that are asked: four times what ``serve`` starts, for the dead are few."""

_SILENT_SAID: Final = 2  # in a row: one that leaves is silent once, and then gone

_logger = logging.getLogger(__name__)


class Watching:
    """Keeps *known* up to date.

    Args:
        store: to read.
        known: gets all that is found.
        on_change: called after anything of *known* changed.
    """

    def __init__(
        self, store: ClaimReader, known: Known, *, on_change: Callable[[], object]
    ) -> None:
        self._store = store
        self._known = known
        self._on_change = on_change
        self._threads = Threads("watching", 2 * WORKERS_MAX)
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._told = known.version
        self._survey_wanted = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._survey(), name="survey")
            while True:
                await self._look(group)
                await asyncio.sleep(LOOK_S)

    def want_survey(self) -> None:
        """Something changed the store: read it soon."""
        self._survey_wanted.set()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        answering = frozenset(self._known.answering())
        seen, gate, error = await self._threads.run(lambda: look(self._store, answering))
        if seen is not None:
            self._known.see(seen)
            alive = {one.identity.nonce: one.identity for one in seen if one.verdict != "dead"}
            for worker_id in self._asking.keys() - alive.keys():
                self._asking.pop(worker_id).cancel()
            for worker_id, identity in alive.items():
                if worker_id not in self._asking and len(self._asking) < WORKERS_MAX:
                    self._asking[worker_id] = group.create_task(
                        self._ask(identity), name=f"asking {worker_id}"
                    )
        self._known.look_at(gate, error)
        self._tell()

    async def _ask(self, identity: OwnerIdentity) -> None:
        """Ask one worker again and again; cancelled once it is dead, or has no owner file."""
        cursor, more, silent = 0, False, 0
        while True:
            try:
                changes = await self._threads.run(partial(_changes, identity, cursor))
            except (WorkerSilent, ValueError) as error:
                more, silent = False, silent + 1
                if silent == _SILENT_SAID:
                    _logger.warning("%s", error)
                self._known.silent(identity.nonce)
            else:
                cursor, more, silent = changes.cursor, changes.more, 0
                self._known.apply(identity.nonce, changes)
            self._tell()
            await asyncio.sleep(0 if more else ASK_S)

    async def _survey(self) -> None:
        while True:
            self._survey_wanted.clear()
            self._known.survey_wanted = False
            began = self._known.version
            try:
                found = await self._threads.run(
                    partial(survey, self._store, began=began, pace=Pace())
                )
            except ClaimsError as error:
                _logger.warning("the store is read again: %s", error)
            else:
                self._known.merge(found)
                self._tell()
            await asyncio.sleep(SURVEY_AGAIN_S)
            try:
                async with asyncio.timeout(SURVEY_S - SURVEY_AGAIN_S):
                    await self._survey_wanted.wait()
            except TimeoutError:
                continue

    def _tell(self) -> None:
        if self._known.survey_wanted:
            self._survey_wanted.set()
        if self._told != self._known.version:
            self._told = self._known.version
            self._on_change()


def _changes(identity: OwnerIdentity, cursor: int) -> Changes:
    """Runs in a thread, the reading too: an answer may have a thousand rows."""
    return read_changes(identity.nonce, changes_of(identity, cursor))


def look(
    store: ClaimReader, answering: frozenset[str]
) -> tuple[list[SeenWorker] | None, Gate, str | None]:
    """The workers that have an owner file, the gate, and why the store cannot be read, or None.

    Args:
        store: whose owners.
        answering: those that answered when they were asked last: their sockets are not tried.
    """
    gate = read_gate(store.state_dir)
    try:
        owners = [one for one in store.owners() if not isinstance(one, Unreadable)]
    except ClaimsError as error:
        return None, gate, str(error)
    seen = []
    for identity in owners:
        if store.proof_of_death(identity.owner) is not None:
            verdict = Verdict.DEAD
        elif identity.nonce in answering:
            verdict = Verdict.ALIVE
        else:
            verdict = store.judge(identity.owner).verdict
        seen.append(SeenWorker(identity=identity, verdict=verdict.value))
    return seen, gate, None


def survey(store: ClaimReader, *, began: int, pace: Callable[[], object]) -> Survey:
    """Read every claim of *store*. Blocks; *pace* is called at each record, and may wait.

    Raises:
        StoreUnavailable: the pass is incomplete.
    """
    found = Survey(began=began)
    for record in store.survey():
        pace()
        if isinstance(record, Unreadable):
            found.unreadable += 1
            continue
        found.claims.append(record)
        nonce = record.owner.nonce
        if record.state == "owned" and nonce not in found.verdicts:
            found.verdicts[nonce] = store.judge(record.owner).verdict.value
    return found
