# SPDX-License-Identifier: Apache-2.0
"""The document of a conformance run, and its tables."""

import json
from dataclasses import replace
from typing import Any

import pytest
from support.runs import DELTAS, FULL, SCENARIO

from rollout_router.harness.compare import ASPECTS, Run
from rollout_router.harness.plan import Mode
from rollout_router.harness.port import Dialect
from rollout_router.harness.report import Variant, findings, page, summary, tables
from rollout_router.tables import Table


def call(**changes: Any) -> dict[str, Any]:
    return {
        "sha256": "d",
        "local_hop_ms": 0.2,
        "delta_ms": 0.1,
        "other_ms": 0.3,
        "wait_ms": 10.0,
        "server_timing": "claim;dur=0.5, admission;dur=0.25, read;dur=1, rebuild;dur=2, app;dur=6",
        **changes,
    }


def summarised(*runs: Run) -> dict[str, Any]:
    return summary(Variant(harness="pi", dialect=Dialect.CHAT, scenario=SCENARIO, runs=runs))


def table(title: str, *summaries: dict[str, Any]) -> Table:
    return next(found for found in tables(summaries) if found.title.startswith(title))


def test_a_summary_is_json_and_holds_the_findings_of_each_run() -> None:
    found = summarised(FULL, replace(DELTAS, exit_code=1))
    assert json.loads(json.dumps(found)) == found
    full, deltas = found["runs"]
    assert full["findings"] == []
    assert [one["aspect"] for one in deltas["findings"]] == ["exit code", "exit code"]


def test_the_reference_is_not_compared_with_itself() -> None:
    assert [run["findings"] for run in summarised(FULL)["runs"]] == [[]]


def test_differences_are_counted_by_aspect() -> None:
    rows = table("Differences", summarised(FULL, replace(DELTAS, exit_code=1))).rows
    assert [row[5:] for row in rows] == [
        ["same"] * len(ASPECTS),
        ["2" if aspect == "exit code" else "same" for aspect in ASPECTS],
    ]


def test_bytes_stand_beside_what_they_may_be_at_most() -> None:
    run = replace(
        DELTAS, scenario="long", mode=Mode.DELTAS, bytes_full=5_600, bytes_sent=100, resyncs=0
    )
    rows = table("Bytes", summarised(FULL, run)).rows
    assert rows[-1] == [
        *("pi, chat", "short", "deltas", "5,600", "100", "56.0", "28"),
        *("250", "22.4", "10", "0"),
    ]


@pytest.mark.parametrize("forwarded", [False, True])
def test_stages_are_medians_of_the_calls_that_had_them(*, forwarded: bool) -> None:
    timings = [call(), call(local_hop_ms=0.4), call(local_hop_ms=9.0, server_timing=None)]
    if forwarded:
        timings[0]["server_timing"] += ", hop;dur=0.125"
    stages = summarised(replace(FULL, timings=tuple(timings)))["runs"][0]["stages_ms"]
    assert stages["sandbox local hop"] == 0.4
    assert stages["gym claim"] == 0.5
    assert stages["gym hop"] == (0.125 if forwarded else None)
    assert stages["gym other"] == (0.188 if forwarded else 0.25)


def test_stages_that_nobody_measured_are_left_out() -> None:
    long = replace(SCENARIO, name="long")
    runs = [replace(FULL, mode=Mode.FULL, scenario="long", killed=None)]
    found = summary(Variant(harness="pi", dialect=Dialect.CHAT, scenario=long, runs=runs))
    assert set(table("Stages", found).rows[0][3:]) == {"-"}


def test_a_rule_is_listed_with_where_it_was_needed() -> None:
    found = {**summarised(FULL), "rules": {"uuid": 3}}
    row = next(row for row in table("Rules", found).rows if row[0] == "uuid")
    assert row[2] == "pi, chat, short: 3"
    assert {row[2] for row in table("Rules", summarised(FULL)).rows} == {"never"}


def test_the_page_has_versions_findings_and_all_tables() -> None:
    found = summarised(FULL, replace(DELTAS, exit_code=1))
    document = {
        "versions": {"commit": "abc+"},
        "harnesses": {"pi": {"@x/pi": "1.6.0"}},
        "loopback_only": True,
        "variants": [found],
    }
    written = page(document)
    for text in ("- commit: abc+", "- pi: @x/pi 1.6.0", "loopback alone", "exited with 1"):
        assert text in written
    assert written.count("\n## ") == 2 + len(tables([found]))
    assert "| pi, chat | short | in full, owner killed |" in written
    assert "None." in page({**document, "variants": [summarised(FULL)]})


def test_many_findings_of_one_kind_are_cut_short() -> None:
    found = summarised(FULL)
    found["runs"][0]["findings"] = [{"aspect": "work", "text": str(n)} for n in range(9)]
    assert [line[-1] for line in findings([found])] == ["0", "1", "2"]
