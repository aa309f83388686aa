# SPDX-License-Identifier: Apache-2.0
"""Turns, requests and the conversion to chat messages."""

import itertools
from typing import Any

import pytest

from rollout_router.demo.conversation import (
    Dialect,
    Rollout,
    Unplayable,
    chat_messages,
    parameters,
    turns,
)
from rollout_router.demo.generated import generate

SYSTEM = {"type": "message", "role": "system", "content": "be brief"}
USER = {"role": "user", "content": [{"type": "input_text", "text": "tidy "}, {"text": "up"}]}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "I look", "annotations": []}],
}
CALL = {"type": "function_call", "call_id": "c1", "name": "run", "arguments": "{}"}
CALL_2 = {**CALL, "call_id": "c2"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}
OUTPUT_2 = {**OUTPUT, "call_id": "c2"}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([USER], []),
        ([USER, SAID], [1]),
        ([SAID, USER], [0]),
        ([SYSTEM, USER, THOUGHT, SAID, CALL, CALL_2, OUTPUT, OUTPUT_2, SAID], [2, 8]),
        ([SAID, CALL, OUTPUT, CALL_2, OUTPUT_2], [0, 3]),
        ([USER, SAID, USER, SAID, SAID], [1, 3]),
    ],
)
def test_a_turn_begins_where_the_model_follows_an_input(
    items: list[dict[str, Any]], expected: list[int]
) -> None:
    assert turns(items) == expected


def test_a_turn_becomes_one_assistant_message_with_its_calls() -> None:
    items: list[dict[str, Any]] = [SYSTEM, USER, THOUGHT, SAID, CALL, CALL_2]
    items += [OUTPUT, OUTPUT_2, SAID, SAID]
    function = {"name": "run", "arguments": "{}"}
    assert chat_messages(items) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "tidy up"},
        {
            "role": "assistant",
            "content": "I look",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
        {"role": "assistant", "content": "I look\n\nI look"},
    ]


@pytest.mark.parametrize("dialect", Dialect)
def test_each_request_of_a_rollout_carries_the_one_before_it(dialect: Dialect) -> None:
    rollout = generate(1)[0]
    key = "input" if dialect is Dialect.RESPONSES else "messages"
    asked = [
        parameters(dialect, rollout.items[:count], stream=False) for count in turns(rollout.items)
    ]
    assert len(asked) > 5
    for earlier, later in itertools.pairwise(asked):
        assert later[key][: len(earlier[key])] == earlier[key]
        assert len(later[key]) > len(earlier[key])
        assert later["tools"] == earlier["tools"]


def test_items_go_to_responses_as_they_are() -> None:
    assert parameters(Dialect.RESPONSES, [SAID, CALL], stream=True)["input"] == [SAID, CALL]


def test_chat_has_something_to_ask_before_the_first_item() -> None:
    assert [m["role"] for m in parameters(Dialect.CHAT, [], stream=False)["messages"]] == ["system"]


@pytest.mark.parametrize(
    ("rollout_id", "items", "said"),
    [
        ("no/id", [SAID], "'no/id' is no rollout id"),
        ("r1", [USER], "no turn of a model"),
        ("r1", [SAID, "text"], "item 1 is no JSON object"),
        ("r1", [{"type": "image_call"}], "item 0 has the type 'image_call'"),
        ("r1", [{"type": ["message"]}], "item 0 has the type"),
        ("r1", [{"content": "x"}], "item 0 is a message without the string 'role'"),
        ("r1", [{"role": "judge", "content": "x"}], "item 0 has the role 'judge'"),
        ("r1", [{**CALL, "arguments": {}}], "function_call without the string 'arguments'"),
        ("r1", [{**OUTPUT, "output": 3}], "whose 'output' is neither a string"),
        ("r1", [{**USER, "content": [{"type": "input_image"}]}], "whose 'content' is neither"),
    ],
)
def test_what_cannot_be_played_is_named(rollout_id: str, items: list[Any], said: str) -> None:
    with pytest.raises(Unplayable) as caught:
        Rollout(rollout_id=rollout_id, items=items)
    assert said in str(caught.value)
