# SPDX-License-Identifier: Apache-2.0
"""All that the routes of one admin address stand on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fastapi import Response

from rollout_router.admin.access import Access
from rollout_router.admin.known import Known
from rollout_router.admin.streams import Streams
from rollout_router.admin.threads import Threads
from rollout_router.admin.views import Service, Views, written
from rollout_router.admin.watching import Watching
from rollout_router.claims import ClaimReader

__all__ = ["CHANGES_AT_ONCE_MAX", "READS_AT_ONCE_MAX", "AdminAddress", "json_response"]

READS_AT_ONCE_MAX: Final = 8
"""Requests that read the store; beyond them 503. A pass over 100,000 claims takes seconds."""

CHANGES_AT_ONCE_MAX: Final = 64
"""Requests that change the store or wait for a worker; beyond them 503. Each may wait an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAddress:
    """One admin address.

    Attributes:
        store: to read.
        allow_network_fs: whether a store on a network file system may be changed.
        service: whose it is.
        access: who may.
        scrape: the metrics of all workers, in Prometheus's text; blocks. None: there are none.
        known: what is known.
    """

    store: ClaimReader
    allow_network_fs: bool
    service: Service
    access: Access
    scrape: Callable[[], bytes] | None
    known: Known = field(default_factory=Known)
    streams: Streams = field(default_factory=Streams)
    reads: Threads = field(default_factory=lambda: Threads("reading", READS_AT_ONCE_MAX))
    changes: Threads = field(default_factory=lambda: Threads("changing", CHANGES_AT_ONCE_MAX))
    views: Views = field(init=False)
    watching: Watching = field(init=False)

    def __post_init__(self) -> None:
        watching = Watching(self.store, self.known, on_change=self.streams.tell)
        object.__setattr__(self, "watching", watching)
        object.__setattr__(self, "views", Views(self.known, self.service))

    @property
    def state_dir(self) -> Path:
        """The directory of the store."""
        return self.store.state_dir

    async def read(self, work: Callable[[], dict[str, Any]]) -> Response:
        """The document that *work* makes of the store, in a thread; so is it written there."""
        return json_response(await self.reads.run(lambda: written(work())))

    async def change(self, work: Callable[[], dict[str, Any]]) -> Response:
        """What *work* did, in a thread; the store is looked at anew."""
        try:
            return json_response(await self.changes.run(lambda: written(work())))
        finally:
            self.watching.want_survey()


def json_response(raw: bytes, status: int = 200) -> Response:
    """JSON that is written already."""
    return Response(raw, status, media_type="application/json")
