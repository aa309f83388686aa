# SPDX-License-Identifier: Apache-2.0
"""The server's end of a public connection: a request may go to its owner below ASGI (R1, R2, R4).

A request whose head is read waits until what came with it is read too, in the same callback. What
is whole by then, and the only one on its connection, is offered to the router's ``begin_hop``. One
whose head was sent on before is offered to ``begin_again``, and not even parsed: until something
else than its whole answer comes, which takes it the usual way. All else, and what those do not
take, goes to the application as in any uvicorn.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rollout_router.asgi import Scope
from rollout_router.errors import Refusal
from rollout_router.routing.begun import (
    BEGUN_KEY,
    KNOWN_HEAD_BYTES_MAX,
    KNOWN_HEAD_ROOM_BYTES,
    BegunHop,
    split,
)
from rollout_router.routing.hop_head import lines_of_connection
from rollout_router.routing.limits import Limits
from rollout_router.routing.workers_protocol import Part, WorkersProtocol, protocol_noting
from rollout_router.transport.hop import Body

__all__ = ["Begins", "PublicProtocol", "public_protocol"]


class Begins(Protocol):
    """What sends whole requests to their owners; None where the application is to have one."""

    def begin_hop(self, scope: Scope, body: Body, *, head: bytes | None) -> BegunHop | None:
        """See :meth:`Router.begin_hop`."""

    def begin_again(self, head: bytes, lines: bytes, body: Body) -> BegunHop | None:
        """See :meth:`Router.begin_again`."""


class PublicProtocol(WorkersProtocol):
    """Of one connection, which has at most one begun hop; the application has none beside it."""

    router: ClassVar[Begins]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._feeding = False  # the parser is at work
        self._held: RequestResponseCycle | None = None  # the request that it found
        self._begun: BegunHop | None = None
        self._unread = b""  # the request of that hop, which the parser has not seen
        self._rereading = False  # the parser sees it, and what it says of it comes too late
        room = self.limits.head_bytes_max - KNOWN_HEAD_ROOM_BYTES
        self._known_bytes_max = min(KNOWN_HEAD_BYTES_MAX, room)

    def connection_made(self, transport: Any) -> None:
        """What hops say of this connection is the same for all of them."""
        super().connection_made(transport)
        self._lines = lines_of_connection(
            {"scheme": self.scheme, "client": self.client, "root_path": self.root_path}
        )

    # What comes.

    def data_received(self, data: bytes) -> None:
        """Send a request on that is known; else parse it, and send it on or run it."""
        head = None
        if self._unread:
            self._read_begun()
        elif self._is_between() and (parts := split(data)) is not None:
            head, body = parts
            if len(head) > self._known_bytes_max:
                head = None
            elif (begun := self.router.begin_again(head, self._lines, body)) is not None:
                self._unread, self._fed_bytes = data, 0
                self._wait(begun)
                self._await_next()
                return
        self._feed(data)
        self._begin_held(head)

    def on_message_begin(self) -> None:
        """Another request follows in what is read: the one before it is not the only one."""
        self._run_held()
        super().on_message_begin()

    def shutdown(self) -> None:
        """A request that was sent on is finished, as any that has begun."""
        if self._unread:
            self._read_begun()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """The owner of a begun hop is told that its client left."""
        begun, self._begun, self._unread = self._begun, None, b""
        if begun is not None:
            begun.abort()
        super().connection_lost(exc)

    @property
    def _answering(self) -> bool:
        return bool(self._unread) or super()._answering

    def _is_between(self) -> bool:
        """Whether a request may begin here, and nothing of it was read."""
        idle = self._part is Part.NOTHING and not (self._ended or self._answering or self.pipeline)
        routed = self.transport is not self._counted.bare  # or it is a websocket's
        return idle and routed and self not in self.turned_away

    def _feed(self, data: bytes) -> None:
        self._feeding = True
        super().data_received(data)
        self._feeding = False

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

    # What goes to its owner.

    def _begin_held(self, head: bytes | None) -> None:
        """Send the request on where that can be done at once; else run it."""
        cycle = self._held
        if cycle is None:
            return
        begun = None
        if cycle.keep_alive and not (cycle.more_body or cycle.disconnected or self._ended):
            begun = self.router.begin_hop(cast("Scope", cycle.scope), cycle.body, head=head)
        if begun is None:
            self._run_held()
            return
        self._held = None
        self._wait(begun, cycle)

    def _wait(self, begun: BegunHop, cycle: RequestResponseCycle | None = None) -> None:
        self._begun = begun
        self.flow.resume_reading()  # or a client that leaves is not heard of
        begun.listen(partial(self._pass_on, begun, cycle))

    def _read_begun(self) -> RequestResponseCycle | None:
        """Parse the request of the hop that was begun without.

        Its head was parsed before, but for its length. Were it refused all the same, then a call
        that may have run would be said not to have: its client gets no answer instead (R2).
        """
        data, self._unread = self._unread, b""
        self._rereading = True
        self._feed(data)
        self._rereading = False
        cycle, self._held = self._held, None
        if cycle is None:
            self.transport.abort()
        elif self._begun is not None:
            self._wait(self._begun, cycle)
        return cycle

    def _refuse(self, refusal: Refusal) -> None:
        if self._rereading:
            self._end()
        else:
            super()._refuse(refusal)

    def _pass_on(self, begun: BegunHop, cycle: RequestResponseCycle | None) -> None:
        """Write the answer where it is whole; else the router takes the hop over."""
        self._begun = None
        kept = cycle is None or cycle.keep_alive
        writable = not (self.flow.write_paused or self.transport.is_closing())
        answer = begun.take_answer() if kept and writable else None
        if answer is None:
            cycle = cycle or self._read_begun()
            if cycle is None:
                begun.abort()
                return
            cycle.waiting_for_100_continue = False  # its body was sent on
            cycle.scope[BEGUN_KEY] = begun  # type: ignore[typeddict-unknown-key]
            super()._start_asgi_task(cycle, self.app)
            return
        self._unread = b""
        if cycle is not None:
            cycle.response_started = cycle.response_complete = True
            cycle.body = bytearray()  # nobody else lets go of it
        self._counted.write_whole(answer)
        self.on_response_complete()


def public_protocol(
    on_lost: Callable[[], None], limits: Limits, router: Begins
) -> type[PublicProtocol]:
    """The protocol of one public port; see :func:`protocol_noting`."""
    kinds = (PublicProtocol, protocol_noting(on_lost, limits))
    return type("Protocol", kinds, {"router": router})
