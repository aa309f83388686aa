# SPDX-License-Identifier: Apache-2.0
"""How much was added in each step of the last minutes. Pure."""

from collections import deque
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

__all__ = ["SPAN_S", "STEP_S", "Series"]

STEP_S: Final = 5
"""Seconds of a step: ten questions to a worker, so that a quiet step is a quiet service."""

SPAN_S: Final = 600
"""Seconds that are remembered."""

_NAMES: Final = ("takeovers", "saved_bytes", "sent_bytes", "turns")


class Series:
    """Steps of ``STEP_S``, in the time of the wall clock, which never goes back here."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, dict[str, int]]] = deque(maxlen=SPAN_S // STEP_S)
        self._now = 0

    def add(self, seconds: float, **amounts: int) -> None:
        """Count *amounts* in the step of that time, in seconds since 1970."""
        step = self._step(seconds)
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, dict.fromkeys(_NAMES, 0)))
        counted = self._steps[-1][1]
        for name, amount in amounts.items():
            counted[name] += amount

    def shown(self, seconds: float) -> list[dict[str, Any]]:
        """Every step up to that time, oldest first; those in which nothing was added too."""
        last = self._step(seconds)
        counted = dict(self._steps)
        return [
            {"at": _at(step), **counted.get(step, dict.fromkeys(_NAMES, 0))}
            for step in range(last - SPAN_S // STEP_S + 1, last + 1)
        ]

    def moves(self, seconds: float) -> bool:
        """Whether what is shown at that time differs from what was shown before."""
        before = self._now
        first_shown = self._step(seconds) - SPAN_S // STEP_S
        return self._now != before and bool(self._steps) and self._steps[-1][0] >= first_shown

    def _step(self, seconds: float) -> int:
        self._now = max(self._now, int(seconds) // STEP_S)
        return self._now


@lru_cache(SPAN_S // STEP_S + 1)
def _at(step: int) -> str:
    return datetime.fromtimestamp(step * STEP_S, UTC).isoformat().replace("+00:00", "Z")
