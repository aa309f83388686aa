# SPDX-License-Identifier: Apache-2.0
"""The documents of what is known, and how they are written. Pure but for the time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollout_router.admin.known import Known
from rollout_router.admin.query import Query
from rollout_router.documents import SCHEMA

__all__ = ["EVENTS_AT_ONCE_MAX", "Service", "Views", "written"]

EVENTS_AT_ONCE_MAX: Final = 1000
"""Events in one answer; ask again with its cursor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Whose admin address it is."""

    name: str
    store_id: str
    url: str | None  # of the public port; None where others started the workers


class Views:
    """Made of *known*; what is the same for all who look is made once."""

    def __init__(self, known: Known, service: Service) -> None:
        self._known = known
        self._service = service
        self._version = -1
        self._views: dict[Query, bytes] = {}

    def overview(self) -> dict[str, Any]:
        """The service as a whole."""
        known, gate = self._known, self._known.gate
        return {
            "schema": SCHEMA,
            "service": self._service.name,
            "store_id": self._service.store_id,
            "url": self._service.url,
            "at": known.at(),
            "workers": known.workers(),
            "gate": {"open": gate.open, "by": gate.by, "why": gate.why},
            "totals": known.totals(),
            "series": known.series(),
        }

    def rollouts(self, query: Query) -> dict[str, Any]:
        """A page of rollouts."""
        page = self._known.page(query)
        return {
            "schema": SCHEMA,
            "total": page.total,
            "matching": page.matching,
            "offset": query.offset,
            "rollouts": page.rows,
        }

    def rollout(self, rollout_id: str, claim: Mapping[str, Any] | None) -> dict[str, Any]:
        """One rollout, with *claim*, the document of what is on disk, and what happened to it."""
        return {
            "schema": SCHEMA,
            "rollout": self._known.rollout(rollout_id),
            "claim": claim,
            "timeline": self._known.events.of(rollout_id),
        }

    def events(self, after: int) -> dict[str, Any]:
        """What happened behind the event of that number."""
        found = self._known.events.after(after, limit=EVENTS_AT_ONCE_MAX)
        cursor = found[-1]["number"] if found else min(after, self._known.events.newest)
        return {"schema": SCHEMA, "cursor": cursor, "events": found}

    def view(self, query: Query) -> bytes:
        """Overview and page as one event of a stream; the same bytes while nothing changed."""
        if self._version != self._known.version:
            self._version = self._known.version
            self._views.clear()
        if query not in self._views:
            document = {"overview": self.overview(), "rollouts": self.rollouts(query)}
            self._views[query] = b"event: view\ndata: " + written(document) + b"\n\n"
        return self._views[query]


def written(document: Mapping[str, Any]) -> bytes:
    """A document as one line of JSON."""
    return json.dumps(document, separators=(",", ":")).encode()
