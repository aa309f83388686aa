# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.example.scenarios import SCENARIOS
from rollout_router.checkpoint.example.tools import FOUND_MAX, TEXT_MAX, TOOLS, call, offered
from rollout_router.checkpoint.example.world import World, WrongPhase

Play = Sequence[Callable[[World], Any]]


def say(text: str) -> Callable[[World], Any]:
    return lambda world: world.step(text=text)


def use(name: Any, arguments: Any) -> Callable[[World], Any]:
    asked = {"call_id": "call-1", "name": name, "arguments": arguments}
    return lambda world: world.step(calls=[asked])


def write_to_ada(world: World) -> Any:
    ada = world.tables["contacts"][0]["contact_id"]
    return use("send_message", {"contact_id": ada, "text": "I will be LATE."})(world)


def save_linus(world: World) -> Any:
    return use("add_contact", {"name": "Linus", "number": world.number})(world)


PLAY: Play = [
    use("find_contacts", '{"name": "ada"}'),
    write_to_ada,
    say("Done."),
    use("add_reminder", {"text": "Buy milk", "minutes": 30}),
    say("I set it."),
    say("Which number has he?"),
    save_linus,
    say("Saved."),
    say("Is that right?"),
    use("set_setting", {"name": "wifi", "on": False}),
    say("It is off."),
]


def begin(scenario: str = "errands", seed: int = 7) -> World:
    return World.begin(scenario, seed)[0]


def output(result: Any) -> Any:
    (item,) = result[0]
    assert item["type"] == "function_call_output"
    assert item["call_id"] == "call-1"
    return json.loads(item["output"])


def ended(world: World) -> tuple[list[Any], Any, bytes]:
    """All that a whole play shows, its score, and the last state."""
    seen = [act(world) for act in PLAY]
    return seen, world.close(), world.to_bytes()


def test_who_does_all_that_the_user_asks_has_the_whole_reward() -> None:
    seen, score, _ = ended(begin())
    said = [result[0][0]["content"] for result in seen if result[0][0]["type"] == "message"]
    number = begin().number
    assert said == [
        "Thank you. Remind me in 30 minutes to buy milk.",
        "Thank you. Save my friend Linus as a contact.",
        f"His number is {number}.",
        "Thank you. Now turn the wifi off.",
        "The wifi alone.",
        "Thank you, that is all.",
    ]
    assert [done for _, done in seen] == [False] * 10 + [True]
    assert score["reward"] == 1.0
    assert score["details"]["messages"] == 2 * len(PLAY)


def test_who_does_less_has_less() -> None:
    world = begin()
    write_to_ada(world)
    assert world.close()["reward"] == 0.25
    assert sum(world.verified()["details"]["goals"].values()) == 1
    assert begin().close()["reward"] == 0.0


def test_equal_steps_give_equal_bytes_and_another_seed_gives_others() -> None:
    assert ended(begin()) == ended(begin())
    assert begin(seed=8).number != begin(seed=7).number
    assert ended(begin(seed=8))[2] != ended(begin())[2]


@pytest.mark.parametrize("after", range(len(PLAY) + 2))
def test_a_world_goes_on_from_its_bytes_as_if_nothing_had_been(after: int) -> None:
    whole: Play = [*PLAY, World.close, World.verified]
    straight, broken = begin(), begin()
    seen = [act(straight) for act in whole]

    first = [act(broken) for act in whole[:after]]
    raw = broken.to_bytes()
    restored = World.from_bytes(raw)
    assert restored.to_bytes() == raw
    assert first + [act(restored) for act in whole[after:]] == seen
    assert restored.to_bytes() == straight.to_bytes()


@pytest.mark.parametrize("at", range(len(PLAY) - 1))
def test_a_step_that_is_doubled_or_lost_changes_all_that_comes_after(at: int) -> None:
    _, score, state = ended(begin())
    doubled, lost = [*PLAY[: at + 1], *PLAY[at:-1]], [*PLAY[:at], *PLAY[at + 1 :]]
    for play in (doubled, lost):
        world = begin()
        for act in play:
            act(world)
        assert world.close()["details"]["generator"] != score["details"]["generator"]
        assert world.to_bytes() != state


def test_a_doubled_last_step_is_refused() -> None:
    world = begin()
    for act in PLAY:
        act(world)
    state = world.to_bytes()
    with pytest.raises(WrongPhase, match="over"):
        PLAY[-1](world)
    assert world.to_bytes() == state


@pytest.mark.parametrize("act", [say("Hello?"), World.close])
def test_after_the_close_nothing_comes_but_the_score(act: Callable[[World], Any]) -> None:
    world = begin()
    with pytest.raises(WrongPhase, match="not closed"):
        world.verified()
    score = world.close()
    with pytest.raises(WrongPhase, match="closed"):
        act(world)
    assert world.verified() == world.verified() == score


@pytest.mark.parametrize("arguments", [{}, {"calls": []}, {"calls": [{}], "text": "both"}])
def test_a_step_takes_calls_or_a_text(arguments: Any) -> None:
    with pytest.raises(ValueError, match="calls or a text"):
        begin().step(**arguments)


def test_a_message_needs_a_network() -> None:
    world = begin("offline")
    assert "offline" in output(write_to_ada(world))["error"]
    assert world.tables["messages"] == []
    use("set_setting", {"name": "cellular", "on": True})(world)
    assert "message_id" in output(write_to_ada(world))
    assert say("Done.")(world) == ([_user("Thank you, that is all.")], True)


def _user(text: str) -> dict[str, str]:
    return {"type": "message", "role": "user", "content": text}


def test_a_conversation_ends_at_its_bound_on_messages() -> None:
    world = begin("short")
    assert SCENARIOS["short"].messages_max == 6
    assert [say("I am on it.")(world)[1] for _ in range(3)] == [False, False, True]
    assert world.messages == 6 + world.baseline
    assert world.close()["reward"] == 0.0


def test_calls_beyond_the_bound_are_answered_and_not_done() -> None:
    world = begin("short")
    calls = [
        {"call_id": f"c{n}", "name": "add_reminder", "arguments": {"text": "milk", "minutes": 30}}
        for n in range(5)
    ]
    observation, done = world.step(calls=calls)
    assert [item["call_id"] for item in observation] == [f"c{n}" for n in range(5)]
    assert ["error" in json.loads(item["output"]) for item in observation] == [False] * 3 + [
        True
    ] * 2
    assert len(world.tables["reminders"]) == 3
    assert done


MISTAKES: list[tuple[Any, Any, str]] = [
    ("fly", {}, "no such tool"),
    (None, {}, "no such tool"),
    (["send_message"], {}, "no such tool"),
    ("find_contacts", "{", "not JSON"),
    ("find_contacts", "[" * 100_000, "not JSON"),
    ("find_contacts", "9" * 5000, "not JSON"),
    ("find_contacts", "[]", "an object with name"),
    ("find_contacts", None, "an object with name"),
    ("find_contacts", {}, "an object with name"),
    ("find_contacts", {"name": "a", "more": 1}, "an object with name"),
    ("find_contacts", {"name": 1}, "name must fit"),
    ("find_contacts", {"name": ""}, "name must fit"),
    ("find_contacts", {"name": "a" * (TEXT_MAX + 1)}, "name must fit"),
    ("set_setting", {"name": "radio", "on": True}, "name must fit"),
    ("set_setting", {"name": "wifi", "on": 1}, "on must fit"),
    ("add_reminder", {"text": "a", "minutes": True}, "minutes must fit"),
    ("add_reminder", {"text": "a", "minutes": 1.5}, "minutes must fit"),
    ("add_reminder", '{"text": "a", "minutes": NaN}', "minutes must fit"),
    ("add_reminder", {"text": "a", "minutes": 0}, "minutes must fit"),
    ("send_message", {"contact_id": "nobody", "text": "a"}, "no contact"),
]


@pytest.mark.parametrize(("name", "arguments", "why"), MISTAKES)
def test_a_mistake_of_the_model_is_an_observation_and_changes_no_table(
    name: Any, arguments: Any, why: str
) -> None:
    world = begin()
    tables = canonical(world.tables)
    assert why in output(use(name, arguments)(world))["error"]
    assert canonical(world.tables) == tables


def test_arguments_are_json_text_or_an_object() -> None:
    texts, objects = begin(), begin()
    arguments = {"text": "milk \ud800", "minutes": 30}
    assert use("add_reminder", json.dumps(arguments))(texts) == use("add_reminder", arguments)(
        objects
    )
    assert World.from_bytes(texts.to_bytes()) == objects


def test_an_observation_and_the_state_are_bounded() -> None:
    world = begin()
    lengths = []
    while world.phase == "open":
        arguments = {"name": "🎈" * TEXT_MAX, "number": "1" * TEXT_MAX}
        use("add_contact", arguments)(world)
        if world.phase == "open":
            lengths.append(len(canonical(use("find_contacts", {"name": "🎈"})(world))))
    assert len(lengths) == SCENARIOS["errands"].messages_max // 4
    assert lengths[-1] < 2 * FOUND_MAX * 13 * TEXT_MAX + 1000
    assert lengths[-1] == lengths[FOUND_MAX]  # it does not grow with the conversation
    assert len(world.to_bytes()) < 40 * 13 * TEXT_MAX


def test_the_user_can_undo_what_was_done_and_the_score_sees_it() -> None:
    world = begin()
    for act in PLAY[:-1]:
        act(world)
    use("set_setting", {"name": "wifi", "on": True})(world)
    assert "turn the wifi off" in say("Done.")(world)[0][0]["content"]
    assert world.close()["reward"] == 0.75


def test_the_tools_are_offered_with_their_schemas() -> None:
    tools = offered()
    assert [tool["name"] for tool in tools] == list(TOOLS)
    assert len(tools) == 5
    for tool in tools:
        schema = tool["parameters"]
        assert schema["required"] == list(schema["properties"])
        assert schema["additionalProperties"] is False
        assert "error" in json.loads(call(begin(), tool["name"], {}))
    assert json.loads(canonical(tools)) == tools


@pytest.mark.parametrize(
    "change",
    [
        lambda document: {**document, "schema": 2},
        lambda document: {**document, "scenario_digest": "0" * 64},
        lambda document: {**document, "scenario": "message"},
        lambda document: {**document, "scenario": "unheard of"},
        lambda document: {**document, "more": 1},
        lambda document: {name: document[name] for name in document if name != "asked"},
        lambda document: [document],
    ],
)
def test_bytes_of_another_form_are_no_world(change: Callable[[Any], Any]) -> None:
    document = json.loads(begin().to_bytes())
    with pytest.raises(ValueError, match="state of a world"):
        World.from_bytes(canonical(change(document)).encode())


def test_bytes_that_were_cut_are_no_world() -> None:
    raw = begin().to_bytes()
    for damaged in (raw[:-1], b"", raw + b" ", b" " + raw):
        with pytest.raises(ValueError):  # noqa: PT011 - whichever damage is seen first
            World.from_bytes(damaged)


def test_an_unknown_scenario_has_no_world() -> None:
    with pytest.raises(KeyError):
        World.begin("unheard of", 1)
