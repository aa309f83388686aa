# SPDX-License-Identifier: Apache-2.0
"""Capture: ASGI middleware that writes one record a call, before its answer ends (F1, F2, R4).

It stands between the routing middleware and the application, and concerns the HTTP requests that
carry a ``Call``; HEAD and everything else pass through untouched. A call goes like this:

1. The body is read in full. A client that leaves before that has dispatched nothing.
2. The sink is raised to the call's claim epoch, once a rollout and epoch in this process. A sink
   that has seen a higher one: 503 ``claim_moved``. One that cannot be raised: 503
   ``claim_store_unavailable``. Nothing ran, and there is no record.
3. The application runs, and its answer streams through, except what ``withholding`` withholds.
   The head leaves with the first byte that may, so what is withheld whole has not begun.
4. The answer is complete: the record is written, and then the remainder leaves. Where the record is
   refused or cannot be written, an answer that has not begun becomes 502 ``record_refused``; one
   that has is aborted by :class:`ResponseCut`.

A call that ends in any other way leaves its record too: ``failed`` or ``cancelled``. Cancellation
waits for the record a bounded time, and goes on.
"""

import asyncio
import logging
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.call import CALL_KEY, Call
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.gateway.bodies import whole_body
from rollout_router.gateway.record import Outcome, Record
from rollout_router.gateway.sink import CaptureSink, EpochFenced, SinkUnavailable
from rollout_router.gateway.turn_end import Ending
from rollout_router.gateway.withholding import Withheld, withheld_of
from rollout_router.gateway.writers import Writers
from rollout_router.logs import told
from rollout_router.metrics import FENCED, STAGE_SECONDS

__all__ = ["RESPONSE_BYTES_MAX", "WITHHELD_BYTES_MAX", "Capture"]

RESPONSE_BYTES_MAX: Final = 64 << 20
"""Bytes of an answer that a record keeps. Answers are a thousandth of it; it protects memory."""

WITHHELD_BYTES_MAX: Final = 64 << 20
"""Bytes of an answer that wait for the record. One that needs more is not sent, but recorded."""

_RAISED_MAX: Final = 16_384  # rollouts whose raise is remembered; a forgotten one is raised again
_WRITING_S: Final = 1.0  # beyond the sink's lock time-out, a cancelled call waits for its record
_SERVER_ERROR: Final = 500
_logger = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Capture:
    """Records the calls of *app* in *sink*.

    Args:
        app: the application; it is called with a scope without ASGI extensions, so that all of its
            answer comes as body messages.
        sink: used in threads of this middleware only.
        response_bytes_max: a longer answer is recorded with its head and ``response_truncated``.
        withheld_bytes_max: an answer that has to wait with more than that is refused like one whose
            record cannot be written.
        now: the time in UTC.
    """

    def __init__(
        self,
        app: App,
        sink: CaptureSink,
        *,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        withheld_bytes_max: int = WITHHELD_BYTES_MAX,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._app = app
        self._sink = sink
        self._response_bytes_max = response_bytes_max
        self._withheld_bytes_max = withheld_bytes_max
        self._now = now
        self._writers = Writers(timeout_s=sink.lock_timeout_s)
        self._raised: OrderedDict[str, int] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request; the module says how."""
        call: Call | None = scope.get(CALL_KEY)
        if scope["type"] != "http" or call is None or scope["method"] == "HEAD":
            await self._app(scope, receive, send)
            return
        try:
            body = await whole_body(receive, rollout_id=call.rollout_id)
        except Refusal as too_large:
            await _answer(too_large, send)
            return
        if body is None:
            return
        refusal = await self._raise(call)
        if refusal is not None:
            await _answer(refusal, send)
            return
        exchange = _Exchange(
            call,
            scope,
            body,
            receive=receive,
            send=send,
            append=self._append,
            response_bytes_max=self._response_bytes_max,
            withheld_bytes_max=self._withheld_bytes_max,
            cancelled_wait_s=self._sink.lock_timeout_s + _WRITING_S,
            now=self._now,
        )
        inner = {**scope, "extensions": {}} if scope.get("extensions") else scope
        await exchange.run(self._app, inner)

    async def _raise(self, call: Call) -> Refusal | None:
        epoch = call.claim_epoch
        if epoch is None or self._raised.get(call.rollout_id) == epoch:
            return None
        if call.store_id != self._sink.store_id:
            raise ValueError(
                f"rollout {call.rollout_id}: its claim is in store {call.store_id}, and the sink "
                f"is fenced by {self._sink.store_id}"
            )

        def lift(deadline_s: float) -> None:
            self._sink.raise_to(call.rollout_id, epoch, deadline_s=deadline_s)

        try:
            await self._writers.submit(call.rollout_id, lift)
        except EpochFenced as fenced:
            FENCED["sink"].inc()
            _tell("record_fenced", f"{fenced}; nothing of it ran", call)
            return Refusal(
                "claim_moved",
                f"{fenced}; nothing ran, send again",
                rollout_id=call.rollout_id,
                claim_epoch=fenced.highest,
            )
        except SinkUnavailable as error:
            _tell("record_refused", str(error), call)
            return Refusal(
                "claim_store_unavailable",
                f"{error}; nothing ran, send again",
                rollout_id=call.rollout_id,
                claim_epoch=epoch,
            )
        self._raised[call.rollout_id] = epoch
        self._raised.move_to_end(call.rollout_id)
        if len(self._raised) > _RAISED_MAX:
            self._raised.popitem(last=False)
        return None

    def _append(self, record: Record) -> asyncio.Future[None]:
        """Write, in its turn; whoever stops waiting for the future does not stop the writing."""
        call = record.call

        def write(deadline_s: float) -> None:
            line = record.line()
            self._sink.append(call.rollout_id, call.claim_epoch, line, deadline_s=deadline_s)

        return self._writers.submit(call.rollout_id, write)


class _Exchange:
    """One dispatched call: what came in, what the application answers, and its one record."""

    def __init__(
        self,
        call: Call,
        scope: Scope,
        body: deque[Message],
        *,
        receive: Receive,
        send: Send,
        append: Callable[[Record], asyncio.Future[None]],
        response_bytes_max: int,
        withheld_bytes_max: int,
        cancelled_wait_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._call = call
        self._scope = scope
        self._body = body
        self._request = b"".join(message.get("body", b"") for message in body)
        self._receive = receive
        self._send = send
        self._append = append
        self._response_bytes_max = response_bytes_max
        self._withheld_bytes_max = withheld_bytes_max
        self._cancelled_wait_s = cancelled_wait_s
        self._now = now
        self._started_at = now()
        self._client_left = False
        self._start: Message | None = None
        self._withheld: Withheld | None = None
        self._seen: list[bytes] = []  # the answer's head, for the record
        self._seen_bytes = 0  # of the whole answer
        self._writing: asyncio.Future[None] | None = None
        self._begun = False  # something left towards the client
        self._over = False  # the whole answer left, or 502 in its place
        self._told = False  # that the record was refused
        self._cut: ResponseCut | None = None  # raised into the application; it may swallow it

    async def run(self, app: App, scope: Scope) -> None:
        """Call *app*; returns or raises with the record written, or refused and told."""
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:
            await self._leave_record(Outcome.CANCELLED)
            raise
        except Exception:
            if self._cut is None:
                await self._close(Outcome.CANCELLED if self._client_left else Outcome.FAILED)
                raise
        if self._over:
            return
        if self._cut is not None:  # also where the application kept it to itself
            raise self._cut
        if self._client_left:
            await self._leave_record(Outcome.CANCELLED)
            return
        await self._close(Outcome.FAILED)
        if not self._over:
            raise ResponseCut(f"rollout {self._call.rollout_id}: the application left its answer")

    async def receive(self) -> Message:
        """The body as it came, and then what the server has to say."""
        if self._body:
            return self._body.popleft()
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._client_left = True
        return message

    async def send(self, message: Message) -> None:
        """Take one message of the application's answer."""
        if self._cut is not None:
            raise self._cut
        if message["type"] == "http.response.start":
            self._start = message
            self._withheld = withheld_of(
                message.get("headers", ()), http_version=self._scope.get("http_version", "1.1")
            )
            return
        if message["type"] != "http.response.body" or self._withheld is None:
            raise RuntimeError(f"the application sent {message['type']} out of turn")
        if self._over:
            raise RuntimeError("the application sent more after the end of its answer")
        part = message.get("body", b"")
        self._remember(part)
        leaving = self._withheld.add(part)
        if self._withheld.held_bytes > self._withheld_bytes_max:
            await self._record(Outcome.FAILED)
            await self._refuse(
                f"its answer needs more than {self._withheld_bytes_max} bytes of memory "
                "before it may leave"
            )
            self._cut = ResponseCut("the answer was refused before its end")
            raise self._cut  # stops the application; run() knows that the client has its answer
        if leaving:
            await self._pass_on(leaving, more=True)
        if not message.get("more_body", False):
            await self._finish(self._withheld)

    def _remember(self, part: bytes) -> None:
        room = self._response_bytes_max - self._seen_bytes
        if room > 0 and part:
            self._seen.append(part[:room])
        self._seen_bytes += len(part)

    async def _finish(self, withheld: Withheld) -> None:
        rest = withheld.rest()
        status: int = self._start["status"] if self._start is not None else _SERVER_ERROR
        good = status < _SERVER_ERROR and withheld.ending is Ending.COMPLETED
        refused = await self._record(Outcome.COMPLETED if good else Outcome.FAILED)
        if refused is not None:
            await self._refuse(refused)
            return
        if not self._begun and self._scope.get("http_version") == "1.0":
            self._measure(rest)
        await self._pass_on(rest, more=False)
        self._over = True

    async def _close(self, outcome: Outcome) -> None:
        """The application stopped in the middle; write the record, or say that it was refused."""
        if self._over or self._writing is not None:
            return
        if not self._begun:
            self._start = None  # what it announced never left; the server answers 500
        refused = await self._record(outcome)
        if refused is not None and not self._begun:
            await self._refuse(refused)

    async def _record(self, outcome: Outcome) -> str | None:
        """Write the record; None when it stands, else why it does not."""
        began_s = time.perf_counter()
        self._writing = self._append(self._made(outcome))
        try:
            await asyncio.shield(self._writing)
        except (EpochFenced, SinkUnavailable) as error:
            self._say_not_taken(error)
            return str(error)
        finally:
            STAGE_SECONDS["capture"].observe(time.perf_counter() - began_s)
        return None

    async def _leave_record(self, outcome: Outcome) -> None:
        """Write the record unless it is being written, with nobody left to tell about it."""
        if self._writing is None:
            self._writing = self._append(self._made(outcome))
        await asyncio.wait({self._writing}, timeout=self._cancelled_wait_s)
        if self._writing.done() and (error := self._writing.exception()) is not None:
            if not isinstance(error, EpochFenced | SinkUnavailable):
                raise error
            self._say_not_taken(error)

    def _say_not_taken(self, error: Exception) -> None:
        """Say once that the record was refused; nothing of its turn leaves (F2)."""
        if self._told:
            return
        self._told = True
        if isinstance(error, EpochFenced):
            FENCED["sink"].inc()
        _tell("record_refused", f"a call's record was not taken: {error}", self._call)

    def _made(self, outcome: Outcome) -> Record:
        query = self._scope.get("query_string", b"")
        path = self._scope.get("raw_path") or self._scope["path"].encode()
        status: int | None = self._start["status"] if self._start is not None else None
        if status is None and outcome is Outcome.FAILED:
            status = _SERVER_ERROR  # what the server answers for an application that raised
        return Record(
            call=self._call,
            model_call_id=uuid.uuid4().hex,
            method=self._scope["method"],
            path=(path + (b"?" + query if query else b"")).decode("latin-1"),
            started_at=self._started_at,
            completed_at=self._now(),
            status=status,
            outcome=outcome,
            request=self._request,
            response=b"".join(self._seen),
            response_bytes=self._seen_bytes,
        )

    async def _refuse(self, reason: str) -> None:
        """Keep the answer from the client: 502, or a cut where it has begun (R4)."""
        message = f"{reason}; the call ran, and what it answered is lost: make a new call"
        if self._begun:
            self._cut = ResponseCut(message)
            raise self._cut
        self._over = True
        refusal = Refusal(
            "record_refused",
            message,
            rollout_id=self._call.rollout_id,
            claim_epoch=self._call.claim_epoch,
        )
        await _answer(refusal, self._send)

    async def _pass_on(self, part: bytes, *, more: bool) -> None:
        if not self._begun and self._start is not None:
            self._begun = True
            await self._send(self._start)
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    def _measure(self, whole: bytes) -> None:
        if self._start is None or self._start["status"] in {204, 304}:
            return
        headers = [
            (name, value)
            for name, value in self._start.get("headers", ())
            if name.lower() not in {b"content-length", b"transfer-encoding"}
        ]
        headers.append((b"content-length", str(len(whole)).encode()))
        self._start = {**self._start, "headers": headers}


def _tell(event: str, text: str, call: Call) -> None:
    told(_logger, event, text, level=logging.WARNING, **call.named())


async def _answer(refusal: Refusal, send: Send) -> None:
    headers = refusal.headers()
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body(), "more_body": False})
