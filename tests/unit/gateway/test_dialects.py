# SPDX-License-Identifier: Apache-2.0
"""A turn of several parts, plain and streamed."""

import json
from typing import Any

import pytest

from rollout_router.gateway.dialects import Turn, events, plain, usage_of
from rollout_router.gateway.model import Dialect
from rollout_router.gateway.script import Say, UseTool

A, B = (UseTool(name="bash", arguments={"command": f"sh ./step {label}"}) for label in "ab")
TURNS = {
    "text": [Say(text="hello, you")],
    "call": [A],
    "calls": [A, B],
    "text and calls": [Say(text="both at once"), A, B],
}


def turn(parts: Any) -> Turn:
    return Turn(said=parts, model="m", name="n_1", usage=(11, 3))


def streamed(dialect: Dialect, asked: Turn) -> list[dict[str, Any]]:
    parts = [part.decode() for part in events(dialect, asked, include_usage=True)]
    lines = [line for part in parts for line in part.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def chat(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": None}
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if (text := delta.pop("content", None)) is not None:
                message["content"] = (message["content"] or "") + text
            for piece in delta.pop("tool_calls", ()):
                index = piece.pop("index")
                if "id" in piece:
                    assert index == len(calls)
                    calls.append(piece)
                else:
                    calls[index]["function"]["arguments"] += piece["function"]["arguments"]
            message.update(delta)
    return message | ({"tool_calls": calls} if calls else {}) | {"refusal": None}


def messages(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for event in data:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                blocks[-1]["json"] += event["delta"].get("partial_json", "")
                if "text" in event["delta"]:
                    blocks[-1]["text"] += event["delta"]["text"]
    for block in blocks:
        if written := block.pop("json"):
            block["input"] = json.loads(written)
    return blocks


@pytest.mark.parametrize("parts", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("dialect", Dialect)
def test_the_events_say_what_the_document_says(dialect: Dialect, parts: Any) -> None:
    asked = turn(parts)
    document, data = dict(plain(dialect, asked)), streamed(dialect, asked)
    match dialect:
        case Dialect.CHAT:
            assert chat(data) == document["choices"][0]["message"]
            assert data[-1]["usage"] == document["usage"]
        case Dialect.RESPONSES:
            done = [event["item"] for event in data if event["type"].endswith("item.done")]
            assert done == document["output"] == data[-1]["response"]["output"]
            at = [event["output_index"] for event in data if "output_index" in event]
            assert at == sorted(at)
            assert set(at) == set(range(len(parts)))
        case Dialect.MESSAGES:
            assert messages(data) == document["content"]


@pytest.mark.parametrize("dialect", Dialect)
def test_each_call_of_an_answer_has_an_id_of_its_own(dialect: Dialect) -> None:
    written = json.dumps(plain(dialect, turn(TURNS["text and calls"])))
    prefix = "toolu" if dialect is Dialect.MESSAGES else "call"
    assert f'"{prefix}_n_1"' in written
    assert f'"{prefix}_n_1_2"' in written


def test_a_tool_in_a_namespace_is_called_there() -> None:
    call = UseTool(name="wait_agent", arguments={}, namespace="agents")
    (item,) = plain(Dialect.RESPONSES, turn([call]))["output"]
    assert item["namespace"] == "agents"
    (item,) = plain(Dialect.RESPONSES, turn([A]))["output"]
    assert "namespace" not in item


def test_usage_grows_with_what_was_given_and_said() -> None:
    assert usage_of([Say(text="")], 0) == (1, 1)
    assert usage_of([Say(text="four"), A], 400) == (101, 8)
