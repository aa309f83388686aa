# SPDX-License-Identifier: Apache-2.0
"""What may be done about a request that its owner did not answer (R2, R4), and that docs say so."""

from pathlib import Path

from rollout_router.routing.dispatch import AFTER, Event, Sent, Then

PAGE = (Path(__file__).parents[3] / "docs" / "routing.md").read_text(encoding="utf-8")
ROUTES_AGAIN = {Then.JUDGE, Then.REREAD}


def test_r2_after_dispatch_only_the_owners_421_allows_another_route() -> None:
    again = {pair for pair, then in AFTER.items() if then in ROUTES_AGAIN}
    dispatched = {pair for pair in again if pair[0] in {Sent.REQUEST, Sent.ANSWER}}
    assert dispatched == {(Sent.REQUEST, Event.MOVED)}


def test_r2_where_nothing_ran_nobody_is_told_that_it_may_have() -> None:
    may_have_run = {Then.LOST_IN_FLIGHT, Then.TIMEOUT, Then.CUT}
    assert {sent for (sent, _), then in AFTER.items() if then in may_have_run} == {
        Sent.REQUEST,
        Sent.ANSWER,
    }


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
