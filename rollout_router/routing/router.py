# SPDX-License-Identifier: Apache-2.0
"""The router: pure ASGI middleware around an application (R1, R5, R7).

Each request that names a rollout or session goes to the worker that holds its claim: here, or over
one hop. What names none passes through untouched, as if the router were not there (R7); where
sessions are configured, its answer is looked at for a session that the application makes (R3).
"""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, Final

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.call import CALL_KEY, Call
from rollout_router.claims import Claim, ClaimsError
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.routing import counting
from rollout_router.routing import headers as wire
from rollout_router.routing.begun import BEGUN_KEY, BegunHop, BegunHops
from rollout_router.routing.client import Client, ClientGone
from rollout_router.routing.control import answer_control, is_control
from rollout_router.routing.exchange import Exchange, is_frame
from rollout_router.routing.forward import MISDIRECTED, MOVED
from rollout_router.routing.guard import guarded
from rollout_router.routing.headers import Headers
from rollout_router.routing.hop_scope import HOP_KEY, completed
from rollout_router.routing.identity import InvalidIdentity, Rollout, identify, path_within
from rollout_router.routing.keys import KEY_HEADERS, key_matches
from rollout_router.routing.lifespan import run_lifespan
from rollout_router.routing.making import AnswerWatch
from rollout_router.routing.refusals import (
    interrupted,
    no_worker,
    overloaded,
    store_unavailable,
)
from rollout_router.routing.route import route
from rollout_router.routing.serve_hop import serve_hop
from rollout_router.routing.sessions import SessionNames
from rollout_router.routing.settings import Settings
from rollout_router.routing.worker import Worker
from rollout_router.transport.hop import Body

__all__ = ["Router"]

UPGRADE_REQUIRED: Final = 426
_EPOCH_DIGITS_MAX: Final = 20  # of 64 bits; more are no epoch that anybody holds


class Router:
    """The middleware. ``worker`` is None until the lifespan has started."""

    def __init__(self, app: App, settings: Settings, *, outermost: App | None = None) -> None:
        self.app = app
        self._outermost = outermost  # what serves a request whole, where we are a layer within it
        self.state: dict[str, Any] | None = None  # of the lifespan
        self.settings = settings
        self.worker: Worker | None = None
        self._header = settings.rollout_header.lower().encode("latin-1")
        sessions = settings.sessions if settings.routes else None
        self._sessions = None if sessions is None else SessionNames(sessions)
        self._hops: BegunHops | None = None  # with the worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection of the public port."""
        match scope["type"]:
            case "lifespan":
                await run_lifespan(self, scope, receive, send)
            case "http" if HOP_KEY in scope:
                await self._private(scope, receive, send)
            case "http":
                await self._public(scope, receive, send)
            case "websocket":
                await self._websocket(scope, receive, send)
            case _:
                await self.app(scope, receive, send)

    def begin_hop(self, scope: Scope, body: Body, *, head: bytes | None) -> BegunHop | None:
        """Send a whole request of the public port to its owner; None where nothing was sent.

        Called by the server's protocol before anything else is done. Whatever needs more than a
        look at what is known goes through :meth:`__call__`, as does what is to be refused. Another
        request with the same *head*, of :func:`begun.split`, may go by :meth:`begin_again`.
        """
        settings, worker, headers = self.settings, self.worker, scope["headers"]
        if worker is None or self._hops is None or not settings.routes:
            return None
        if settings.server_timing or self._outermost:
            return None
        found = self._identify(scope)
        if (
            not isinstance(found, Rollout)
            or found.kind != "rollout"
            or found.rollout_id in worker.ownership.grants  # before a key is looked at
            or scope["method"] == "HEAD"
            or wire.first(headers, b"upgrade") is not None
            or self._refusal_of(found, headers) is not None
        ):
            return None
        return self._hops.begin(found.rollout_id, scope, body, head=head)

    def begin_again(self, head: bytes, lines: bytes, body: Body) -> BegunHop | None:
        """See :meth:`BegunHops.begin_again`."""
        return None if self._hops is None else self._hops.begin_again(head, lines, body)

    async def start_worker(self) -> None:
        """Begin this worker's life. Raises StoreRefused as :meth:`Worker.start` does."""
        self.worker = await Worker.start(self.settings, self._hop)
        self._hops = BegunHops(self.worker, asyncio.get_running_loop())

    async def stop_worker(self) -> None:
        """End this worker's life; a router whose worker never started does nothing."""
        if self.worker is not None:
            await self.worker.stop()

    async def _hop(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What came over the private socket goes through every layer, as a local request does."""
        told = wire.firsts(scope["headers"])
        if is_control(told):
            await answer_control(self.worker, scope, receive, send)
            return
        await (self._outermost or self)(completed(scope, told, state=self.state), receive, send)

    def _identify(self, scope: Scope) -> Rollout | InvalidIdentity | None:
        return identify(
            path_within(scope), scope["headers"], header=self._header, sessions=self._sessions
        )

    async def _public(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request of the public port: untouched, unrouted, routed, or refused (R7)."""
        found = self._identify(scope)
        if (refusal := self._refusal_of(found, scope["headers"])) is not None:
            named = isinstance(found, Rollout)  # what names none is answered without a mark
            deltas = named and self.settings.history_delta
            await _refuse_first(Exchange.of("", scope, receive, send, deltas=deltas), refusal)
        elif not isinstance(found, Rollout):
            if self._sessions is None:
                await self.app(scope, receive, send)
            else:
                await self._watched(self._sessions, scope, receive, send)
        elif not self.settings.routes:
            await self._unrouted(found.rollout_id, scope, receive, send)
        elif (wire.first(scope["headers"], b"upgrade") or b"").lower() == b"websocket":
            # A server without websockets hands the upgrade on as plain HTTP. 426 lets a harness
            # fall back to POST at once, where a 404 or 405 is tried again for seconds.
            await Client(scope, receive, send).answer(UPGRADE_REQUIRED, [], b"")
        else:
            await self._routed(found, scope, receive, send)

    async def _watched(
        self, names: SessionNames, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Pass on a request that names nothing, and own the session that its answer makes (R3)."""
        worker = self.worker if self.worker and self.worker.pid == os.getpid() else None
        watch = AnswerWatch(worker, names)

        async def send_watched(message: Message) -> None:
            await watch.passing(message)
            if watch.claim is not None and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_names(watch.claim)]}
            await send(message)

        try:
            await self.app(scope, receive, send_watched)
        except Exception:
            if watch.refusal is None:
                raise
        finally:
            watch.end()
        if watch.refusal is not None:
            exchange = Exchange.of("", scope, receive, send, deltas=False)
            await _refuse_first(exchange, watch.refusal, worker)

    def _refusal_of(
        self, found: Rollout | InvalidIdentity | None, headers: Headers
    ) -> Refusal | None:
        """What is wrong with a request before it has anything to do with a claim."""
        rollout_id = found.rollout_id if isinstance(found, Rollout) else None
        secret = self.settings.rollout_keys
        # With keys, an id that we cannot read may be one that the application can.
        if isinstance(found, InvalidIdentity) and (self.settings.refuse_invalid_ids or secret):
            return Refusal(
                "rollout_id_invalid",
                f"{found.text!r} is no rollout id: letters, digits, '.', '_' and '-', beginning"
                " with a letter or digit, at most 200",
            )
        if (
            isinstance(found, Rollout)
            and found.kind == "rollout"  # the id of a session is its own key
            and secret is not None
            and not key_matches(secret, found.rollout_id, headers)
        ):
            return Refusal(
                "rollout_token_invalid",
                f"the API key of this call is not the key of rollout {rollout_id}",
                rollout_id=rollout_id,
            )
        if (rollout_id is None or not self.settings.history_delta) and is_frame(headers):
            return Refusal(
                "delta_unsupported",
                "deltas are off here, or the request names no rollout; send the body in full",
                rollout_id=rollout_id,
            )
        return None

    async def _unrouted(self, rollout_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """With routing off nothing is claimed, forwarded, kept or rebuilt (R7)."""
        worker = self.worker
        call = Call(
            rollout_id=rollout_id,
            claim_epoch=None,
            worker_id=worker.id if worker else "",
            store_id=worker.store.store_id if worker else "",
        )

        async def send_without_ours(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": wire.without_ours(message.get("headers", []))}
            await send(message)

        headers = wire.without_ours(scope["headers"])
        if self.settings.rollout_keys is not None:
            headers = wire.without(headers, *KEY_HEADERS)  # the key is for us alone
        await self.app({**scope, "headers": headers, CALL_KEY: call}, receive, send_without_ours)

    async def _routed(self, found: Rollout, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or forward, and answer what is refused in our name (R5)."""
        rollout_id, deltas = found.rollout_id, self.settings.history_delta
        exchange = Exchange.of(
            rollout_id,
            scope,
            receive,
            send,
            deltas=deltas,
            kind=found.kind,
            timed=self.settings.server_timing,
        )
        worker = self.worker
        begun: BegunHop | None = scope.get(BEGUN_KEY)
        if begun is not None:  # whatever has become of this worker, it may have run
            worker = begun.worker
        elif worker is None or worker.pid != os.getpid() or worker.closed:
            await _refuse_first(exchange, no_worker(rollout_id), worker)
            return
        await _counted(worker, exchange, route(self.app, worker, exchange), hop=False)

    async def _private(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request over the private socket: served here or refused, never forwarded (R1)."""
        worker = self.worker
        found = self._identify(scope)
        expected = wire.first(scope["headers"], wire.EXPECT_EPOCH) or b""
        exchange = Exchange.of(
            found.rollout_id if isinstance(found, Rollout) else "",
            scope,
            receive,
            send,
            deltas=self.settings.history_delta,
            kind=found.kind if isinstance(found, Rollout) else "rollout",
            timed=self.settings.server_timing,
        )
        known = expected == wire.NEW or (expected.isdigit() and len(expected) <= _EPOCH_DIGITS_MAX)
        if worker is None or worker.closed or not exchange.rollout_id or not known:
            refusal = Refusal("claim_moved", "this is no hop to a worker", status=MISDIRECTED)
            await _refuse_first(exchange, refusal, worker, port="private")
            return
        epoch = None if expected == wire.NEW else int(expected)
        work = serve_hop(self.app, worker, exchange, epoch)
        await _counted(worker, exchange, work, hop=True)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A websocket of a rollout is refused with 426, after which clients fall back to POST."""
        found, keyed = self._identify(scope), self.settings.rollout_keys is not None
        refusal = self._refusal_of(found, scope["headers"]) if keyed else None
        status = UPGRADE_REQUIRED if refusal is None else refusal.status
        if refusal is None and not (self.settings.routes and isinstance(found, Rollout)):
            if keyed and isinstance(found, Rollout):
                scope = {**scope, "headers": wire.without(scope["headers"], *KEY_HEADERS)}
            await self.app(scope, receive, send)
            return
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.http.response.start", "status": status, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})


def _names(claim: Claim) -> Headers:
    return [
        (wire.WORKER, claim.owner.nonce.encode()),
        (wire.CLAIM_EPOCH, str(claim.claim_epoch).encode()),
    ]


async def _counted(
    worker: Worker, exchange: Exchange, work: Coroutine[Any, Any, None], *, hop: bool
) -> None:
    """Do the work of an exchange, unless this worker has as many in hand as it may."""
    counted, port = BEGUN_KEY in exchange.scope, _port(hop=hop)
    if not counted and worker.in_hand[hop] >= worker.settings.calls_max:
        work.close()
        refusal = overloaded(exchange.rollout_id, worker.settings.calls_max)
        await _refuse_first(exchange, refusal, worker, port=port)
        return
    worker.in_hand[hop] += not counted
    try:
        counting.begin(exchange, port, received=counted)
        await _answered(worker, exchange, work)
    finally:
        worker.in_hand[hop] -= 1
        counting.end(exchange, port, worker.observed)


async def _answered(worker: Worker, exchange: Exchange, work: Coroutine[Any, Any, None]) -> None:
    """Do the work of an exchange while its client is there, and answer what is refused."""
    client = exchange.client
    try:
        async with guarded(worker.tasks, {client.watching: ClientGone()}):
            await work
    except ClaimsError as error:
        await _refuse(exchange, store_unavailable(error, exchange.rollout_id), worker)
    except Refusal as refusal:
        await _refuse(exchange, refusal, worker)
    except ClientGone:
        return
    except asyncio.CancelledError:
        if not (client.started or client.gone.is_set()):
            await _refuse(exchange, interrupted(exchange), worker)
        raise


def _port(*, hop: bool) -> counting.Port:
    return "private" if hop else "public"


async def _refuse_first(
    exchange: Exchange,
    refusal: Refusal,
    worker: Worker | None = None,
    *,
    port: counting.Port = "public",
) -> None:
    """Refuse what nothing else was done with."""
    counting.begin(exchange, port)
    try:
        await _refuse(exchange, refusal, worker)
    finally:
        counting.end(exchange, port, None)


async def _refuse(exchange: Exchange, refusal: Refusal, worker: Worker | None) -> None:
    """Answer in our own name: worker, claim epoch and mark stand on every routed answer (R5)."""
    if exchange.client.started:
        raise ResponseCut(refusal.message) from refusal
    exchange.progress.refused = refusal.code
    headers = [*refusal.headers(), *exchange.mark.headers()]
    if worker is not None:
        worker.observed.refused(refusal)
        headers.append((wire.WORKER, worker.id.encode()))
    if refusal.claim_epoch is not None:
        headers.append((wire.CLAIM_EPOCH, str(refusal.claim_epoch).encode()))
    if refusal.status == MISDIRECTED:
        headers.append((wire.HOP, MOVED))
    await exchange.client.answer(refusal.status, headers, refusal.body())
