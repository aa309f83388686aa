# SPDX-License-Identifier: Apache-2.0
"""What was counted since this process began; nothing is ever taken back but calls in flight. Pure.

A worker says what a rollout came to under its claim; what is more than it said before is added.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rollout_router.admin.changes import Row
from rollout_router.admin.series import Series

__all__ = ["Tally"]

_OF_ROWS: Final = ("turns", "body_bytes", "sent_bytes", "resyncs")
_OF_EVENTS: Final[Mapping[str, str]] = {
    "claim_taken_over": "takeovers",
    "claim_released": "releases",
}


class Tally:
    """Totals, and the series of them."""

    def __init__(self) -> None:
        names = (*_OF_ROWS, "saved_bytes", *_OF_EVENTS.values())
        self.totals: Final = dict.fromkeys(names, 0)
        self.in_flight = 0  # whoever keeps the rows keeps it
        self.series: Final = Series()

    def rows(self, told: Iterable[tuple[Row, Row | None]], seconds: float) -> None:
        """Add what each row says beyond what was said of the same claim before.

        Args:
            told: each row with the one before it; None where nothing was counted of its claim.
            seconds: now, since 1970.
        """
        turns = body_bytes = sent_bytes = resyncs = saved_bytes = 0
        for row, before in told:
            body = _more("body_bytes", row, before)
            sent = _more("sent_bytes", row, before)
            turns += _more("turns", row, before)
            resyncs += _more("resyncs", row, before)
            body_bytes += body
            sent_bytes += sent
            saved_bytes += max(0, body - sent)
        if turns or body_bytes or sent_bytes or resyncs:
            self.totals["turns"] += turns
            self.totals["body_bytes"] += body_bytes
            self.totals["sent_bytes"] += sent_bytes
            self.totals["resyncs"] += resyncs
            self.totals["saved_bytes"] += saved_bytes
            self.series.add(seconds, saved_bytes=saved_bytes, sent_bytes=sent_bytes, turns=turns)

    def event(self, name: str | None, seconds: float) -> None:
        """Count an event, where it is one that is counted."""
        total = _OF_EVENTS.get(name or "")
        if total is not None:
            self.totals[total] += 1
        if total == "takeovers":
            self.series.add(seconds, takeovers=1)


def _more(name: str, row: Row, before: Row | None) -> int:
    now = row[name]
    if now is None:
        return 0
    then = None if before is None else before[name]
    more: int = now if then is None else now - then
    return max(more, 0)
