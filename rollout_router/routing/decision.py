# SPDX-License-Identifier: Apache-2.0
"""What to do with a request of a rollout or session. Pure and synchronous: the middleware does it.

C3, C4  a claim moves only when its owner is proven dead; unknown is never treated as dead.
R1      what came over the private socket is served here or refused with 421, never forwarded.
R2      only a failed connect and a 421 allow another route, and 421 at most twice.
R3      a session stays with its owner; where that one is dead or has left, it is lost.
R6      while the gate is closed nothing is claimed. A forwarder never decides admission.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never

from rollout_router.claims import Claim, Gate, Verdict

__all__ = [
    "REROUTES_MAX",
    "Acquire",
    "Bury",
    "Forget",
    "Forward",
    "Lost",
    "Place",
    "Refuse",
    "Reread",
    "Serve",
    "TakeOver",
    "admission_closed",
    "after_connect_failure",
    "route_hop",
    "route_new",
    "route_public",
    "route_session",
]

REROUTES_MAX: Final = 2
"""How often a 421 may send a forwarder back to the store before it answers 503 claim_moved."""


@dataclass(frozen=True, slots=True)
class Serve:
    """This worker holds the claim: serve here."""


@dataclass(frozen=True, slots=True)
class Acquire:
    """Nobody else holds the claim: take it, then decide anew."""


@dataclass(frozen=True, slots=True)
class Place:
    """Nobody holds the claim: the worker with the fewest in hand is to take it, once."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Another worker holds the claim: one hop to it."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The owner is proven dead: take its claim over, then decide anew."""


@dataclass(frozen=True, slots=True)
class Bury:
    """The owner of a session is proven dead: leave its tombstone, then decide anew."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The session's state is gone: 410."""

    claim: Claim
    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The session's tombstone has lasted long enough: remove it, then decide anew."""

    tombstone: Claim


@dataclass(frozen=True, slots=True)
class Reread:
    """What was read is stale: read the claim again and decide anew."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with this code; nothing happened."""

    code: str
    message: str


def route_public(
    *,
    me: str,
    held_epoch: int | None,
    claim: Claim | None,
    gate: Gate,
    balanced: bool = False,
) -> Serve | Acquire | Place | Forward | Refuse:
    """Decide where a request from the public port goes.

    Args:
        me: the nonce of this worker.
        held_epoch: the claim epoch that memory holds and that still stands on disk, or None.
        claim: what the store says; read only where memory holds nothing.
        gate: admission at this worker.
        balanced: a rollout that nobody holds is placed, and was not before.
    """
    if held_epoch is None and claim is not None and claim.owner.nonce != me:
        return Forward(claim) if claim.kind == "rollout" else _of_another_kind(claim)
    if not gate.open:
        return admission_closed(gate)
    if held_epoch is None and claim is None and balanced:
        return Place()
    # A claim in our own name that memory does not hold is taken again, higher (C2).
    return Acquire() if held_epoch is None else Serve()


def route_session(
    *, me: str, claim: Claim | None, gate: Gate, now: datetime, tombstone_s: float
) -> Acquire | Forward | Lost | Forget | Refuse:
    """Decide where a request of a session goes that this worker's memory does not hold (R3).

    A session that nobody claims is held for the length of the call, and kept if the application
    names it in the answer. A claim in our own name that memory does not hold is not taken again:
    the state that it stood for is gone.

    Args:
        me: the nonce of this worker.
        claim: what the store says.
        gate: admission at this worker.
        now: the time, with its zone.
        tombstone_s: how long a lost session says 410.
    """
    if claim is None:
        return Acquire() if gate.open else admission_closed(gate)
    if claim.kind != "session":
        return _of_another_kind(claim)
    if claim.state == "lost":
        age_s = (now - datetime.fromisoformat(claim.at)).total_seconds()
        return Forget(claim) if age_s > tombstone_s else Lost(claim, f"{claim.reason}, {claim.at}")
    if claim.owner.nonce == me:
        return Lost(claim, "its owner no longer holds it")
    return Forward(claim)


def route_hop(*, held_epoch: int | None, expected_epoch: int | None, gate: Gate) -> Serve | Refuse:
    """Decide about a request from another worker, which believes in *expected_epoch* (R1, R5).

    None: it placed a new rollout here, and any claim will do (:func:`route_new` was asked first).
    """
    if held_epoch is None or expected_epoch not in {None, held_epoch}:
        held = "nothing" if held_epoch is None else f"claim epoch {held_epoch}"
        expected = "a new claim" if expected_epoch is None else f"claim epoch {expected_epoch}"
        return Refuse("claim_moved", f"expected {expected}, this worker holds {held}")
    return Serve() if gate.open else admission_closed(gate)


def route_new(*, me: str, claim: Claim | None, gate: Gate, leaving: bool) -> Acquire | Refuse:
    """Decide about a rollout that another worker placed here and memory does not hold (R1, R6).

    Args:
        me: the nonce of this worker.
        claim: what the store says.
        gate: admission here: who takes the claim is the owner.
        leaving: this worker gives its rollouts back.
    """
    if claim is not None and (claim.owner.nonce != me or claim.kind != "rollout"):
        return Refuse("claim_moved", f"worker {claim.owner.nonce} took it meanwhile")
    if leaving:
        return Refuse("claim_moved", "this worker leaves and takes no new one")
    return Acquire() if gate.open else admission_closed(gate)


def after_connect_failure(
    verdict: Verdict, *, before: Claim, now: Claim | None, gate: Gate, reason: str
) -> TakeOver | Bury | Reread | Refuse:
    """Decide after the owner's socket was missing, refused, or did not take a connection.

    Args:
        verdict: what the life lock said of the owner of *before*.
        before: the claim that was followed.
        now: the claim read again after the verdict; a change means that *before* was stale.
        gate: admission here: a taker would be the owner, and a closed gate claims nothing (R6).
        reason: the evidence, for people.
    """
    if now is None or not before.same_grant(now):  # a leaver's session is lost under its epoch
        return Reread()
    match verdict:
        case Verdict.DEAD if before.kind == "session":
            return Bury()
        case Verdict.DEAD:
            return TakeOver() if gate.open else admission_closed(gate)
        case Verdict.ALIVE | Verdict.UNKNOWN:
            return Refuse(
                "owner_unreachable",
                f"its owner, worker {before.owner.nonce}, is {verdict.value} but cannot be reached"
                f" ({reason}); nothing happened, send again",
            )
        case _:
            assert_never(verdict)


def _of_another_kind(claim: Claim) -> Refuse:
    return Refuse(
        "rollout_id_invalid",
        f"a {claim.kind} is claimed under this name, by worker {claim.owner.nonce}",
    )


def admission_closed(gate: Gate) -> Refuse:
    """What a closed gate answers, wherever a request meets it (R6)."""
    return Refuse("admission_closed", f"admission was closed by {gate.by}: {gate.why}")
