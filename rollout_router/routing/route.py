# SPDX-License-Identifier: Apache-2.0
"""One routed request of the public port, until it was served, handed over or refused.

Each round decides once on what the store says now and does it; a round that finds its knowledge
stale is followed by another, and the number of rounds is bounded. A new rollout is placed at most
once, and taken here if that fails. After every await the claim is looked at again: in memory and on
disk before it is used, under the stripe lock before it moves.

What follows from it: R2, R3, C3, C4.
"""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Final

from rollout_router.asgi import App
from rollout_router.claims import Claim, ClaimsError, Moved, OwnerIdentity
from rollout_router.errors import Refusal
from rollout_router.metrics import HOPS, OWNER_UNREACHABLE
from rollout_router.routing.begun import BEGUN_KEY, BegunHop
from rollout_router.routing.client import ClientGone
from rollout_router.routing.decision import (
    REROUTES_MAX,
    Acquire,
    Bury,
    Forget,
    Forward,
    Lost,
    Place,
    Refuse,
    Reread,
    Serve,
    TakeOver,
    after_connect_failure,
    route_public,
    route_session,
)
from rollout_router.routing.dispatch import Event
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.forward import (
    HELD_BODY_BYTES_MAX,
    Hop,
    HopEnd,
    NotDispatched,
    NotPlaced,
    Target,
)
from rollout_router.routing.guard import Watcher, guarded
from rollout_router.routing.making import session_lost
from rollout_router.routing.owner import serve_held
from rollout_router.routing.ownership import Held
from rollout_router.routing.placing import Placed, Placing
from rollout_router.routing.worker import Worker

__all__ = ["route"]

_logger = logging.getLogger(__name__)

ROUNDS_MAX: Final = 8
"""How often one request may find its claim changed under it before it answers 503 claim_moved."""


async def route(app: App, worker: Worker, exchange: Exchange) -> None:
    """Serve the request here or hand it to its owner.

    Raises:
        Refusal: the answer to give. ClaimsError: the store could not say who owns the rollout, and
        nothing happened. ResponseCut: the answer had begun. ClientGone: nobody is left to answer.
    """
    request = _Route(app, worker, exchange)
    begun: BegunHop | None = exchange.scope.get(BEGUN_KEY)
    if begun is not None and await request.go_on(begun):
        return
    for _ in range(ROUNDS_MAX):
        if await request.round():
            return
    raise request.refusal("claim_moved", "its claim keeps moving; nothing happened, send again")


class _OwnerDied(Exception):  # noqa: N818 - names what happened
    """The life lock of the owner is free."""


class _Route:
    def __init__(self, app: App, worker: Worker, exchange: Exchange) -> None:
        self._app = app
        self._worker = worker
        self._exchange = exchange
        self._rollout_id = exchange.rollout_id
        self._reroutes = 0
        # None: a new rollout is not placed, or was already.
        self._placing = worker.placing if exchange.kind == "rollout" else None

    async def go_on(self, begun: BegunHop) -> bool:
        """Wait for the answer of a hop that was begun; False where its owner sent us away."""
        progress = self._exchange.progress
        progress.claim_epoch, progress.dispatched = begun.target.claim_epoch, True
        try:
            await self._fill()  # it is here, and may have to be sent again
            if await self._sent(begun.target, begun=begun):
                return True
            progress.claim_epoch, progress.dispatched = None, False  # its owner ran nothing
            return False
        finally:
            begun.close()

    async def round(self) -> bool:
        """Decide once and do it; False where what was known turned out stale."""
        ownership = self._worker.ownership
        await ownership.wait_settled(self._rollout_id)
        if self._worker.closed:
            raise self.refusal("draining", "this worker has left; nothing happened, send again")
        held = ownership.begin_held(self._rollout_id)
        if held is not None:
            return await self._serve(held)
        match self._decision():
            case Forward(claim):
                return await self._forward(claim)
            case Acquire():
                taken = await ownership.acquire(self._rollout_id, kind=self._exchange.kind)
                return await self._served_after(taken)
            case Place() if self._placing is not None:
                return await self._place(self._placing)
            case Lost() as lost:
                raise session_lost(lost)
            case Forget(tombstone):
                await ownership.forget(tombstone)
                return False
            case Refuse(code, message):
                raise self.refusal(code, message)
            case Serve() | Place():
                raise RuntimeError("nothing is served without a claim, or placed where none is")

    def _decision(self) -> Serve | Acquire | Place | Forward | Lost | Forget | Refuse:
        """Where to go with a request whose claim memory does not hold."""
        worker = self._worker
        claim, gate = worker.store.read(self._rollout_id), worker.admission.gate
        sessions = worker.settings.sessions
        if self._exchange.kind == "rollout" or sessions is None:
            return route_public(
                me=worker.id,
                held_epoch=None,
                claim=claim,
                gate=gate,
                balanced=self._placing is not None,
            )
        return route_session(
            me=worker.id,
            claim=claim,
            gate=gate,
            now=datetime.now(UTC),
            tombstone_s=sessions.tombstone_s,
        )

    def refusal(self, code: str, message: str, claim: Claim | None = None) -> Refusal:
        """A refusal that names the rollout, and the claim epoch where one is known."""
        return Refusal(
            code,
            f"rollout {self._rollout_id}: {message}",
            rollout_id=self._rollout_id,
            claim_epoch=claim.claim_epoch if claim else None,
        )

    async def _serve(self, held: Held) -> bool:
        claim = held.grant.claim
        self._exchange.passed("claim")
        try:
            decision = route_public(
                me=self._worker.id,
                held_epoch=claim.claim_epoch,
                claim=None,
                gate=self._worker.admission.gate,
            )
            if isinstance(decision, Refuse):
                raise self.refusal(decision.code, decision.message, claim)
            await serve_held(self._app, self._worker, self._exchange, held)
        finally:
            self._worker.ownership.end(held)
        return True

    async def _served_after(self, taken: Held | Moved) -> bool:
        return isinstance(taken, Held) and await self._serve(taken)

    async def _place(self, placing: Placing) -> bool:
        """Give a new rollout to a worker, once. What hinders it is found out by another round."""
        self._placing = None
        worker = self._worker
        await self._fill()
        if worker.closed or not worker.admission.gate.open:
            return False
        placed = placing.choose()
        try:
            if placed.worker == worker.id:
                taken = await worker.ownership.acquire(self._rollout_id)
                placed.counted()
                return await self._served_after(taken)
            identity = await worker.identity_of(placed.worker)
            if identity is not None:
                return await self._place_at(identity, placed)
        except NotPlaced as failure:
            _logger.info("rollout %s is not placed: %s", self._rollout_id, failure)
        finally:
            placed.counted()
        placing.pass_by(placed)
        return False

    async def _place_at(self, peer: OwnerIdentity, placed: Placed) -> bool:
        target = Target(
            owner=peer.owner, socket=peer.socket, claim_epoch=None, on_claimed=placed.counted
        )
        try:
            return await self._sent(target)
        except Refusal as refusal:
            with suppress(ClaimsError):  # what is to be said stands, whatever can be read now
                claim = self._worker.store.read(self._rollout_id)
                if claim is not None and claim.owner == peer.owner:
                    refusal.claim_epoch = claim.claim_epoch
            raise

    async def _forward(self, claim: Claim) -> bool:
        identity = await self._worker.identity_of(claim.owner.nonce)
        if identity is None:
            return self._without_owner_file(claim)
        # Before the owner's life is watched: while the client still writes, nothing can have run.
        await self._fill()
        target = Target(owner=claim.owner, socket=identity.socket, claim_epoch=claim.claim_epoch)
        try:
            return await self._sent(target)
        except NotDispatched as failure:
            return await self._after_connect_failure(claim, failure)

    async def _fill(self) -> None:
        """Hold the body before it is sent on, as much of it as a forwarder does."""
        self._exchange.passed("claim")
        await self._exchange.client.fill(HELD_BODY_BYTES_MAX)
        self._exchange.passed("read")

    async def _sent(self, target: Target, *, begun: BegunHop | None = None) -> bool:
        """Send the request, while its owner lives; False where that one sent us away.

        What holds its connection open may outlive it.
        """
        worker = self._worker
        hop = Hop(
            worker.hops,
            self._exchange,
            identity=worker.settings.header_of(self._exchange.kind),
            timeout_s=worker.settings.owner_timeout_s,
            begun=begun,
        )
        watch_life = partial(worker.watch_life, target.owner, self._rollout_id)
        watchers: dict[Watcher, Exception] = {watch_life: _OwnerDied()}
        if not self._exchange.client.body_is_whole:
            watchers[self._exchange.client.read_ahead] = ClientGone()
        progress = self._exchange.progress
        progress.claim_epoch = target.claim_epoch
        try:
            async with guarded(worker.tasks, watchers):
                end = await hop.to(target)
        except asyncio.CancelledError:
            progress.dispatched = hop.dispatched
            raise
        except _OwnerDied as death:
            raise hop.ended(Event.DEAD, target, "its owner died with the call in hand") from death
        finally:
            HOPS[hop.outcome].inc()
        if end is HopEnd.DELIVERED:
            return True
        self._reroutes += 1
        if self._reroutes > REROUTES_MAX:
            raise Refusal(
                "claim_moved",
                f"rollout {self._rollout_id}: its claim keeps moving; nothing happened",
                rollout_id=self._rollout_id,
                claim_epoch=target.claim_epoch,
            )
        return False

    async def _after_connect_failure(self, claim: Claim, failure: NotDispatched) -> bool:
        ownership, store = self._worker.ownership, self._worker.store
        judgement = await ownership.in_thread(lambda: store.judge(claim.owner))
        decision = after_connect_failure(
            judgement.verdict,
            before=claim,
            now=store.read(self._rollout_id),
            gate=self._worker.admission.gate,
            reason=f"{failure}; {judgement.reason}",
        )
        match decision:
            case TakeOver() if judgement.proof is not None:
                taken = await ownership.acquire(self._rollout_id, dead=(claim, judgement.proof))
                return await self._served_after(taken)
            case Bury() if judgement.proof is not None:
                await ownership.bury(claim, judgement.proof)
                return False
            case TakeOver() | Bury():
                raise RuntimeError("a verdict of death comes with its proof")
            case Reread():
                return False
            case Refuse(code, message):
                if code == "owner_unreachable":
                    OWNER_UNREACHABLE.inc()
                raise self.refusal(code, message, claim)

    def _without_owner_file(self, claim: Claim) -> bool:
        """An owner file that is missing though a claim names it is unknown, not dead (C3)."""
        if self._worker.store.read(self._rollout_id) != claim:
            return False
        OWNER_UNREACHABLE.inc()
        raise self.refusal(
            "owner_unreachable",
            f"the file of its owner, worker {claim.owner.nonce}, is missing or unreadable, so that"
            " its death cannot be proven; an operator can force the claim",
            claim,
        )
