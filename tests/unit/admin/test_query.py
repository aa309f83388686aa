# SPDX-License-Identifier: Apache-2.0
"""A page is what a plain filter, sort and slice of all rollouts would be."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.admin.changes import unreported_row
from rollout_router.admin.query import LIMIT_MAX, SORTS, STATES, Query, Window

IDS = ["r1", "r10", "R2", "other", "x.y-z"]
WORKERS = ["a", "b"]


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Any]:
    found = {}
    for rollout_id in draw(st.lists(st.sampled_from(IDS), unique=True)):
        worker, state = draw(st.sampled_from(WORKERS)), draw(st.sampled_from(STATES))
        row = unreported_row(rollout_id, draw(st.integers(1, 3)), worker, state=state, verdict=None)
        row["turns"] = draw(st.none() | st.integers(0, 2))
        row["last_outcome"] = draw(st.none() | st.sampled_from(["completed", "failed"]))
        found[rollout_id] = row
    return found


def queries() -> st.SearchStrategy[Query]:
    return st.builds(
        Query,
        q=st.none() | st.sampled_from(["r", "R1", "nothing"]),
        worker=st.none() | st.sampled_from(WORKERS),
        state=st.none() | st.sampled_from(STATES),
        outcome=st.none() | st.just("failed"),
        sort=st.sampled_from(SORTS),
        descending=st.booleans(),
        offset=st.integers(0, 3),
        limit=st.integers(0, 4),
    )


def plain(rows: dict[str, Any], query: Query) -> list[str]:
    """The ids that match, sorted; written for reading."""
    wanted = [
        row
        for row in sorted(rows.values(), key=lambda row: str(row["rollout_id"]))
        if (query.q or "").lower() in row["rollout_id"].lower()
        and query.worker in {None, row["worker_id"]}
        and query.state in {None, row["state"]}
        and query.outcome in {None, row["last_outcome"]}
    ]
    nulls = [row for row in wanted if row[query.sort] is None]
    others = [row for row in wanted if row[query.sort] is not None]
    others.sort(key=lambda row: row[query.sort], reverse=query.descending)
    order = [*others, *nulls] if query.descending else [*nulls, *others]
    return [row["rollout_id"] for row in order]


@settings(max_examples=50)
@given(rows=rollouts(), more=rollouts(), asked=st.lists(queries(), min_size=1, max_size=4))
def test_a_page_is_what_was_asked_for_before_and_after_a_change(
    rows: dict[str, Any], more: dict[str, Any], asked: list[Query]
) -> None:
    window = Window(rows)
    for change in ({}, more):
        members = bool(change.keys() - rows.keys())
        rows.update(change)
        window.changed(members=members)
        for query in asked:
            page = window.page(query)
            matching = plain(rows, query)
            shown = matching[query.offset : query.offset + query.limit]
            assert [row["rollout_id"] for row in page.rows] == shown
            assert (page.total, page.matching) == (len(rows), len(matching))


@pytest.mark.parametrize(
    "wrong", [{"sort": "colour"}, {"offset": -1}, {"limit": LIMIT_MAX + 1}, {"limit": -1}], ids=str
)
def test_what_cannot_be_asked_for_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sorted by|an offset"):
        Query(**wrong)
