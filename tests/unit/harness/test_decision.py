# SPDX-License-Identifier: Apache-2.0
"""What the model of a conformance run says to which conversation."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.script import Say, UseTool
from rollout_router.harness.decision import Decision, decide
from rollout_router.harness.scenario import SCENARIOS, marker, prompt, subagent_prompt

MIXED = SCENARIOS["mixed"]
PROMPT = prompt(MIXED)
AGENT = "01a22a6f-45d0-78a3-a413-e8610850a01e"
SPAWNED = json.dumps({"agent_id": AGENT, "nickname": "x"})
STRING = {"type": "string"}
SHELL = {"bash": {"command": STRING}}
CODEX = {"exec_command": {"cmd": STRING, "yield_time_ms": {"type": "number"}}}
OPENCODE = {**SHELL, "task": {"prompt": STRING, "command": STRING}}
HERMES = {"terminal": {"command": STRING}, "delegate_task": {"goal": STRING}}
SPACE = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "tools": [{"type": "function", "name": name} for name in ("spawn_agent", "wait_agent")],
}


def request(dialect: Dialect, text: str, tools: Mapping[str, Any]) -> dict[str, Any]:
    """As harnesses write it: with a system prompt, and tools only where there are some."""
    listed: list[dict[str, Any]] = []
    for name, properties in tools.items():
        schema = {"type": "object", "properties": properties, "required": [next(iter(properties))]}
        match dialect:
            case Dialect.CHAT:
                function = {"name": name, "parameters": schema}
                listed.append({"type": "function", "function": function})
            case Dialect.RESPONSES:
                listed.append({"type": "function", "name": name, "parameters": schema})
            case Dialect.MESSAGES:
                listed.append({"name": name, "input_schema": schema})
    if "exec_command" in tools:
        listed.append(SPACE)
    key = "input" if dialect is Dialect.RESPONSES else "messages"
    return {"model": "m", key: [{"role": "user", "content": text}], "tools": listed}


def decided(text: str, tools: Mapping[str, Any], dialect: Dialect = Dialect.RESPONSES) -> Decision:
    document = request(dialect, text, tools)
    return decide(MIXED, dialect, document, json.dumps(document))


def through(step: int) -> str:
    return f"{PROMPT} {marker(str(step))}"


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("text", "done", "commands"),
    [
        (PROMPT, 0, ["sh ./step 1"]),
        (through(1), 1, ["sh ./step 2a", "sh ./step 2b"]),
        (f"{through(1)} {marker('2b')}", 1, ["sh ./step 2a", "sh ./step 2b"]),
        (f"{marker('2b')} {marker('2a')}", 2, ["sh ./step 3"]),
        (through(4), 4, ["sh ./step 5"]),  # no subagents here
    ],
)
def test_the_next_step_is_asked_for_in_every_dialect(
    dialect: Dialect, text: str, done: int, commands: list[str]
) -> None:
    decision = decided(text, SHELL, dialect)
    calls = [part for part in decision.said if isinstance(part, UseTool)]
    assert (decision.conversation, decision.done, decision.asks) == ("main", done, done + 1)
    assert [call.arguments for call in calls] == [{"command": command} for command in commands]
    assert any(isinstance(part, Say) for part in decision.said) == (len(commands) > 1)


@pytest.mark.parametrize(
    ("text", "tools", "conversation", "said"),
    [
        (PROMPT, {}, "title", "Scenario mixed"),
        (through(3), {}, "summary", marker("3")),
        (through(7), SHELL, "main", "all 7 steps"),
        (f"{subagent_prompt(5)} {marker('sub-5-2')}", SHELL, "sub5", marker("5")),
    ],
)
def test_what_ends_a_turn_holds_the_answers_id(
    text: str, tools: Mapping[str, Any], conversation: str, said: str
) -> None:
    decision = decided(text, tools)
    (part,) = decision.named("conf_x_1_1")
    assert decision.conversation == conversation
    assert decision.asks is None
    assert isinstance(part, Say)
    assert said in part.text
    assert part.text.endswith(" conf_x_1_1")


def test_a_summary_carries_the_run_on() -> None:
    summary = decided(through(3), {}).named("conf_summary_3_1")[0]
    assert isinstance(summary, Say)
    assert decided(summary.text, SHELL) == decided(through(3), SHELL)
    assert decided(f"{summary.text} {subagent_prompt(5)}", SHELL).conversation == "main"


@pytest.mark.parametrize(
    ("tools", "said", "call"),
    [
        (OPENCODE, "", ("task", "prompt", subagent_prompt(5), None)),
        (HERMES, "", ("delegate_task", "goal", subagent_prompt(5), None)),
        (CODEX, "", ("spawn_agent", "message", subagent_prompt(5), "multi_agent_v1")),
        (CODEX, subagent_prompt(5) + SPAWNED, ("wait_agent", "targets", [AGENT], "multi_agent_v1")),
    ],
)
def test_a_subagent_is_started_as_the_harness_does(
    tools: Mapping[str, Any], said: str, call: tuple[str, str, Any, str | None]
) -> None:
    decision = decided(through(4) + said, tools)
    (part,) = decision.said
    assert isinstance(part, UseTool)
    assert (part.name, part.namespace) == (call[0], call[3])
    assert part.arguments[call[1]] == call[2]
    starts, awaits = (5 if call[0] == name else None for name in ("spawn_agent", "wait_agent"))
    assert (decision.starts, decision.awaits) == (starts, awaits)


@pytest.mark.parametrize("tools", [SHELL, CODEX, OPENCODE, HERMES])
def test_a_subagent_runs_its_own_commands(tools: Mapping[str, Any]) -> None:
    text = subagent_prompt(5)
    for done in range(2):
        decision = decided(text, tools)
        (part,) = decision.said
        assert (decision.conversation, decision.done, decision.asks) == ("sub5", done, None)
        assert isinstance(part, UseTool)
        assert f"sh ./step sub-5-{done + 1}" in part.arguments.values()
        text += marker(f"sub-5-{done + 1}")
    assert decided(text, tools).ends == 5


def test_codex_waits_for_a_command_as_long_as_it_can() -> None:
    (part,) = decided(PROMPT, CODEX).said
    assert isinstance(part, UseTool)
    assert part.arguments == {"cmd": "sh ./step 1", "yield_time_ms": 30_000}


def test_tools_without_a_shell_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"no tool of \['read'\]"):
        decided(PROMPT, {"read": {"path": STRING}})
