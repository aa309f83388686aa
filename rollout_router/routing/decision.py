# SPDX-License-Identifier: Apache-2.0
"""What to do with a request for a rollout. Pure and synchronous: the middleware does it.

C3, C4  a claim moves only when its owner is proven dead; unknown is never treated as dead.
R1      what came over the private socket is served here or refused with 421, never forwarded.
R2      only a failed connect and a 421 allow another route, and 421 at most twice.
R6      while the gate is closed nothing is claimed. A forwarder never decides admission.
"""

from dataclasses import dataclass
from typing import Final, assert_never

from rollout_router.claims import Claim, Gate, Verdict

__all__ = [
    "REROUTES_MAX",
    "Acquire",
    "Forward",
    "Refuse",
    "Reread",
    "Serve",
    "TakeOver",
    "after_connect_failure",
    "route_hop",
    "route_public",
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
class Forward:
    """Another worker holds the claim: one hop to it."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The owner is proven dead: take its claim over, then decide anew."""


@dataclass(frozen=True, slots=True)
class Reread:
    """What was read is stale: read the claim again and decide anew."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with this code; nothing happened."""

    code: str
    message: str


def route_public(
    *, me: str, held_epoch: int | None, claim: Claim | None, gate: Gate
) -> Serve | Acquire | Forward | Refuse:
    """Decide where a request from the public port goes.

    Args:
        me: the nonce of this worker.
        held_epoch: the claim epoch that memory holds and that still stands on disk, or None.
        claim: what the store says; read only where memory holds nothing.
        gate: admission at this worker.
    """
    if held_epoch is None and claim is not None and claim.owner.nonce != me:
        return Forward(claim)
    if not gate.open:
        return _closed(gate)
    # A claim in our own name that memory does not hold is taken again, higher (C2).
    return Acquire() if held_epoch is None else Serve()


def route_hop(*, held_epoch: int | None, expected_epoch: int, gate: Gate) -> Serve | Refuse:
    """Decide about a request from another worker, which believes in *expected_epoch* (R1, R5)."""
    if held_epoch != expected_epoch:
        held = "nothing" if held_epoch is None else f"claim epoch {held_epoch}"
        return Refuse(
            "claim_moved", f"expected claim epoch {expected_epoch}, this worker holds {held}"
        )
    return Serve() if gate.open else _closed(gate)


def after_connect_failure(
    verdict: Verdict, *, before: Claim, now: Claim | None, gate: Gate, reason: str
) -> TakeOver | Reread | Refuse:
    """Decide after the owner's socket was missing, refused, or did not take a connection.

    Args:
        verdict: what the life lock said of the owner of *before*.
        before: the claim that was followed.
        now: the claim read again after the verdict; a change means that *before* was stale.
        gate: admission here: a taker would be the owner, and a closed gate claims nothing (R6).
        reason: the evidence, for people.
    """
    if now is None or (now.claim_epoch, now.owner) != (before.claim_epoch, before.owner):
        return Reread()
    match verdict:
        case Verdict.DEAD:
            return TakeOver() if gate.open else _closed(gate)
        case Verdict.ALIVE | Verdict.UNKNOWN:
            return Refuse(
                "owner_unreachable",
                f"its owner, worker {before.owner.nonce}, is {verdict.value} but cannot be reached"
                f" ({reason}); nothing happened, send again",
            )
        case _:
            assert_never(verdict)


def _closed(gate: Gate) -> Refuse:
    return Refuse("admission_closed", f"admission was closed by {gate.by}: {gate.why}")
