# SPDX-License-Identifier: Apache-2.0
"""Which rollouts are asked for, in which order, and the page of them that is shown. Pure.

An order is made once for all who ask while nothing changed: a page of 10,000 rollouts then costs no
more than a look at each of them, and at none where nothing is filtered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollout_router.admin.changes import Row

__all__ = ["LIMIT_MAX", "Q_LENGTH_MAX", "SORTS", "STATES", "Page", "Query", "Window"]

LIMIT_MAX: Final = 500
"""Rows of a page: a screen has fifty, and each is some 400 bytes, twice a second."""

Q_LENGTH_MAX: Final = 200
"""Characters of a search: an id has no more."""

STATES: Final = ("owned", "owner_dead", "lost")

_NUMBERS: Final = ("claim_epoch", "turns", "body_bytes", "sent_bytes", "in_flight", "resyncs")
_TEXTS: Final = (
    *("rollout_id", "kind", "state", "worker_id", "verdict", "claimed_at"),
    *("how", "last_outcome", "last_at"),
)
SORTS: Final = (*_TEXTS, *_NUMBERS)
"""By which a page can be sorted; null comes first, and what is equal stands by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked for; None lets everything through.

    Attributes:
        q: a part of the id, in whatever case.
        worker: the id of the owner.
        state: one of ``STATES``.
        outcome: of the last call.
        sort: one of ``SORTS``.
        descending: whether the order is turned round.
        offset: how many are left out first.
        limit: how many are shown, at most ``LIMIT_MAX``.
    """

    q: str | None = None
    worker: str | None = None
    state: str | None = None
    outcome: str | None = None
    sort: str = "last_at"
    descending: bool = True
    offset: int = 0
    limit: int = 100

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise ValueError(f"rollouts are sorted by one of {', '.join(SORTS)}, not {self.sort!r}")
        if not (self.offset >= 0 and 0 <= self.limit <= LIMIT_MAX):
            raise ValueError(f"an offset is at least 0, a limit 0 to {LIMIT_MAX}")

    def chosen(self, rows: list[Row]) -> list[Row]:
        """Those of *rows* that are asked for, in their order. The cheap questions first."""
        for name, wanted in (
            ("worker_id", self.worker),
            ("state", self.state),
            ("last_outcome", self.outcome),
        ):
            if wanted is not None:
                rows = [row for row in rows if row[name] == wanted]
        if self.q is not None:
            part = self.q.lower()
            rows = [row for row in rows if part in row["rollout_id"].lower()]
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a query came to."""

    total: int  # rollouts that are known
    matching: int  # of them, those that were asked for
    rows: list[Row]


class Window:
    """Pages of rollouts that somebody else keeps.

    Args:
        rows: by rollout. Whoever changes them calls :meth:`changed`.
    """

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self._rows = rows
        self._ids: list[str] | None = None  # sorted; None: some came or went since
        self._orders: dict[
            tuple[str, bool], list[Row]
        ] = {}  # one for each of SORTS, twice, at most

    def changed(self, *, members: bool) -> None:
        """Rows say something else; with *members* some came or went."""
        if members:
            self._ids = None
        self._orders.clear()

    def page(self, query: Query) -> Page:
        """The rows that *query* asks for."""
        found = query.chosen(self._order(query.sort, query.descending))
        return Page(
            total=len(self._rows),
            matching=len(found),
            rows=found[query.offset : query.offset + query.limit],
        )

    def _order(self, sort: str, descending: bool) -> list[Row]:  # noqa: FBT001 - private
        key = (sort, descending)
        if key not in self._orders:
            if self._ids is None:
                self._ids = sorted(self._rows)
            rows = [self._rows[rollout_id] for rollout_id in self._ids]
            least: Any = "" if sort in _TEXTS else -1
            rows.sort(key=lambda row: least if row[sort] is None else row[sort], reverse=descending)
            self._orders[key] = rows
        return self._orders[key]
