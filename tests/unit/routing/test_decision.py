# SPDX-License-Identifier: Apache-2.0
"""The decision: every row of its table (C3, C4, R1, R5, R6)."""

import itertools
from dataclasses import replace

import pytest

from rollout_router.claims import Claim, Gate, Owner, Verdict
from rollout_router.routing.decision import (
    Acquire,
    Forward,
    Refuse,
    Reread,
    Serve,
    TakeOver,
    after_connect_failure,
    route_hop,
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


@pytest.mark.parametrize(("held", "claim"), [(7, None), (None, None), (None, OURS)])
def test_r6_a_closed_gate_claims_and_serves_nothing(held: int | None, claim: Claim | None) -> None:
    decision = route_public(me=ME, held_epoch=held, claim=claim, gate=CLOSED)

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
