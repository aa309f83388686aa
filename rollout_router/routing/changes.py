# SPDX-License-Identifier: Apache-2.0
"""What changed at one worker since somebody last looked: its rollouts, and what happened to them.

Whoever watches asks for what is newer than a cursor, and gets it oldest first, in bounded answers.
A rollout stands in the order of its last change, so that an answer costs what changed and not what
is held. Bounded like history itself: a row lives as long as its claim, and of what is gone and of
what happened the newest are kept. Pure, for one thread.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any, Final

from rollout_router.claims.record import Kind

__all__ = ["ANSWER_ROWS_MAX", "EVENTS_KEPT_MAX", "GONE_KEPT_MAX", "Changes", "Row", "utc"]

ANSWER_ROWS_MAX: Final = 1000
"""Rows, and events, of one answer: some 300 KB, which takes the event loop 3 ms to write."""

EVENTS_KEPT_MAX: Final = 4096
"""Events that wait for who watches; it asks twice a second."""

GONE_KEPT_MAX: Final = 8192
"""Rollouts that were given up and are still named; who missed one is told to begin anew."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One rollout or session that this worker owns. Counts are of this claim epoch.

    ``body_bytes`` is what the application saw, ``sent_bytes`` what came for it.
    """

    rollout_id: str
    kind: Kind
    claim_epoch: int
    claimed_at: str  # ISO 8601 in UTC, as every time that is told
    how: str  # new, takeover, again
    turns: int = 0  # calls that ended here
    body_bytes: int = 0
    sent_bytes: int = 0
    in_flight: int = 0
    resyncs: int = 0
    last_outcome: str | None = None  # completed, failed, cancelled (as records say it), refused
    last_at: float | None = None  # seconds since 1970


def utc(at: float) -> str:
    """Seconds since 1970 in ISO 8601, in milliseconds."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S}.{int(at * 1000) % 1000:03d}Z"


class Changes:
    """The rows and events of one worker, each under the number of its last change."""

    def __init__(self) -> None:
        self._number = 0
        self._rows: OrderedDict[str, tuple[int, Row]] = OrderedDict()
        self._gone: deque[tuple[int, dict[str, Any]]] = deque(maxlen=GONE_KEPT_MAX)
        self._events: deque[tuple[int, dict[str, Any]]] = deque(maxlen=EVENTS_KEPT_MAX)
        self._gone_forgotten = 0  # the number of the newest that is named no more

    def row(self, rollout_id: str) -> Row | None:
        """The row of a rollout that is owned here."""
        found = self._rows.get(rollout_id)
        return None if found is None else found[1]

    def opened(self, row: Row) -> None:
        """A claim was taken: its row takes the place of any other of this rollout."""
        self._number += 1
        self._rows[row.rollout_id] = (self._number, row)
        self._rows.move_to_end(row.rollout_id)

    def touched(self, row: Row) -> None:
        """A row changed. One whose claim is no longer held is nobody's any more."""
        if self.row(row.rollout_id) is row:
            self.opened(row)

    def closed(self, rollout_id: str, claim_epoch: int) -> None:
        """A claim is no longer held."""
        row = self.row(rollout_id)
        if row is None or row.claim_epoch != claim_epoch:
            return
        del self._rows[rollout_id]
        self._number += 1
        if len(self._gone) == GONE_KEPT_MAX:
            self._gone_forgotten = self._gone[0][0]
        self._gone.append((self._number, {"rollout_id": rollout_id, "claim_epoch": claim_epoch}))

    def happened(self, event: dict[str, Any]) -> None:
        """Keep one event for who watches."""
        self._number += 1
        self._events.append((self._number, event))

    def since(self, after: int, rows_max: int = ANSWER_ROWS_MAX) -> dict[str, Any]:
        """What is newer than the cursor *after*, oldest first.

        Returns:
            ``cursor`` to ask with again; ``more``: there is more already; ``reset``: what was
            learned before is to be forgotten, for the answer cannot say all that is gone; and
            ``rollouts``, ``gone`` and ``events``, each at most *rows_max*. What is gone is the
            named claim epoch and every lower one: who asks seldom may never have heard of it.
        """
        reset = not self._gone_forgotten <= after <= self._number
        if reset:
            after = self._number
            for _, row in list(self._rows.values()):  # above all that is forgotten, in any pieces
                self.opened(row)
        lists = {
            "rollouts": _newer(reversed(self._rows.values()), after),
            "gone": _newer(reversed(self._gone), after),
            "events": _newer(reversed(self._events), after),
        }
        ends = [rows[rows_max - 1][0] for rows in lists.values() if len(rows) > rows_max]
        cursor = min(ends, default=self._number)
        found = {
            name: [row for _, row in takewhile(lambda entry: entry[0] <= cursor, rows)]
            for name, rows in lists.items()
        }
        found["rollouts"] = [_told(row) for row in found["rollouts"]]
        return {"cursor": cursor, "more": bool(ends), "reset": reset, **found}


def _told(row: Row) -> dict[str, Any]:
    at = None if row.last_at is None else utc(row.last_at)
    return {**asdict(row), "last_at": at}


def _newer(newest_first: Iterable[tuple[int, Any]], after: int) -> list[tuple[int, Any]]:
    found = list(takewhile(lambda entry: entry[0] > after, newest_first))
    found.reverse()
    return found
