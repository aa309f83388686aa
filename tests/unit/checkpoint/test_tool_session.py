# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recording import CALL, SAID, said_after

from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.rows import EFFECTS
from rollout_router.checkpoint.tool_session import (
    TRANSITIONS,
    Phase,
    SessionTask,
    ToolSession,
)

TASK = SessionTask(scenario="s", seed=1, steps_max=3)
BEGUN = ToolSession.begin(TASK, "e")
SEEDED = {"observation": [{"type": "message"}], "tools": ["look"]}
KINDS = ("seed", "model", "step", "close", "verify")
TEXT, NOTHING, CALLS = SAID[1], SAID[2], SAID[0]


def sampled(said: list[Any], *, number: int = 0, **named: Any) -> dict[str, Any]:
    answer = {**said_after([], (said,)), "id": f"call-{number}"}
    return {"status": 200, "response": answer, "cookies": {}, **named}


def stepped(*, done: bool = False) -> dict[str, Any]:
    return {"observation": [{"type": "seen"}], "done": done}


VALUES: dict[str, Any] = {
    "seed": SEEDED,
    "model": sampled(CALLS),
    "step": stepped(),
    "close": {},
    "verify": {"reward": 1, "details": None},
}


def at(phase: Phase) -> ToolSession:
    """A session in *phase*, with two actions of which the cursor is at the first."""
    calls = tuple({"calls": [one]} for one in CALLS)
    return replace(BEGUN, phase=phase, actions=calls)


@pytest.mark.parametrize(("phase", "kind"), list(product(get_args(Phase), KINDS)))
def test_a_phase_takes_the_result_of_its_own_operation_alone(phase: Phase, kind: str) -> None:
    session = at(phase)
    asked = session.next()
    assert ((phase, kind) in TRANSITIONS) == (asked is not None and asked.kind == kind)
    if (phase, kind) in TRANSITIONS:
        assert session.after(kind, VALUES[kind]).phase in TRANSITIONS[phase, kind]
    else:
        with pytest.raises(ValueError, match=f"{phase} has no {kind}"):
            session.after(kind, VALUES[kind])
    assert session == at(phase)
    if asked is not None:
        assert asked.effect == ("resample" if asked.kind == "model" else "keyed")
        assert asked.effect in EFFECTS


def after(*values: Any, task: SessionTask = TASK) -> ToolSession:
    """A session after these results."""
    session = ToolSession.begin(task, "e")
    for value in values:
        asked = session.next()
        assert asked is not None
        session = session.after(asked.kind, value)
    return session


ONE_STEP = SessionTask(scenario="s", seed=1, steps_max=1)


@pytest.mark.parametrize(
    ("values", "phase", "stopped"),
    [
        ([sampled(CALLS)], "pending_action", ""),
        ([sampled(TEXT)], "pending_action", ""),
        ([sampled(NOTHING)], "pending_close", "model_said_nothing"),
        ([sampled([{"type": "message", "content": []}])], "pending_close", "model_said_nothing"),
        ([sampled([{"type": "reasoning"}])], "pending_close", "model_said_nothing"),
        ([{"status": 400, "cookies": {}}], "pending_close", "model_400"),
        ([{"status": 413, "cookies": {}}], "pending_close", "model_413"),
        ([sampled(CALLS), stepped()], "action_complete", ""),
        ([sampled(CALLS), stepped(), stepped()], "pending_close", "steps_max"),
        ([sampled(CALLS), stepped(done=True)], "pending_close", "done"),
        ([sampled(CALLS), stepped(), stepped(done=True)], "pending_close", "done"),
        ([sampled(TEXT), stepped()], "pending_close", "steps_max"),
    ],
)
def test_a_session_ends_when_its_environment_model_or_budget_does(
    values: list[Any], phase: Phase, stopped: str
) -> None:
    session = after(SEEDED, *values, task=ONE_STEP)
    assert (session.phase, session.stopped) == (phase, stopped)
    if phase == "pending_close":
        with pytest.raises(ValueError, match="no result"):
            session.result()
        closed = session.after("close", {})
        with pytest.raises(ValueError, match="no result"):
            closed.result()
        result = closed.after("verify", {"reward": 1, "details": []}).result()
        assert (result["reward"], result["stopped"]) == (1.0, stopped)
    assert session.reward is None


def test_calls_are_actions_one_by_one_and_text_is_one() -> None:
    said = [*CALLS, {"type": "message", "content": [{"text": "aside"}]}]
    session = after(SEEDED, sampled(said))
    asked = session.next()
    assert asked is not None
    look = {"call_id": "a", "name": "look", "arguments": "{}"}
    assert asked.request == {"environment_id": "e", "calls": [look]}
    asked = session.after("step", stepped()).next()
    assert asked is not None
    assert asked.request["calls"][0]["call_id"] == "b"
    asked = after(SEEDED, sampled(TEXT)).next()
    assert asked is not None
    assert asked.request == {"environment_id": "e", "text": "hello"}


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ([], {"tools": []}),
        ([], None),
        ([SEEDED], {"status": 200, "cookies": {}}),
        ([SEEDED], {"status": 200, "response": None, "cookies": {}}),
        ([SEEDED], {"status": 200, "response": {"output": [], "usage": [1]}, "cookies": {}}),
        ([SEEDED], sampled([{"type": "function_call"}])),
        ([SEEDED], sampled([{"type": "message", "content": "text"}])),
        ([SEEDED], sampled(["text"])),
        ([SEEDED, sampled(TEXT)], {"observation": []}),
        ([SEEDED, sampled(NOTHING), {}], {"details": None}),
        ([SEEDED, sampled(NOTHING), {}], {"reward": "nan", "details": None}),
        ([SEEDED, sampled(NOTHING), {}], {"reward": True, "details": None}),
        ([SEEDED, sampled(NOTHING), {}], {"reward": None, "details": None}),
        ([SEEDED, sampled(NOTHING), {}], {"reward": 1}),
    ],
)
def test_a_result_of_another_form_is_none(values: list[Any], value: Any) -> None:
    session = after(*values)
    asked = session.next()
    assert asked is not None
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        session.after(asked.kind, value)


@settings(max_examples=30)
@given(st.data())
def test_any_session_keeps_count_and_is_a_fold_of_its_results(data: st.DataObject) -> None:
    task = SessionTask(scenario="s", seed=1, steps_max=data.draw(st.integers(1, 4)))
    session, results, requests = ToolSession.begin(task, "e"), [], []
    usage, cookies, calls, observed = dict[str, int](), dict[str, str](), 0, 0
    while (asked := session.next()) is not None:
        value = VALUES[asked.kind]
        if asked.kind == "model":
            said = data.draw(st.sampled_from([CALLS, TEXT, NOTHING, [{**CALL, "call_id": "c"}]]))
            value = sampled(said, number=calls)
            value["cookies"] = data.draw(st.dictionaries(st.sampled_from("ab"), st.text("xy")))
            more = data.draw(st.dictionaries(st.sampled_from("io"), st.integers(0, 9)))
            value["response"]["usage"] = data.draw(st.sampled_from([None, {**more, "n": {}}]))
            if data.draw(st.integers(0, 9)) == 0:
                value = {"status": 404, "cookies": value["cookies"]}
            else:
                calls += 1
                for name, count in more.items() if value["response"]["usage"] else ():
                    usage[name] = usage.get(name, 0) + count
            cookies |= value["cookies"]
        elif asked.kind == "step":
            value = stepped(done=data.draw(st.integers(0, 5)) == 0)
            observed += 1
        before = canonical([asked.request, value])
        session = session.after(asked.kind, value)
        assert canonical([asked.request, value]) == before  # a fold changes nothing it is given
        results.append((asked.kind, json.loads(canonical(value))))
        requests.append(canonical(asked.request))
        assert (session.usage, session.cookies) == (usage, cookies)
        assert session.steps_left == task.steps_max - calls >= 0
        assert (session.reward is not None) == (session.phase == "finished")
        assert session.items[1:] == session.output or asked.kind == "seed"
    kinds = [kind for kind, _ in results]
    assert kinds[0] == "seed"
    assert kinds[-2:] == ["close", "verify"]
    assert [kinds.count(one) for one in ("seed", "step", "close", "verify")] == [1, observed, 1, 1]
    again = ToolSession.begin(task, "e")
    for (kind, value), request in zip(results, requests, strict=True):
        asked = again.next()
        assert asked is not None
        assert canonical(asked.request) == request
        again = again.after(kind, value)
    assert canonical(again.result()) == canonical(session.result())


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"scenario": "s"},
        {"seed": 1},
        {"scenario": 1, "seed": 1},
        {"scenario": "s", "seed": True},
        {"scenario": "s", "seed": 1.0},
        {"scenario": "s", "seed": 1, "steps_max": 0},
        {"scenario": "s", "seed": 1, "steps_max": "3"},
        {"scenario": "s", "seed": 1, "model": None},
        {"scenario": "s", "seed": 1, "other": 1},
    ],
)
def test_a_task_of_another_form_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"task|session"):
        SessionTask.from_document(document)


def test_a_task_is_read_from_json() -> None:
    document = {"scenario": "s", "seed": 1, "steps_max": 3}
    assert SessionTask.from_document(document) == TASK
