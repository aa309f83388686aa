# SPDX-License-Identifier: Apache-2.0
"""The decision: every row of its table (C3, C4, R1, R5, R6)."""

import itertools
from dataclasses import replace

import pytest

from rollout_router.claims import Claim, Gate, Owner, Verdict
from rollout_router.routing.decision import (
    Acquire,
    Forward,
    Place,
    Refuse,
    Reread,
    Serve,
    TakeOver,
    after_connect_failure,
    route_hop,
    route_new,
    route_public,
)

ME = "me"
OPEN = Gate(open=True)
CLOSED = Gate(open=False, by="ada", why="a checkpoint")
THEIRS = Claim(
    kind="rollout",
    rollout_id="r1",
    claim_epoch=7,
    state="owned",
    owner=Owner(nonce="them", inode=1),
    previous=None,
    at="2026-01-01T00:00:00Z",
)
OURS = replace(THEIRS, owner=Owner(nonce=ME, inode=2))
NEXT = replace(THEIRS, claim_epoch=8)
RESTARTED = replace(THEIRS, owner=Owner(nonce="them", inode=3))


@pytest.mark.parametrize(
    ("held", "claim", "gate", "expected"),
    [
        (7, None, OPEN, Serve()),
        (7, OURS, OPEN, Serve()),
        (None, None, OPEN, Acquire()),
        (None, OURS, OPEN, Acquire()),
        (None, THEIRS, OPEN, Forward(THEIRS)),
        (None, THEIRS, CLOSED, Forward(THEIRS)),
    ],
)
def test_c4_a_public_request_goes_to_whoever_holds_the_claim(
    held: int | None, claim: Claim | None, gate: Gate, expected: object
) -> None:
    assert route_public(me=ME, held_epoch=held, claim=claim, gate=gate) == expected


@pytest.mark.parametrize(
    ("held", "claim", "expected"),
    [
        (None, None, Place()),
        (None, OURS, Acquire()),
        (None, THEIRS, Forward(THEIRS)),
        (7, None, Serve()),
    ],
)
def test_c4_only_what_nobody_holds_is_placed(
    held: int | None, claim: Claim | None, expected: object
) -> None:
    decision = route_public(me=ME, held_epoch=held, claim=claim, gate=OPEN, balanced=True)

    assert decision == expected


@pytest.mark.parametrize(
    ("claim", "leaving", "gate", "expected"),
    [
        (None, False, OPEN, "take"),
        (OURS, False, OPEN, "take"),
        (None, False, CLOSED, "admission_closed"),
        (None, True, OPEN, "claim_moved"),
        (None, True, CLOSED, "claim_moved"),
        (THEIRS, False, OPEN, "claim_moved"),
        (THEIRS, False, CLOSED, "claim_moved"),
        (replace(OURS, kind="session"), False, OPEN, "claim_moved"),
    ],
)
def test_r1_a_rollout_that_was_placed_here_is_taken_or_refused(
    claim: Claim | None, gate: Gate, expected: str, *, leaving: bool
) -> None:
    decision = route_new(me=ME, claim=claim, gate=gate, leaving=leaving)

    assert (decision.code if isinstance(decision, Refuse) else "take") == expected


@pytest.mark.parametrize(("held", "code"), [(7, None), (None, "claim_moved")])
def test_r1_a_placed_rollout_is_served_under_whatever_claim_is_held(
    held: int | None, code: str | None
) -> None:
    decision = route_hop(held_epoch=held, expected_epoch=None, gate=OPEN)

    assert (decision.code if isinstance(decision, Refuse) else None) == code


@pytest.mark.parametrize(("held", "claim"), [(7, None), (None, None), (None, OURS)])
def test_r6_a_closed_gate_claims_and_serves_nothing(held: int | None, claim: Claim | None) -> None:
    decision = route_public(me=ME, held_epoch=held, claim=claim, gate=CLOSED, balanced=True)

    assert isinstance(decision, Refuse)
    assert decision.code == "admission_closed"
    assert "ada" in decision.message
    assert "a checkpoint" in decision.message


@pytest.mark.parametrize("gate", [OPEN, CLOSED])
@pytest.mark.parametrize("held", [None, 6, 8])
def test_r5_a_hop_under_another_epoch_is_refused_before_the_gate(
    held: int | None, gate: Gate
) -> None:
    decision = route_hop(held_epoch=held, expected_epoch=7, gate=gate)

    assert isinstance(decision, Refuse)
    assert decision.code == "claim_moved"


def test_r1_a_hop_under_the_held_epoch_is_served_or_refused_by_the_gate() -> None:
    assert route_hop(held_epoch=7, expected_epoch=7, gate=OPEN) == Serve()
    refusal = route_hop(held_epoch=7, expected_epoch=7, gate=CLOSED)
    assert isinstance(refusal, Refuse)
    assert refusal.code == "admission_closed"


@pytest.mark.parametrize("gate", [OPEN, CLOSED])
@pytest.mark.parametrize("verdict", [Verdict.ALIVE, Verdict.UNKNOWN])
def test_c3_an_owner_that_is_alive_or_unknown_keeps_its_claim(verdict: Verdict, gate: Gate) -> None:
    decision = after_connect_failure(verdict, before=THEIRS, now=THEIRS, gate=gate, reason="why")

    assert isinstance(decision, Refuse)
    assert decision.code == "owner_unreachable"
    assert verdict.value in decision.message
    assert "why" in decision.message


def test_c3_a_dead_owner_is_replaced() -> None:
    decision = after_connect_failure(
        Verdict.DEAD, before=THEIRS, now=THEIRS, gate=OPEN, reason="why"
    )

    assert decision == TakeOver()


def test_r6_a_dead_owner_is_not_replaced_behind_a_closed_gate() -> None:
    decision = after_connect_failure(
        Verdict.DEAD, before=THEIRS, now=THEIRS, gate=CLOSED, reason="why"
    )

    assert isinstance(decision, Refuse)
    assert decision.code == "admission_closed"


@pytest.mark.parametrize(
    ("verdict", "now", "gate"),
    list(itertools.product(Verdict, [None, NEXT, OURS, RESTARTED], [OPEN, CLOSED])),
)
def test_c3_a_claim_that_changed_meanwhile_is_read_again_whatever_the_verdict(
    verdict: Verdict, now: Claim | None, gate: Gate
) -> None:
    decision = after_connect_failure(verdict, before=THEIRS, now=now, gate=gate, reason="why")

    assert decision == Reread()
