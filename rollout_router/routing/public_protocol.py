# SPDX-License-Identifier: Apache-2.0
"""The server's end of a public connection: a request may go to its owner below ASGI (R1, R2, R4).

A request whose head is read waits until what came with it is read too, in the same callback. What
is whole by then, and the only one on its connection, is offered to the router's ``begin_hop``. All
else, and what that does not take, goes to the application as in any uvicorn.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rollout_router.asgi import Scope
from rollout_router.routing.begun import BEGUN_KEY, BegunHop
from rollout_router.routing.limits import Limits
from rollout_router.routing.workers_protocol import WorkersProtocol, protocol_noting

__all__ = ["BeginHop", "PublicProtocol", "public_protocol"]

BeginHop = Callable[[Scope, bytes | bytearray], BegunHop | None]
"""Sends a whole request to its owner; None where the application is to have it."""


class PublicProtocol(WorkersProtocol):
    """Of one connection, which has at most one begun hop; the application has none beside it."""

    begin_hop: BeginHop

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._feeding = False  # the parser is at work
        self._held: RequestResponseCycle | None = None  # the request that it found
        self._begun: BegunHop | None = None

    def data_received(self, data: bytes) -> None:
        """Feed the parser; then the request that it found goes on its way."""
        self._feeding = True
        super().data_received(data)
        self._feeding = False
        self._begin_held()

    def on_message_begin(self) -> None:
        """Another request follows in what is read: the one before it is not the only one."""
        self._run_held()
        super().on_message_begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """The owner of a begun hop is told that its client left."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.abort()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Uvicorn's; called from its parser, or when the answer before this one is written."""
        if self._feeding and app == self.app:
            self._held = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def _run_held(self) -> None:
        cycle, self._held = self._held, None
        if cycle is not None:
            super()._start_asgi_task(cycle, self.app)

    def _begin_held(self) -> None:
        """Send the request to its owner where that can be done at once; else run it."""
        cycle = self._held
        if cycle is None:
            return
        whole = cycle.keep_alive and not (cycle.more_body or cycle.disconnected or self._ended)
        begun = self.begin_hop(cast("Scope", cycle.scope), cycle.body) if whole else None
        if begun is None:
            self._run_held()
            return
        self._held, self._begun = None, begun
        self.flow.resume_reading()  # or a client that leaves is not heard of
        begun.listen(partial(self._pass_on, cycle, begun))

    def _pass_on(self, cycle: RequestResponseCycle, begun: BegunHop) -> None:
        """Write the answer where it is whole; else the router takes the hop over."""
        self._begun = None
        writable = not (self.flow.write_paused or self.transport.is_closing())
        plain = cycle.keep_alive and writable
        answer = begun.take_answer() if plain else None
        if answer is None:
            cycle.scope[BEGUN_KEY] = begun  # type: ignore[typeddict-unknown-key]
            super()._start_asgi_task(cycle, self.app)
            return
        cycle.response_started = cycle.response_complete = True
        self._counted.write_whole(answer)
        self.on_response_complete()


def public_protocol(
    on_lost: Callable[[], None], limits: Limits, begin_hop: BeginHop
) -> type[PublicProtocol]:
    """The protocol of one public port; see :func:`protocol_noting`."""
    kinds = (PublicProtocol, protocol_noting(on_lost, limits))
    return type("Protocol", kinds, {"begin_hop": staticmethod(begin_hop)})
