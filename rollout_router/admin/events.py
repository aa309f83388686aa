# SPDX-License-Identifier: Apache-2.0
"""What happened, newest last, in bounded memory; and what happened to one rollout. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["EVENTS_MAX", "Events"]

EVENTS_MAX: Final = 65_536
"""Events that are remembered, the oldest forgotten first: some 30 MB, and an hour of eighteen
rollouts a second."""


class Events:
    """Numbered from 1, without a gap; each is a JSON object."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._max = events_max
        self._all: deque[dict[str, Any]] = deque()
        self._of: dict[str, deque[dict[str, Any]]] = {}  # those of a rollout, oldest first
        self.newest = 0  # number of

    def add(self, event: Mapping[str, Any]) -> None:
        """Remember *event*, which has at least a ``rollout_id``, perhaps None."""
        if len(self._all) >= self._max:
            self._forget_oldest()
        self.newest += 1
        numbered = {"number": self.newest, **event}
        self._all.append(numbered)
        if (rollout_id := numbered["rollout_id"]) is not None:
            self._of.setdefault(rollout_id, deque()).append(numbered)

    def after(self, number: int, *, limit: int) -> list[dict[str, Any]]:
        """The oldest *limit* events that are remembered behind *number*, oldest first."""
        if not self._all:
            return []
        first = max(0, number + 1 - self._all[0]["number"])
        return [self._all[place] for place in range(first, min(first + limit, len(self._all)))]

    def of(self, rollout_id: str) -> list[dict[str, Any]]:
        """What is remembered of one rollout, oldest first."""
        return list(self._of.get(rollout_id, ()))

    def _forget_oldest(self) -> None:
        rollout_id = self._all.popleft()["rollout_id"]
        if rollout_id is not None:
            of_it = self._of[rollout_id]
            of_it.popleft()
            if not of_it:
                del self._of[rollout_id]
