# SPDX-License-Identifier: Apache-2.0
"""The server's end of a worker's connections, public and private, within limits (C3, R2, R4).

uvicorn's protocol bounds neither what a connection may send nor the time that it may take. Here

* a head, a body's framing, the requests in a queue and the connections have a bound in number;
* whatever is waited for has a bound in time: a head, the next byte of a body, a client that reads;
* a fault answers only the request that it is in. Answers under way to earlier requests are finished
  first, and nothing is ever written into the middle of one (R4);
* a trailer is no header: nothing can be added to a request that was let in already (R2).
"""

from collections.abc import Callable
from enum import Enum
from itertools import chain
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.errors import Refusal
from rollout_router.forked import close_in_children
from rollout_router.routing.countdown import Countdown
from rollout_router.routing.counted import Counted
from rollout_router.routing.gone import GONE_KEY, Gone
from rollout_router.routing.limits import TURNED_AWAY_MAX, Limits

__all__ = ["LINGER_S", "WorkersProtocol", "protocol_noting"]

LINGER_S: Final = 2.0
"""A client that is still writing gets so long to read why it is refused: closing on bytes that
nobody read resets the connection, and the answer may be lost with it."""

_VERSIONS: Final = ("1.1", "1.0")
_START_BYTES: Final = 64  # around a target: method, version, the empty line
_LINE_BYTES: Final = 4  # around a header's name and value: ": " and CRLF


class Part(Enum):
    """What of a request is on its way."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class WorkersProtocol(HttpToolsProtocol):
    """uvicorn's protocol, within limits; no forked child keeps its connection.

    It writes no access lines: at a private socket they would repeat those of the public port.
    """

    limits: ClassVar[Limits]  # all three of each server's own subclass
    turned_away: ClassVar[set["WorkersProtocol"]]  # connections too many, while they are read
    on_lost: Callable[[], None]
    warned: ClassVar[bool] = False  # that there are no websockets here

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.access_log = False
        self._served = self.app
        self.app = self._serve
        self._part = Part.NOTHING
        self._fed_bytes = 0  # since the parser last said that anything was complete
        self._progress = False
        self._fault: Refusal | None = None  # why a callback of the parser refused
        self._lost = False
        self._ended = False  # nothing more is read from this connection
        self._awaited: Part | None = None  # what :attr:`_arrival` waits for
        self._arrival = Countdown(self.loop)
        self._reading = Countdown(self.loop)
        self._taken_bytes = 0
        self._running: RequestResponseCycle | None = None  # ``cycle`` is the newest request's
        self._gone: Gone | None = None  # of the request whose application began last
        self._ahead_bytes = 0  # that came while a request waited for the answer to another

    # The connection.

    def connection_made(self, transport: Any) -> None:
        """From now on a forked child closes it; beyond the bound it is turned away."""
        self._counted = Counted(transport, self.loop)
        super().connection_made(self._counted)  # type: ignore[arg-type]
        close_in_children(transport)
        if len(self.connections) - len(self.turned_away) > self.limits.connections():
            if len(self.turned_away) >= TURNED_AWAY_MAX:
                transport.abort()
                return
            self.turned_away.add(self)
        self._await_next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more; it is among the server's connections no longer."""
        self._lost = True
        if self._gone is not None:
            self._gone.tell()
        self._end()
        self._arrival.cancel()
        self._reading.cancel()
        self.turned_away.discard(self)
        super().connection_lost(exc)
        if self._running is not None and self._running is not self.cycle:
            self._running.disconnected = True
            self._running.message_event.set()
        self.on_lost()

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is another protocol's."""
        self._end()
        self._counted.flush()
        self.transport = self._counted.bare
        super().handle_websocket_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Said once: clients try a websocket again and again, and are told 426."""
        if not type(self).warned:
            type(self).warned = True
            super()._unsupported_upgrade_warning()

    # What comes.

    def data_received(self, data: bytes) -> None:
        """Parse it, unless the connection ends; hold to their bound the bytes that are no body."""
        if self._ended:
            return
        if self in self.turned_away:
            self._refuse(
                Refusal(
                    "overloaded",
                    "this worker has as many connections as it may; nothing happened, send again",
                )
            )
            return
        self._progress = False
        super().data_received(data)
        self._read_on(len(data))
        self._fed_bytes = 0 if self._progress else self._fed_bytes + len(data)
        if self._fed_bytes > self.limits.head_bytes_max + _START_BYTES:
            self._refuse(self._head_too_large())
        else:
            self._await_next()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._progress = True
        self._part = Part.HEAD
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Some of the target."""
        super().on_url(url)
        if len(self.url) > self.limits.target_bytes_max:
            self._raise(
                Refusal(
                    "request_target_too_long",
                    f"the path and query are longer than {self.limits.target_bytes_max} bytes;"
                    " nothing happened",
                )
            )

    def on_headers_complete(self) -> None:
        """A request is let in, or waits for the answer to the one before it."""
        self._progress = True
        lines_bytes = sum(map(len, chain.from_iterable(self.headers)))
        lines_bytes += _LINE_BYTES * len(self.headers)
        if (
            len(self.headers) > self.limits.headers_max
            or len(self.url) + lines_bytes > self.limits.head_bytes_max
        ):
            self._raise(self._head_too_large())
        if self.parser.get_http_version() not in _VERSIONS:  # to 0.9 a cut would look clean
            self._raise(Refusal("bad_request", "no HTTP/1.1 and no HTTP/1.0"))
        if self._answering and len(self.pipeline) >= self.limits.pipelined_max:
            self._raise(Refusal("overloaded", "more requests are pipelined than may be"))
        other_protocol = self.parser.should_upgrade() and not self._should_upgrade()
        if other_protocol and _has_body(self.headers):
            # The parser would take the body for the other protocol's, or for the next request.
            self._raise(
                Refusal(
                    "bad_request",
                    "an upgrade that is not done here, with a body; send it without Upgrade",
                )
            )
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        self._part = Part.BODY
        if not self.parser.should_upgrade():
            self.headers = []  # uvicorn adds trailers here; the request keeps the list that it has
        if other_protocol:  # what follows is not HTTP/1.1, if the client went ahead
            self.cycle.keep_alive = False
            self._end()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is whole. Nobody has to ask for more to learn that its client left."""
        self._progress = True
        self._part = Part.NOTHING
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """What came is no request, or a callback refused it; uvicorn calls this for both."""
        self._refuse(self._fault or Refusal("bad_request", f"{msg} {self._outcome}."))

    def _read_on(self, count: int) -> None:
        """A connection that is not read never says that its client left. Bounded in bytes."""
        self._ahead_bytes = self._ahead_bytes + count if self.pipeline else 0
        if self.pipeline and self._ahead_bytes <= HIGH_WATER_LIMIT:
            self.flow.resume_reading()

    # What is waited for.

    @property
    def _answering(self) -> bool:
        return not getattr(self.cycle, "response_complete", True)  # None before the first

    def _await_next(self) -> None:
        """Begin to wait for what must come next, if that is another thing than before."""
        stopped = self._ended or self._answering or self.transport.is_closing()
        awaited = None if stopped else self._part
        if awaited is self._awaited:
            return
        self._awaited = awaited
        if awaited is None:
            self._arrival.pause()
        elif awaited is Part.NOTHING and self not in self.turned_away:
            self._arrival.start(self.timeout_keep_alive, self.transport.close)
        elif awaited is Part.HEAD:
            self._arrival.start(self.limits.head_s_max, self._refuse_slow)
        else:
            self._arrival.start(self.limits.head_s_max, self.transport.close)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> Any:
        """Run the application, whose wait for the body of its request has a bound."""
        scope[GONE_KEY] = self._gone = Gone()
        if self._lost:  # since it was started
            self._gone.tell()
        # The request whose body is on its way is the newest one.
        if self._part is Part.BODY and self.scope is scope:
            receive = self._in_time(scope, receive)
        try:
            return await self._served(scope, receive, send)
        finally:
            self._watch_reader()

    def _in_time(self, scope: Any, receive: Receive) -> Receive:
        limits, wait = self.limits, Countdown(self.loop)
        allowed_s = limits.body_stall_s_max

        async def receive_in_time() -> Message:
            nonlocal allowed_s
            if self._part is not Part.BODY or self.scope is not scope:
                return await receive()
            bound_s = max(0.0, min(limits.body_stall_s_max, allowed_s))
            wait.start(bound_s, self._refuse_slow)
            try:
                message = await receive()
            finally:
                wait.cancel()
            allowed_s -= wait.waited_s
            allowed_s += len(message.get("body", b"")) / limits.body_bytes_per_s_min
            return message

        return receive_in_time

    def pause_writing(self) -> None:
        """The client does not read as fast as it is written to: its time begins."""
        super().pause_writing()
        self._reading.cancel()
        self._watch_reader()

    def on_response_complete(self) -> None:
        """An answer is written; what must come next is waited for."""
        if self.pipeline:
            self._running = self.pipeline[-1][0]
            super().on_response_complete()
        else:  # as uvicorn's, without its keep-alive timer: ours sees when the loop was held up
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()
        self._watch_reader()
        self._await_next()

    def _watch_reader(self) -> None:
        """Abort, unless the client takes something of what waits for it, and so on."""
        if self._lost or self._reading.running:
            return
        if self._counted.get_write_buffer_size():
            self._taken_bytes = self._counted.taken_bytes()
            self._reading.start(self.limits.answer_stall_s_max, self._look_at_reader)

    def _look_at_reader(self) -> None:
        if self._counted.taken_bytes() > self._taken_bytes:
            self._watch_reader()
        else:
            self.transport.abort()

    # What is refused.

    def _raise(self, refusal: Refusal) -> None:
        """Have the parser stop in its callback, and uvicorn call :meth:`send_400_response`."""
        self._fault = refusal
        raise refusal

    def _head_too_large(self) -> Refusal:
        return Refusal(
            "request_head_too_large",
            f"a head of more than {self.limits.headers_max} headers or"
            f" {self.limits.head_bytes_max} bytes. {self._outcome}.",
        )

    @property
    def _outcome(self) -> str:
        if self._part is Part.BODY:
            return "Its application may have begun to read it"
        return "Nothing of it happened"

    def _refuse_slow(self) -> None:
        self._refuse(
            Refusal(
                "request_timeout",
                f"the {self._part.value} of the request did not come in time. {self._outcome}.",
            )
        )

    def _end(self) -> None:
        self._ended = True
        self._await_next()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer the request that is on its way, where nothing else is being answered, and end."""
        if self._ended or self.transport.is_closing():
            return
        self._end()
        of_the_body = self._part is Part.BODY
        if of_the_body and self.pipeline:  # not begun, and never will
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running  # type: ignore[assignment]
            of_the_body = False
        if self._answering and not of_the_body:
            self.cycle.keep_alive = False  # earlier requests were right, and get their answers
            self.flow.resume_reading()  # and see a client that leaves
        elif self._answering and self.cycle.response_started:
            self.transport.abort()
        elif of_the_body and not self._answering:
            self.transport.close()  # it has its answer
        else:
            if self._answering:
                self.cycle.disconnected = True  # nothing of it may be written behind this
                self.cycle.message_event.set()
            self._say(refusal)

    def _say(self, refusal: Refusal) -> None:
        lines = [STATUS_LINE[refusal.status]]
        for name, value in [*refusal.headers(), (b"connection", b"close")]:
            lines += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*lines, b"\r\n", refusal.body()]))
        self._watch_reader()
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._arrival.start(LINGER_S, self.transport.close)


def protocol_noting(on_lost: Callable[[], None], limits: Limits) -> type[WorkersProtocol]:
    """The protocol of one server, which calls *on_lost* whenever one of its connections ended."""
    own = {"on_lost": staticmethod(on_lost), "limits": limits, "turned_away": set()}
    return type("Protocol", (WorkersProtocol,), own)


def _has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0"))
        for name, value in headers
    )
