# SPDX-License-Identifier: Apache-2.0
"""What one refresh of the admin address costs: asking, merging, choosing a page, writing it.

The store is a real one; of its two workers the life locks and sockets are real, and what they
answer was written before. They answer from this very process and are asked one after the other, so
that the figures are above those of workers that run beside it. The reference is all rollouts
written as JSON once, as an address without pages would send them at each refresh.

A worker tells of a thousand rollouts at a time, so that a refresh brings 2,000 at most; a page can
be sent after each. That every rollout is told anew, as at the start, has no target.
"""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rollout_router.admin.changes import read_changes
from rollout_router.admin.known import Known
from rollout_router.admin.query import Query
from rollout_router.admin.views import Service, Views
from rollout_router.admin.watching import look, survey
from rollout_router.bench.figures import Part, Target, at_most, stage_table
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.claims import FileClaimStore, LifeLock, new_nonce
from rollout_router.operate import changes_of
from rollout_router.routing.sweeping import Pace
from rollout_router.tables import Table

__all__ = ["AdminCosts", "run_admin"]

_REFRESH_MS_MAX: Final = 100.0
_WARM_UPS: Final = 2
_AT_ONCE: Final = 1000  # rows of one answer, as a worker gives them
_QUERY: Final = Query(q="r1", sort="turns", limit=500)  # filters, sorts, and takes all it may
_WORKERS: Final = 2
_MOST: Final = _WORKERS * _AT_ONCE
_SLIGHT: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminCosts(Part):
    """Each stage."""

    rounds: int
    claims: int
    view_bytes: int  # one event of a stream
    stages: list[Measured]

    def tables(self) -> list[Table]:
        """One table."""
        title = f"A refresh of the admin address, of {self.claims:,} claims; {self.rounds:,} rounds"
        return [stage_table(title, self.stages, "ms")]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {f"admin {stage.stage}": stage for stage in self.stages}

    def targets(self) -> list[Target]:
        """A refresh is far below what somebody who looks would notice."""
        return [
            at_most(
                f"{stage.stage} of {self.claims:,} claims, ms", stage.median_ms, _REFRESH_MS_MAX
            )
            for stage in self.stages
            if stage.stage.startswith("refresh_")
        ]


def run_admin(
    work_dir: Path, *, claims: int, rounds: int, say: Callable[[str], None]
) -> AdminCosts:
    """Measure refreshes of a new store of so many claims below *work_dir*, removed again."""
    say(f"measuring refreshes of the admin address: {claims:,} claims, {rounds:,} rounds")
    with (
        tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir) as folder,
        ExitStack() as stack,
    ):
        bench = _Bench(Path(folder), claims, stack)
        stages = run_rounds(
            bench.stages(), rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter
        )
        view_bytes = len(bench.views.view(_QUERY))
    return AdminCosts(rounds=rounds, claims=claims, view_bytes=view_bytes, stages=stages)


class _Worker:
    """The life lock and the socket of a worker; it answers what it is given."""

    def __init__(self, folder: Path, store: FileClaimStore, stack: ExitStack) -> None:
        nonce = new_nonce()
        path = folder / f"{nonce}.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.life = LifeLock.acquire(store, nonce=nonce, socket=str(path))
        self.rollouts: list[str] = []
        self.cursor = 0
        self._answers: list[bytes] = []
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        stack.callback(self.life.close, remove=True)
        stack.callback(thread.join)
        stack.callback(self._listener.close)
        stack.callback(self._listener.shutdown, socket.SHUT_RDWR)

    def will_answer(self, changed: int, number: int) -> None:
        """Prepare what is answered next: so many rollouts have one turn more."""
        parts = [self.rollouts[n : n + _AT_ONCE] for n in range(0, changed, _AT_ONCE)] or [[]]
        parts[-1] = parts[-1][: changed - _AT_ONCE * (len(parts) - 1)]
        self._answers = [self._answer(part, number) for part in parts]
        self._answers[-1] = self._answers[-1].replace(b'"more": true', b'"more":false')

    def _answer(self, rollouts: list[str], number: int) -> bytes:
        at = f"2026-01-01T00:00:00.{number:06d}Z"
        rows = [
            {
                "rollout_id": rollout_id,
                "kind": "rollout",
                "claim_epoch": 2**33,
                "claimed_at": at,
                "how": "new",
                "turns": number + place % 50,
                "body_bytes": 1_000_000 * number,
                "sent_bytes": 10_000 * number,
                "in_flight": place % 2,
                "resyncs": 0,
                "last_outcome": "completed",
                "last_at": at,
            }
            for place, rollout_id in enumerate(rollouts)
        ]
        status = {"claims": len(self.rollouts), "in_flight": len(self.rollouts) // 2, "lag_ms": 1.5}
        document: dict[str, Any] = {
            "schema": 1,
            "id": self.life.owner.nonce,
            "cursor": number,
            "reset": False,
            "more": True,
            "status": status,
            "rollouts": rows,
            "gone": [],
            "events": [],
        }
        body = json.dumps(document).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            with connection, suppress(ConnectionError, IndexError):
                if connection.recv(65536):  # nothing: only the socket was tried
                    connection.sendall(self._answers.pop(0))


class _Bench:
    def __init__(self, folder: Path, claims: int, stack: ExitStack) -> None:
        self._store = FileClaimStore.open(folder / "state", service="bench")
        self._workers = [_Worker(folder, self._store, stack) for _ in range(_WORKERS)]
        self._known = Known()
        service = Service(name="bench", store_id=self._store.store_id, url=None)
        self.views = Views(self._known, service)
        self._number = 0
        for number in range(claims):
            worker = self._workers[number % _WORKERS]
            rollout_id = f"r{number}-of-a-run"
            self._store.take(rollout_id, worker.life.owner)
            worker.rollouts.append(rollout_id)
        self._will(1.0)()  # from now on all is known
        self._rows = self._known.page(Query(limit=0)).total
        if self._rows != claims:
            raise RuntimeError(f"{claims} claims, and {self._rows} are known")

    def stages(self) -> list[Stage]:
        """All of them; each refresh is compared with writing all rollouts once."""
        reference = "json_of_all"
        found = survey(self._store, began=self._known.version, pace=lambda: True)

        def stage(name: str, prepare: Callable[[], Callable[[], object]]) -> Stage:
            return Stage(name=name, reference=reference, prepare=prepare)

        return [
            Stage(name=reference, reference=None, prepare=lambda: self._write_all),
            stage("refresh_unchanged", lambda: self._will(0.0)),
            stage("refresh_1_percent", lambda: self._will(_SLIGHT)),
            stage("refresh_2000", lambda: self._will(min(1.0, _MOST / self._rows))),
            stage("all_told_anew", lambda: self._will(1.0)),
            stage("refresh_1_percent_beside_a_survey", self._beside_a_survey),
            stage("survey", lambda: lambda: survey(self._store, began=0, pace=lambda: True)),
            stage("survey_merged", lambda: lambda: self._known.merge(found)),
        ]

    def _write_all(self) -> bytes:
        rows = [row for n in range(0, self._rows, 500) for row in self._page(n)]
        return json.dumps(rows).encode()

    def _page(self, offset: int) -> list[dict[str, Any]]:
        query = Query(sort="rollout_id", descending=False, offset=offset, limit=500)
        return self._known.page(query).rows

    def _will(self, share: float) -> Callable[[], object]:
        """One refresh, with so many rollouts changed since the last one."""
        self._number += 1
        for worker in self._workers:
            worker.will_answer(round(share * len(worker.rollouts)), self._number)
        return self._refresh

    def _refresh(self) -> bytes:
        seen, gate, error = look(self._store, frozenset(self._known.answering()))
        self._known.see(seen or [])
        self._known.look_at(gate, error)
        for worker in self._workers:
            more = True
            while more:
                told = changes_of(worker.life.identity, worker.cursor)
                changes = read_changes(worker.life.owner.nonce, told)
                self._known.apply(worker.life.owner.nonce, changes)
                worker.cursor, more = changes.cursor, changes.more
        return self.views.view(_QUERY)

    def _beside_a_survey(self) -> Callable[[], object]:
        refresh, over = self._will(_SLIGHT), threading.Event()
        pace = Pace()

        def step() -> None:
            pace()
            if over.is_set():
                raise _Over

        def look_through() -> None:
            with suppress(_Over):
                while True:
                    survey(self._store, began=0, pace=step)

        threading.Thread(target=look_through, daemon=True).start()

        def timed() -> None:
            refresh()
            over.set()

        return timed


class _Over(Exception):  # noqa: N818 - what happened
    """The refresh that a survey ran beside is over."""
