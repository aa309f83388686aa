# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.script import Say, UseTool, next_turn


def schema(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


TEXT = {"type": "string"}
READ = ("read", schema(["path"], path=TEXT))
EXEC = ("exec_command", schema(["cmd"], cmd=TEXT))
BASH = ("bash", schema(["command", "description"], command=TEXT, description=TEXT))


def tool(dialect: Dialect, name: str, parameters: Any) -> dict[str, Any]:
    if dialect is Dialect.CHAT:
        return {"type": "function", "function": {"name": name, "parameters": parameters}}
    if dialect is Dialect.MESSAGES:
        return {"name": name, "input_schema": parameters}
    return {"type": "function", "name": name, "parameters": parameters}


def conversation(dialect: Dialect, results: int, *tools: tuple[str, Any]) -> dict[str, Any]:
    listed = [tool(dialect, *each) for each in tools]
    if dialect is Dialect.RESPONSES:
        items: list[dict[str, Any]] = [
            {"role": "user", "content": "go"},
            *[{"type": "function_call_output", "call_id": "c", "output": "x"}] * results,
        ]
        return {"input": items, "tools": listed}
    if dialect is Dialect.CHAT:
        told: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": "c", "content": "x"}
        ] * results
    else:
        block = {"type": "tool_result", "tool_use_id": "c", "content": "x"}
        told = [{"role": "user", "content": [block]}] * results
    return {"messages": [{"role": "user", "content": "go"}, *told], "tools": listed}


@pytest.mark.parametrize("dialect", Dialect)
def test_a_task_is_so_many_tool_calls_and_a_last_word(dialect: Dialect) -> None:
    turns = [
        next_turn(dialect, conversation(dialect, done, READ, BASH), steps=2) for done in range(4)
    ]

    assert turns == [
        UseTool(name="bash", arguments={"command": "echo step 1", "description": "step 1"}),
        UseTool(name="bash", arguments={"command": "echo step 2", "description": "step 2"}),
        Say(text="done after 2 tool calls"),
        Say(text="done after 3 tool calls"),
    ]


@pytest.mark.parametrize("dialect", Dialect)
def test_a_tool_that_takes_a_command_is_preferred(dialect: Dialect) -> None:
    def used(*tools: tuple[str, Any]) -> UseTool | Say:
        return next_turn(dialect, conversation(dialect, 0, *tools), steps=1)

    assert used(READ) == UseTool(name="read", arguments={"path": "step 1"})
    assert used(READ, EXEC) == UseTool(name="exec_command", arguments={"cmd": "echo step 1"})
    assert isinstance(chosen := used(EXEC, READ, BASH), UseTool)
    assert chosen.name == "bash"


@pytest.mark.parametrize("dialect", Dialect)
def test_without_a_usable_tool_it_says_something(dialect: Dialect) -> None:
    said = Say(text="done after 0 tool calls")

    assert next_turn(dialect, conversation(dialect, 0), steps=6) == said
    unusable = conversation(dialect, 0) | {"tools": [{"type": "web_search"}, 7, {"type": "custom"}]}
    assert next_turn(dialect, unusable, steps=6) == said
    assert next_turn(dialect, conversation(dialect, 0) | {"tools": "x"}, steps=6) == said
    forbidden = conversation(dialect, 0, BASH) | {"tool_choice": "none"}
    assert next_turn(dialect, forbidden, steps=6) == said


def test_required_properties_are_filled_by_their_type() -> None:
    parameters = schema(
        ["a", "b", "c", "d", "e", "f", "g", "h", "i"],
        a={"type": "integer", "minimum": 3},
        b={"type": "number"},
        c={"type": "boolean"},
        d={"type": "array"},
        e={"type": "object"},
        f={"enum": ["x", "y"]},
        g={"type": ["null", "string"]},
        h={},
        j={"type": "string"},
    )
    turn = next_turn(
        Dialect.RESPONSES, conversation(Dialect.RESPONSES, 0, ("t", parameters)), steps=1
    )

    assert isinstance(turn, UseTool)
    assert turn.arguments == {
        "a": 3, "b": 1, "c": False, "d": [], "e": {}, "f": "x",
        "g": "step 1", "h": "step 1", "i": "step 1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("of_a", "value"),
    [
        ({"enum": [[[]], {"x": 1}, "y"]}, "y"),
        ({"enum": [[[]]]}, "step 1"),
        ({"type": "integer", "minimum": [[]]}, 1),
        ({"type": {"x": 1}}, "step 1"),
        ({"type": ["null", ["string"]]}, "step 1"),
    ],
)
def test_nothing_nested_of_a_schema_is_said_again(of_a: Any, value: Any) -> None:
    """What was just read may be nested too deeply to be written once more."""
    asked = conversation(Dialect.RESPONSES, 0, ("t", schema(["a"], a=of_a)))

    assert next_turn(Dialect.RESPONSES, asked, steps=1) == UseTool(name="t", arguments={"a": value})


def test_tools_inside_the_input_are_found() -> None:
    extra = {"type": "additional_tools", "tools": [tool(Dialect.RESPONSES, *EXEC)]}

    turn = next_turn(Dialect.RESPONSES, {"input": [extra]}, steps=1)

    assert isinstance(turn, UseTool)


def test_an_input_that_is_a_string_has_no_tool_results() -> None:
    assert next_turn(Dialect.RESPONSES, {"input": "go"}, steps=0) == Say(
        text="done after 0 tool calls"
    )
