# SPDX-License-Identifier: Apache-2.0
"""Serving a request at its owner: body, base, re-check, application, in that order (R6).

H1  the application sees byte for byte the body that the harness wrote; the digest is checked first.
H2  a delta names its base by content, so the same delta delivered twice is the same body twice.
R3  a session that the application names in its answer is owned here before the head leaves.
H4  a base is kept when the body is complete and verified, whatever the application then answers.
C1  the owner's re-check is the last act before the application.
F2  an answer is whole for its client when the application is done with it.
R5  every answer names worker and claim epoch. What the application says of itself under our names
    is removed.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from rollout_router.asgi import App, Message, Scope
from rollout_router.call import CALL_KEY, Call
from rollout_router.claims import Claim
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.history import CallHandle, Origin
from rollout_router.metrics import FENCED
from rollout_router.routing import headers as wire
from rollout_router.routing.completion import HELD_S_MAX, Completion
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.headers import Headers
from rollout_router.routing.keys import KEY_HEADERS
from rollout_router.routing.making import CLOSE_KEY, AnswerWatch
from rollout_router.routing.ownership import Held
from rollout_router.routing.tasks import Tasks
from rollout_router.routing.worker import Worker
from rollout_router.transport.sandbox.delta import common_ends
from rollout_router.transport.sandbox.frame import Frame, Malformed, TooLong, parse_frame, rebuild

__all__ = ["serve_held"]

HASH_IN_THREAD_BYTES: Final = 4 * 1024**2
"""Bodies from here on are hashed in a thread: 4 MiB take about 2 ms, a pause others would feel."""

_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)
_EMPTY_DIGEST: Final = hashlib.sha256(b"").hexdigest()


async def serve_held(app: App, worker: Worker, exchange: Exchange, held: Held) -> None:
    """Run one call here, under a claim that is held and with the call counted in.

    The exchange's mark is filled in as the body is kept; refusals carry it too.

    Raises:
        Refusal: nothing ran, or the application failed before it answered.
        ClientGone: the client left before its body was complete.
    """
    exchange.passed("admission")
    claim, mark, progress = held.grant.claim, exchange.mark, exchange.progress
    progress.claim_epoch, progress.served = claim.claim_epoch, claim
    worker.observed.began(claim)
    settings = worker.settings
    keeps = settings.history_delta and not worker.ownership.leaving
    headers: Headers = list(exchange.scope["headers"])
    body = await exchange.client.read_body(bytes_max=settings.body_bytes_max, claim=claim)
    exchange.passed("read")
    progress.sent_bytes = len(body)
    # It may have been closed while the body came (R6).
    worker.admission.check(claim.rollout_id, claim_epoch=claim.claim_epoch)
    exchange.passed("admission")
    digest, frame = "", None
    if exchange.is_frame:
        frame, body = await _rebuilt(worker, body, held, exchange)
        headers = _restored(headers, frame, len(body))
        digest = frame.target
    elif mark.wanted and keeps:
        digest = await _unblocked(len(body), lambda: hashlib.sha256(body).hexdigest())
    if digest and keeps:
        origin = await _origin(held.call, body, frame)
        if worker.ownership.keep(held, digest, body, origin):
            mark.value = b"kept=" + digest.encode()
    progress.body_bytes = len(body)
    exchange.passed("rebuild")
    if not worker.ownership.stands(held.grant):
        mark.value = b"none"
        raise _fenced(claim)
    exchange.passed("claim")
    headers = wire.without_ours(headers)
    if settings.rollout_keys is not None and exchange.kind == "rollout":
        headers = wire.without(headers, *KEY_HEADERS)  # the key is for us alone
    call = Call(
        rollout_id=claim.rollout_id,
        claim_epoch=claim.claim_epoch,
        worker_id=worker.id,
        store_id=worker.store.store_id,
        steps=worker.stepping.of(held.call),
    )
    scope = {**exchange.scope, "headers": headers, CALL_KEY: call}
    watch = None
    if exchange.kind == "session" and worker.sessions is not None:
        watch = AnswerWatch(worker, worker.sessions)
        scope[CLOSE_KEY] = partial(worker.ownership.close_session, held)
    extra = [*_names(call), *mark.headers()]
    progress.dispatched = True
    try:
        await _run(app, scope, exchange, tasks=worker.tasks, body=body, extra=extra, watch=watch)
    finally:
        worker.stepping.forget(held.call)
        if watch is not None:
            watch.end()


def _fenced(claim: Claim) -> Refusal:
    FENCED["dispatch"].inc()
    return Refusal(
        "claim_moved",
        f"rollout {claim.rollout_id} moved away from this worker; nothing ran, send again",
        rollout_id=claim.rollout_id,
        claim_epoch=claim.claim_epoch,
    )


async def _run(
    app: App,
    scope: Scope,
    exchange: Exchange,
    *,
    tasks: Tasks,
    body: bytes,
    extra: Headers,
    watch: AnswerWatch | None,
) -> None:
    """Give the whole body to the application and its answer to the client."""
    call: Call = scope[CALL_KEY]
    client = exchange.client
    answer = _Answer(exchange, tasks, method=scope["method"], extra=extra)
    delivered = False

    async def receive() -> Message:
        nonlocal delivered
        if not delivered:
            delivered = True
            return {"type": "http.request", "body": body, "more_body": False}
        await client.gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if watch is not None:
            await watch.passing(message)
        await answer.send(message)

    try:
        await app(scope, receive, send)
        await answer.flush()
    except Exception as error:
        if client.started:
            raise
        # The answer is ours then, so that it carries the mark: the base is held all the same (H4).
        raise (watch.refusal if watch and watch.refusal else _failure(call, error)) from error
    finally:
        answer.stop()
    if watch is not None and watch.refusal is not None:  # the application went on all the same
        raise watch.refusal
    if not (client.started or client.gone.is_set()):
        raise _failure(call, RuntimeError("it returned without an answer"))


class _Answer:
    """The application's answer on its way to the client: its end when it is done (F2)."""

    def __init__(self, exchange: Exchange, tasks: Tasks, *, method: str, extra: Headers) -> None:
        self._exchange = exchange
        self._client = exchange.client
        self._tasks = tasks
        self._completion = Completion(method)
        self._extra = extra
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, message: Message) -> None:
        """Pass one message on, or hold it back for a bounded time."""
        leaving = self._completion.passing(message)
        if leaving is None:
            loop = asyncio.get_running_loop()
            self._timer = self._timer or loop.call_later(HELD_S_MAX, self._expire)
            return
        self.stop()
        if leaving["type"] == "http.response.start":
            self._exchange.passed("app")
            leaving = _named(leaving, [*self._extra, *self._exchange.timing()])
        await self._client.send(leaving)

    async def flush(self) -> None:
        """Send what is held back, without an end that the application did not give."""
        self.stop()
        if held := self._completion.take():
            await self._client.send({"type": "http.response.body", "body": held, "more_body": True})

    def stop(self) -> None:
        """Let nothing more leave by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._tasks.spawn(self.flush(), name="the last bytes of an answer")


def _named(start: Message, extra: Headers) -> Message:
    """A head with our headers in place of the application's under our names (R5)."""
    return {**start, "headers": [*wire.without_ours(start.get("headers", [])), *extra]}


def _failure(call: Call, error: Exception) -> Refusal:
    """What is answered where nothing of the application's own answer was sent."""
    if isinstance(error, ResponseCut):
        code, what = "answer_cut", f"the answer was cut before anything of it was sent: {error}"
    else:
        code, what = "application_failed", f"the application failed before it answered: {error!r}"
        _logger.error("rollout %s: %s", call.rollout_id, what, exc_info=error)
    return Refusal(
        code,
        f"rollout {call.rollout_id}: {what}; the call may have had effects",
        rollout_id=call.rollout_id,
        claim_epoch=call.claim_epoch,
    )


async def _rebuilt(
    worker: Worker, body: bytes, held: Held, exchange: Exchange
) -> tuple[Frame, bytes]:
    bases, key = held.call, held.call.key
    try:
        frame = parse_frame(body, length_max=worker.settings.body_bytes_max)
        base = b"" if frame.base == _EMPTY_DIGEST else bases.base(frame.base)
        if base is None:
            exchange.mark.value = b"resync"
            reason = "new_owner" if bases.newest() is None else "not_held"
            worker.observed.resync(held.grant.claim, reason=reason)
            raise Refusal(
                "gym_history_resync",
                f"this worker does not hold the base {frame.base} of rollout {key.rollout_id};"
                " send the body in full",
                rollout_id=key.rollout_id,
                claim_epoch=key.claim_epoch,
            )
        return frame, await _unblocked(frame.length, partial(rebuild, frame, base))
    except Malformed as error:
        raise Refusal(
            "body_too_large" if isinstance(error, TooLong) else "delta_malformed",
            f"the delta of rollout {key.rollout_id} is refused: {error}",
            rollout_id=key.rollout_id,
            claim_epoch=key.claim_epoch,
        ) from error


def _restored(headers: Headers, frame: Frame, length: int) -> Headers:
    """The headers as the harness sent them: its content type, and the length of its body."""
    restored = wire.without(headers, b"content-type", b"content-length", b"transfer-encoding")
    if frame.type is not None:
        restored.append((b"content-type", frame.type.encode("latin-1")))
    restored.append((b"content-length", str(length).encode()))
    return restored


async def _origin(bases: CallHandle, body: bytes, frame: Frame | None) -> Origin | None:
    """How *body* was built; one that came in full could have been by what it shares at its ends."""
    if frame is not None and frame.base != _EMPTY_DIGEST:
        return Origin(frame.base, frame.ops)
    if (newest := bases.newest()) is None:
        return None
    digest, base = newest

    def compared() -> Origin:
        head, tail = common_ends(base, body)
        between = len(body) - head - tail
        return Origin(digest, [(0, head), (None, between), (len(base) - tail, tail)])

    return await _unblocked(len(body), compared)


async def _unblocked(size_bytes: int, work: Callable[[], _Result]) -> _Result:
    """*work* on so many bytes, in a thread where the event loop would feel it."""
    return work() if size_bytes < HASH_IN_THREAD_BYTES else await asyncio.to_thread(work)


def _names(call: Call) -> Headers:
    return [
        (wire.WORKER, call.worker_id.encode()),
        (wire.CLAIM_EPOCH, str(call.claim_epoch).encode()),
    ]
