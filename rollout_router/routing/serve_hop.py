# SPDX-License-Identifier: Apache-2.0
"""What a forwarder sent here: served under the claim that it means, or refused (R1, R5, R6).

Nothing is sent on. A forwarder means the claim epoch that it read, or, where it placed a new
rollout here, any claim of this worker: then this worker takes the claim itself, if nobody has it.
"""

from datetime import UTC, datetime

from rollout_router.asgi import App
from rollout_router.errors import Refusal
from rollout_router.routing.decision import (
    Lost,
    Refuse,
    Serve,
    route_hop,
    route_new,
    route_session,
)
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.forward import MISDIRECTED
from rollout_router.routing.making import session_lost
from rollout_router.routing.owner import serve_held
from rollout_router.routing.ownership import Held
from rollout_router.routing.worker import Worker

__all__ = ["serve_hop"]


async def serve_hop(
    app: App, worker: Worker, exchange: Exchange, expected_epoch: int | None
) -> None:
    """Serve a request that came over the private socket.

    Args:
        app: what serves it.
        worker: this worker.
        exchange: the request.
        expected_epoch: the claim epoch that the forwarder believes in; None: of a new rollout.

    Raises:
        Refusal: nothing ran; with the status 421 the forwarder reads the store again. Also as
            ``serve_held``. ClaimsError: the store could not say or grant; nothing happened.
    """
    await worker.ownership.wait_settled(exchange.rollout_id)
    held = worker.ownership.begin_held(exchange.rollout_id)
    if held is None and exchange.kind == "rollout":
        take = _taken_new if expected_epoch is None else _taken_again
        held = await take(worker, exchange.rollout_id)
    try:
        if held is None and exchange.kind == "session":
            _refuse_lost(worker, exchange.rollout_id)
        exchange.passed("claim")
        decision = route_hop(
            held_epoch=held.grant.claim.claim_epoch if held else None,
            expected_epoch=expected_epoch,
            gate=worker.admission.gate,
        )
        match decision:
            case Refuse() as refuse:
                raise _refusal(exchange.rollout_id, refuse, held)
            case Serve() if held is not None:
                await serve_held(app, worker, exchange, held)
            case Serve():
                raise RuntimeError("a call is served under a claim")
    finally:
        if held is not None:
            worker.ownership.end(held)


async def _taken_new(worker: Worker, rollout_id: str) -> Held | None:
    """Take the claim of a rollout that was placed here; of racing takers one gets it (C4)."""
    decision = route_new(
        me=worker.id,
        claim=worker.store.read(rollout_id),
        gate=worker.admission.gate,
        leaving=worker.ownership.leaving,
    )
    if isinstance(decision, Refuse):
        raise _refusal(rollout_id, decision, None)
    taken = await worker.ownership.acquire(rollout_id)
    return taken if isinstance(taken, Held) else None


async def _taken_again(worker: Worker, rollout_id: str) -> Held | None:
    """Take a claim in our own name that memory lost, higher; the forwarder then finds it (C2).

    Without it every forwarder would be sent away from a claim that nobody else can take.
    """
    claim = worker.store.read(rollout_id)
    if claim is None or claim.owner.nonce != worker.id:
        return None
    # Said here: a 421 would make the forwarder come back in vain.
    worker.admission.check(rollout_id, claim_epoch=claim.claim_epoch)
    taken = await worker.ownership.acquire(rollout_id)
    return taken if isinstance(taken, Held) else None


def _refuse_lost(worker: Worker, name: str) -> None:
    """A forwarder would come back for a session that this worker no longer holds (R3)."""
    if (sessions := worker.settings.sessions) is not None:
        decision = route_session(
            me=worker.id,
            claim=worker.store.read(name),
            gate=worker.admission.gate,
            now=datetime.now(UTC),
            tombstone_s=sessions.tombstone_s,
        )
        if isinstance(decision, Lost):
            raise session_lost(decision)


def _refusal(rollout_id: str, refuse: Refuse, held: Held | None) -> Refusal:
    return Refusal(
        refuse.code,
        f"rollout {rollout_id}: {refuse.message}",
        rollout_id=rollout_id,
        claim_epoch=held.grant.claim.claim_epoch if held else None,
        status=MISDIRECTED if refuse.code == "claim_moved" else None,
    )
