# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any, get_args

import pytest
from support.deployment import code_of

from rollout_router.checkpoint.phases import (
    ACTIVE,
    TRANSITIONS,
    Checkpoint,
    Event,
    Phase,
    after,
    follow,
)

PAIRS: list[Any] = [(phase, event) for phase in get_args(Phase) for event in get_args(Event)]
NEVER = Checkpoint(checkpoint_id="c1")


def at(phase: Any, **changes: Any) -> Checkpoint:
    return replace(NEVER, phase=phase, **changes)


@pytest.mark.parametrize(("phase", "event"), PAIRS)
def test_every_pair_is_listed_or_refused_by_name(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert follow("c1", phase, event) == TRANSITIONS[phase, event]
    else:
        code = "checkpoint_abandoned" if phase == "abandoned" else "checkpoint_phase"
        assert code_of(follow, "c1", phase, event) == code


def test_every_phase_has_an_exit_and_none_comes_back_from_its_end() -> None:
    assert {event for phase, event in TRANSITIONS if phase == "abandoned"} == {"resume"}
    for phase in ACTIVE:
        assert (phase, "resume") in TRANSITIONS
        assert (phase, "expire") in TRANSITIONS
    begun = {to for (phase, _), to in TRANSITIONS.items() if phase in ("resumed", "abandoned")}
    assert not begun & ACTIVE
    for (phase, event), to in TRANSITIONS.items():
        assert event != "expire" or to == follow("c1", phase, "resume")


@pytest.mark.parametrize("phase", get_args(Phase))
def test_a_budget_is_over_at_its_end_or_with_its_boot_where_the_gate_is_held(phase: Phase) -> None:
    one = at(phase, boot_id="boot", until=10.0)
    assert not one.expired("boot", 9.9)
    assert one.expired("boot", 10.0) == (phase in ACTIVE)
    assert one.expired("another", 0.0) == (phase in ACTIVE)


@pytest.mark.parametrize(
    ("phase", "event"), [("prepared", "commit"), ("none", "restore"), ("resumed", "commit")]
)
def test_what_was_asked_is_asked_the_same_again(phase: Any, event: Any) -> None:
    asked = {"directory": "/a"}
    first = after(at("prepared" if event == "commit" else "none"), event, asked)
    assert first.asked(event) == asked
    again = replace(first, phase=phase)
    assert after(again, event, asked) == replace(again, phase=TRANSITIONS[phase, event])
    assert code_of(after, again, event, {"directory": "/b"}) == "checkpoint_conflict"


@pytest.mark.parametrize(
    ("did", "phase", "asks"),
    [("commit", "resumed", "restore"), ("restore", "resumed", "commit")],
)
def test_nothing_is_said_to_be_done_again_that_was_never_done(
    did: Any, phase: Any, asks: Any
) -> None:
    done = replace(after(at("prepared" if did == "commit" else "none"), did, {"a": 1}), phase=phase)
    assert code_of(after, done, asks, {"a": 1}) == "checkpoint_phase"


def test_events_without_arguments_leave_what_was_asked() -> None:
    asked = after(at("prepared"), "commit", {"a": 1})
    assert after(asked, "resume").arguments == asked.arguments
