# SPDX-License-Identifier: Apache-2.0
"""What is known of all workers and rollouts of a store, merged from three sources. Pure.

Workers tell of the claims that they hold; life locks tell who is dead; surveys of the store tell
what nobody else does: claims of the dead, of the silent, and lost sessions.

* Of two that say they own a rollout the higher claim epoch is right (C2).
* The rollouts of a dead worker are ``owner_dead`` until another takes them or they are freed.
* What was counted is never taken back: turns, bytes, take-overs, resyncs, releases outlive their
  worker. They are counted since this process began.
* All is bounded: rollouts, events, the series. ``version`` rises with every change.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rollout_router.admin.changes import Changes, Row, unreported_row
from rollout_router.admin.events import Events
from rollout_router.admin.query import Page, Query, Window
from rollout_router.admin.tally import Tally
from rollout_router.admin.workers import KnownWorker, SeenWorker
from rollout_router.claims import Claim, Gate

__all__ = ["ROLLOUTS_MAX", "SET_ASIDE_MAX", "Known", "Survey"]

ROLLOUTS_MAX: Final = 262_144
"""Rollouts that are shown; further ones are only counted, as ``left_out``. Some 250 MB, and what 64
workers keep by default."""

SET_ASIDE_MAX: Final = 65_536
"""Rollouts that went without their worker's word, whose counts are remembered, the oldest forgotten
first: their worker may tell of them once more."""

_EVENT: Final = {"claim_epoch": None, "request_id": None, "reason": None, "from_worker": None}


@dataclass(slots=True, kw_only=True)
class Survey:
    """What a pass over the store found.

    Attributes:
        began: the ``version`` of what was known when it began.
        claims: every record that could be read.
        verdicts: on owners that have no owner file any more, by nonce.
        unreadable: how many records could not be read.
    """

    began: int
    claims: list[Claim] = field(default_factory=list)
    verdicts: dict[str, str] = field(default_factory=dict)
    unreadable: int = 0


class Known:
    """See the module.

    Args:
        now: the time, with its zone.
        rollouts_max: how many are kept.
    """

    def __init__(
        self,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        rollouts_max: int = ROLLOUTS_MAX,
    ) -> None:
        self._now = now
        self._rollouts_max = rollouts_max
        self._rows: dict[str, Row] = {}
        self._touched: dict[str, int] = {}  # the version at which a worker told of a rollout last
        self._set_aside: OrderedDict[str, Row] = OrderedDict()
        self._given_back: dict[str, int] = {}  # claim epochs, since the last survey
        self._window = Window(self._rows)
        self._workers: dict[str, KnownWorker] = {}
        self._tally = Tally()
        self._left_out = 0  # claims of the last survey that were too many
        self.events: Final = Events()
        self.gate = Gate(open=True)
        self.unreadable = 0  # records, at the last survey
        self.store_error: str | None = "the store was not read yet"
        self.survey_wanted = True  # something happened that only the store tells of
        self.version = 0

    # What comes in.

    def see(self, seen: Iterable[SeenWorker]) -> None:
        """The workers that have an owner file now, all of them."""
        there = {one.identity.nonce: one for one in seen}
        for worker_id, one in there.items():
            worker = self._workers.get(worker_id)
            if worker is None:
                worker = KnownWorker(identity=one.identity, verdict=one.verdict)
                self._workers[worker_id] = worker
                self._happened("worker_started", worker_id, at=one.identity.at)
                self.survey_wanted = True
                if one.verdict == "dead":
                    worker.verdict = "alive"  # so that the next line says that it died
            if worker.verdict != one.verdict:
                self._judge(worker, one.verdict)
        for worker_id in self._workers.keys() - there.keys():
            self._without_file(self._workers[worker_id])

    def apply(self, worker_id: str, changes: Changes) -> None:
        """What a worker answered. Of one that is dead it is late, and nothing."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.verdict == "dead":
            return
        if changes.reset:
            worker.unconfirmed = dict(worker.rollouts)
            worker.replayed_until = worker.told_until
        taken = [(row, self._take(worker, row)) for row in changes.rollouts]
        self._tally.rows(
            ((row, before) for row, before in taken if before is not row), self._seconds()
        )
        for rollout_id, claim_epoch in changes.gone:
            self._give_back(worker, rollout_id, claim_epoch)
        for event in changes.events:
            self._tell(worker, event)
        if not changes.more:
            self._end_replay(worker)
        if worker.told(changes.status):
            self.version += 1

    def silent(self, worker_id: str) -> None:
        """A worker did not answer."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.answers:
            worker.answers = False
            self.version += 1

    def merge(self, survey: Survey) -> None:
        """What the store says. Of claims whose worker answers, the worker knows more."""
        found: set[str] = set()
        self._left_out = 0
        for claim in survey.claims:
            found.add(claim.rollout_id)
            self._merge_claim(claim, survey)
        gone = [
            rollout_id
            for rollout_id in self._rows
            if rollout_id not in found and self._touched.get(rollout_id, 0) <= survey.began
        ]
        for rollout_id in gone:
            self._set_aside[rollout_id] = self._rows[rollout_id]
            self._drop(rollout_id)
        while len(self._set_aside) > SET_ASIDE_MAX:
            self._set_aside.popitem(last=False)
        self._given_back.clear()
        if len(self._rows) >= self._rollouts_max:
            self._left_out = len(found - self._rows.keys())
        if self.unreadable != survey.unreadable:
            self.unreadable = survey.unreadable
            self.version += 1

    def look_at(self, gate: Gate, store_error: str | None) -> None:
        """How the gate stands, and what keeps the store from being read, None where nothing does.

        Whatever moves with time alone is looked at too.
        """
        if (gate, store_error) != (self.gate, self.store_error):
            self.gate, self.store_error = gate, store_error
            self.version += 1
        if self._tally.series.moves(self._seconds()):
            self.version += 1

    # What is told.

    def page(self, query: Query) -> Page:
        """The rollouts that are asked for."""
        return self._window.page(query)

    def rollout(self, rollout_id: str) -> Row | None:
        """One of them."""
        return self._rows.get(rollout_id)

    def workers(self) -> list[dict[str, Any]]:
        """Every worker as the API shows it, those first that started first."""
        known = sorted(
            self._workers.values(), key=lambda one: (one.identity.at, one.identity.nonce)
        )
        return [worker.shown() for worker in known]

    def answering(self) -> list[str]:
        """The workers that answered when they were asked last."""
        return [worker_id for worker_id, worker in self._workers.items() if worker.answers]

    def totals(self) -> dict[str, int]:
        """How many rollouts and calls there are, and all that was counted."""
        return {
            "rollouts": len(self._rows) + self._left_out,
            "in_flight": self._tally.in_flight,
            **self._tally.totals,
            "left_out": self._left_out,
            "unreadable": self.unreadable,
        }

    def series(self) -> list[dict[str, Any]]:
        """What was added in each step of the last ten minutes."""
        return self._tally.series.shown(self._seconds())

    def not_ready(self) -> list[str]:
        """Why no call would be answered now; nothing where it would be."""
        why = []
        if self.store_error is not None:
            why.append(self.store_error)
        if not any(worker.speaks for worker in self._workers.values()):
            why.append("no worker answers")
        if not self.gate.open:
            why.append(f"admission is closed by {self.gate.by}: {self.gate.why}")
        return why

    def at(self) -> str:
        """The time, as the API writes it."""
        return _written(self._now())

    # Workers.

    def _judge(self, worker: KnownWorker, verdict: str) -> None:
        worker.verdict = verdict
        if verdict == "dead":
            worker.unconfirmed, worker.answers = None, False
            self._happened("worker_dead", worker.identity.nonce)
            self.survey_wanted = True
        changed: Row = {"verdict": verdict, "state": "owned"}
        if verdict == "dead":
            changed |= {"state": "owner_dead", "in_flight": 0}
        for rollout_id in worker.rollouts:
            self._put({**self._rows[rollout_id], **changed})
        self.version += 1

    def _without_file(self, worker: KnownWorker) -> None:
        """A dead worker was cleared away, or one left; what it still has only the store tells."""
        if worker.has_file:
            worker.has_file = False
            self.survey_wanted = True
            if worker.verdict != "dead":
                self._happened("worker_left", worker.identity.nonce)
                worker.answers = False
                self._judge(worker, "unknown")
        if not worker.rollouts:
            del self._workers[worker.identity.nonce]
            self.version += 1

    # Rollouts.

    def _take(self, worker: KnownWorker, row: Row) -> Row | None:
        """What was told of this claim before, None where nothing was; *row* to count nothing."""
        rollout_id, epoch = row["rollout_id"], row["claim_epoch"]
        if worker.unconfirmed is not None:
            worker.unconfirmed.pop(rollout_id, None)
        before = self._rows.get(rollout_id)
        if before is None and len(self._rows) >= self._rollouts_max:
            return row
        if before is not None and before["claim_epoch"] > epoch:
            return row  # it does not know yet that it was overtaken
        self._touched[rollout_id] = self.version + 1
        counted = before or self._set_aside.pop(rollout_id, None)
        if before != row:
            self._put(row)
        if counted is None or counted["claim_epoch"] != epoch:
            return None
        return counted if counted["worker_id"] == row["worker_id"] else None

    def _end_replay(self, worker: KnownWorker) -> None:
        """What it told before and does not tell any more is gone."""
        for rollout_id in worker.unconfirmed or ():
            if rollout_id in worker.rollouts:
                self._drop(rollout_id)
        worker.unconfirmed = None

    def _give_back(self, worker: KnownWorker, rollout_id: str, claim_epoch: int) -> None:
        row = self._rows.get(rollout_id)
        if row is None or row["worker_id"] != worker.identity.nonce:
            return
        if row["claim_epoch"] <= claim_epoch:
            self._drop(rollout_id)
            if len(self._given_back) >= SET_ASIDE_MAX:
                self._given_back.clear()
            self._given_back[rollout_id] = claim_epoch

    def _merge_claim(self, claim: Claim, survey: Survey) -> None:
        row = self._rows.get(claim.rollout_id)
        newest = self._given_back.get(claim.rollout_id, 0)
        if row is not None and row["claim_epoch"] > claim.claim_epoch:
            return
        if claim.state == "owned" and claim.claim_epoch <= newest:
            return  # it was read before it was given back
        owner = self._workers.get(claim.owner.nonce)
        if claim.state == "lost":
            state, verdict = "lost", None
        else:
            if owner is not None and owner.speaks:
                return
            verdict = owner.verdict if owner else survey.verdicts.get(claim.owner.nonce, "unknown")
            state = "owner_dead" if verdict == "dead" else "owned"
        stands = claim.owner.nonce, claim.claim_epoch, state, verdict
        if row is not None and stands == tuple(
            row[name] for name in ("worker_id", "claim_epoch", "state", "verdict")
        ):
            return
        found = unreported_row(
            claim.rollout_id, claim.claim_epoch, claim.owner.nonce, state=state, verdict=verdict
        )
        same = row is not None and row["claim_epoch"] == claim.claim_epoch
        if row is not None and same:
            found = {**row, "state": state, "verdict": verdict, "in_flight": None}
        self._put({**found, "kind": claim.kind, "claimed_at": claim.at})

    def _put(self, row: Row) -> None:
        """Set a row in the place of whatever was known of its rollout."""
        rollout_id, worker_id = row["rollout_id"], row["worker_id"]
        before = self._rows.get(rollout_id)
        if before is None and len(self._rows) >= self._rollouts_max:
            return
        if before is not None:
            self._tally.in_flight -= before["in_flight"] or 0
            if before["worker_id"] != worker_id or row["state"] == "lost":
                self._disown(before)
        self._rows[rollout_id] = row
        self._tally.in_flight += row["in_flight"] or 0
        if row["state"] != "lost" and worker_id in self._workers:
            self._workers[worker_id].rollouts[rollout_id] = None
        self._window.changed(members=before is None)
        self.version += 1

    def _drop(self, rollout_id: str) -> None:
        row = self._rows.pop(rollout_id)
        self._touched.pop(rollout_id, None)
        self._tally.in_flight -= row["in_flight"] or 0
        self._disown(row)
        self._window.changed(members=True)
        self.version += 1

    def _disown(self, row: Row) -> None:
        worker = self._workers.get(row["worker_id"])
        if worker is not None:
            worker.rollouts.pop(row["rollout_id"], None)

    # Events.

    def _tell(self, worker: KnownWorker, event: dict[str, Any]) -> None:
        """An event of a worker, unless it told it before."""
        at = event["at"] or self.at()
        if worker.unconfirmed is not None and at <= worker.replayed_until:
            return
        worker.told_until = max(worker.told_until, at)
        self._tally.event(event["event"], self._seconds())
        if event["event"] in {"swept", "session_lost", "claim_lost"}:
            self.survey_wanted = True
        self.events.add({**event, "at": at})
        self.version += 1

    def _happened(self, event: str, worker_id: str, *, at: str | None = None) -> None:
        self.events.add(
            {"at": at or self.at(), "event": event, "rollout_id": None, **_EVENT}
            | {"worker_id": worker_id}
        )
        self.version += 1

    def _seconds(self) -> float:
        return self._now().timestamp()


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
