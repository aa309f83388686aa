# SPDX-License-Identifier: Apache-2.0
"""What is refused for reasons that have nothing to do with a single claim. Pure."""

from rollout_router.claims import ClaimsError
from rollout_router.errors import Refusal
from rollout_router.routing.exchange import Exchange

__all__ = ["interrupted", "no_worker", "overloaded", "store_unavailable"]


def interrupted(exchange: Exchange) -> Refusal:
    """The worker is past the deadline of its drain."""
    code, what = "draining", "nothing ran, send again"
    if exchange.progress.dispatched:
        code, what = "owner_lost_in_flight", "it may have run"
    return Refusal(
        code,
        f"the worker of rollout {exchange.rollout_id} left before the call was answered; {what}",
        rollout_id=exchange.rollout_id,
        claim_epoch=exchange.progress.claim_epoch,
    )


def no_worker(rollout_id: str) -> Refusal:
    """There is nobody in this process to serve it."""
    return Refusal(
        "draining",
        f"this process runs no worker for rollout {rollout_id}: its lifespan has not started or"
        " has ended, or it is a forked child; send again",
        rollout_id=rollout_id,
    )


def overloaded(rollout_id: str, calls_max: int) -> Refusal:
    """The worker has as many calls in hand as it may."""
    return Refusal(
        "overloaded",
        f"rollout {rollout_id}: this worker has {calls_max} calls in hand, as many as it may;"
        " nothing happened, send again",
        rollout_id=rollout_id,
    )


def store_unavailable(error: ClaimsError, rollout_id: str) -> Refusal:
    """The store could not say who owns the rollout."""
    return Refusal(
        "claim_store_unavailable",
        f"rollout {rollout_id}: {error}; nothing happened",
        rollout_id=rollout_id,
    )
