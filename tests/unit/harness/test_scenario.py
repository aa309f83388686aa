# SPDX-License-Identifier: Apache-2.0
"""How far a conversation has come stands in it."""

import pytest

from rollout_router.harness.scenario import (
    ANSWER_ID,
    MAIN,
    SCENARIOS,
    Kind,
    command,
    marker,
    progress,
    prompt,
    subagent_progress,
    subagent_prompt,
)


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("", 0),
        (marker("1"), 1),
        (f"{marker('2')} and before {marker('1')}", 2),
        (f"{marker('9')} {marker('10')}", 10),
        (f"{marker('1')} {marker('2a')} {marker('2a')}", 1),
        (f"{marker('2b')} {marker('2a')}", 2),
        (f"{marker('1')} {marker('sub-2-1')}", 1),
    ],
)
def test_the_highest_step_whose_markers_are_all_there_is_done(text: str, done: int) -> None:
    assert progress(text) == done


def test_a_subagent_counts_its_own_commands() -> None:
    text = f"{marker('4')} {marker('sub-5-1')} {marker('sub-6-2')}"
    assert [subagent_progress(text, number) for number in (4, 5, 6)] == [0, 1, 2]


def test_what_asks_for_a_step_does_not_say_that_it_is_done() -> None:
    asked = [*map(prompt, SCENARIOS.values()), subagent_prompt(1), command("1"), command("sub-1-1")]
    assert progress(" ".join(asked)) == 0
    prompts = len(SCENARIOS)
    assert all(MAIN in text for text in asked[:prompts])
    assert not any(MAIN in text for text in asked[prompts:])


def test_an_id_is_found_whatever_stands_around_it() -> None:
    text = '"call_conf_main_7_1_2","toolu_conf_sub5_0_2" done. conf_title_0_1'
    assert ANSWER_ID.findall(text) == ["conf_main_7_1", "conf_sub5_0_2", "conf_title_0_1"]


def test_the_scenarios_hold_what_they_are_for() -> None:
    assert [len(SCENARIOS[name].steps) for name in ("long", "compaction", "faults")] == [20, 30, 7]
    assert SCENARIOS["long"].calls(subagents=True) == 21
    mixed = SCENARIOS["mixed"]
    assert {step.kind for step in mixed.steps} == set(Kind)
    assert (mixed.calls(subagents=False), mixed.calls(subagents=True)) == (8, 11)
    assert mixed.labels(5, subagents=True) == ("sub-5-1", "sub-5-2")
    assert mixed.labels(5, subagents=False) == ("5",)
    assert mixed.labels(2, subagents=False) == ("2a", "2b")
