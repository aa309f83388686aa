# SPDX-License-Identifier: Apache-2.0
"""What may be done about a request that its owner did not answer (R2, R4), and that docs say so."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from rollout_router.routing.dispatch import AFTER, Event, Sent, Then

PAGE = (Path(__file__).parents[3] / "docs" / "routing.md").read_text(encoding="utf-8")
MAY_HAVE_RUN = {Then.LOST_IN_FLIGHT, Then.TIMEOUT, Then.CUT}
ROUTES_AGAIN = set(Then) - MAY_HAVE_RUN - {Then.UNREACHABLE}
DISPATCHED = (Sent.REQUEST, Sent.ANSWER)
NEW = (Sent.NEW_NOTHING, Sent.NEW_HEAD)
Table = Mapping[tuple[Sent, Event], Then]


def dispatched_and_routed_again(table: Table) -> set[tuple[Sent, Event]]:
    again = {pair for pair, then in table.items() if then in ROUTES_AGAIN}
    return {pair for pair in again if pair[0] in DISPATCHED}


def test_r2_after_dispatch_only_the_owners_421_allows_another_route() -> None:
    assert dispatched_and_routed_again(AFTER) == {(Sent.REQUEST, Event.MOVED)}


@pytest.mark.parametrize("then", [Then.JUDGE, Then.REREAD, Then.HERE])
@pytest.mark.parametrize("event", [Event.LOST, Event.DEAD, Event.TIMED_OUT])
@pytest.mark.parametrize("sent", DISPATCHED)
def test_r2_a_table_that_sent_a_dispatched_request_again_would_be_found(
    sent: Sent, event: Event, then: Then
) -> None:
    assert (sent, event) in dispatched_and_routed_again({**AFTER, (sent, event): then})


def test_r2_a_placed_rollout_that_did_not_run_is_taken_here_and_nobody_is_judged() -> None:
    new = {pair: then for pair, then in AFTER.items() if pair[0] in NEW}
    assert new.pop((Sent.NEW_HEAD, Event.MOVED)) is Then.REREAD
    assert set(new.values()) == {Then.HERE}
    assert {sent for (sent, _), then in AFTER.items() if then is Then.HERE} == set(NEW)


def test_r2_where_nothing_ran_nobody_is_told_that_it_may_have() -> None:
    told = {sent for (sent, _), then in AFTER.items() if then in MAY_HAVE_RUN}
    assert told == set(DISPATCHED)


def test_r4_an_answer_that_has_begun_is_cut_and_no_other() -> None:
    cut = {sent for (sent, _), then in AFTER.items() if then is Then.CUT}
    assert cut == {Sent.ANSWER}
    assert all(then is Then.CUT for (sent, _), then in AFTER.items() if sent is Sent.ANSWER)


def test_every_loss_and_death_is_provided_for() -> None:
    assert {(sent, event) for sent in Sent for event in (Event.LOST, Event.DEAD)} <= set(AFTER)


def test_the_table_of_the_page_is_the_table_of_the_code() -> None:
    rows = [
        f"| {sent.value} | {event.value} | {then.value} |" for (sent, event), then in AFTER.items()
    ]
    table = PAGE.partition("| what was sent | what came instead")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == rows
