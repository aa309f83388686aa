# SPDX-License-Identifier: Apache-2.0
"""What the model of a conformance run says next, decided from one request alone. Pure.

How far the agent has come stands in the conversation, as markers that its commands printed. So a
request sent again, a compacted history and another owner get what they would have got anyway.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.script import Say, Tool, UseTool, offered_tools, shell_call
from rollout_router.harness.scenario import (
    MAIN,
    SUBAGENT_STEPS,
    Kind,
    Scenario,
    command,
    marker,
    progress,
    subagent_progress,
    subagent_prompt,
)

__all__ = ["Decision", "decide"]

_SUBAGENT: Final = re.compile(r"conf-subagent (\d+)")
_AGENT_ID: Final = re.compile(r"agent_id\W+([0-9a-f-]{36})")
_PATIENCE_MS: Final = 30_000  # Codex returns from a command that takes longer; it allows no more
_WAIT_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The next answer, but for the id in it."""

    conversation: str  # main, sub<N>, title or summary
    done: int  # steps of it that are done
    said: Sequence[Say | UseTool]
    asks: int | None = None  # the step that the main conversation goes on to
    starts: int | None = None  # the step whose subagent runs from now on beside the main one
    awaits: int | None = None  # the step whose subagent the main one waits for
    ends: int | None = None  # the step whose subagent ends with this

    def named(self, answer_id: str) -> Sequence[Say | UseTool]:
        """What is said; a text that ends the turn holds the answer's id."""
        if any(isinstance(part, UseTool) for part in self.said):
            return self.said
        return [Say(text=f"{part.text} {answer_id}") for part in self.said if isinstance(part, Say)]


def decide(
    scenario: Scenario, dialect: Dialect, document: Mapping[str, Any], text: str
) -> Decision:
    """The next turn.

    Args:
        scenario: what is played.
        dialect: of the request.
        document: the request.
        text: the same, as its JSON text.
    """
    tools = offered_tools(dialect, document)
    done = progress(text)
    if MAIN not in text and (found := _SUBAGENT.search(text)) and tools:
        return _subagent(int(found[1]), tools, text)
    if not tools:
        return _aside(scenario, done)
    if done >= len(scenario.steps):
        return _say("main", done, f"{scenario.name}: all {done} steps are done.")
    number, said = done + 1, _step(scenario, done + 1, tools, text)
    called = {part.name for part in said if isinstance(part, UseTool)}
    return Decision(
        conversation="main",
        done=done,
        asks=number,
        said=said,
        starts=number if "spawn_agent" in called else None,
        awaits=number if "wait_agent" in called else None,
    )


def _aside(scenario: Scenario, done: int) -> Decision:
    """A request without tools: at the start it wants a title, later a summary."""
    if done == 0:
        return _say("title", done, f"Scenario {scenario.name}")
    said = f"{MAIN}, scenario {scenario.name}: steps 1 to {done} are done, the last said"
    return _say("summary", done, f"{said} {marker(str(done))}. Go on with the next step.")


def _subagent(number: int, tools: Sequence[Tool], text: str) -> Decision:
    name, done = f"sub{number}", subagent_progress(text, number)
    if done >= SUBAGENT_STEPS:
        said = f"Its steps are done: {marker(str(number))}."
        return replace(_say(name, done, said), ends=number)
    return Decision(conversation=name, done=done, said=[_shell(tools, f"sub-{number}-{done + 1}")])


def _step(
    scenario: Scenario, number: int, tools: Sequence[Tool], text: str
) -> Sequence[Say | UseTool]:
    kind = scenario.steps[number - 1].kind
    if kind is Kind.PARALLEL:
        halves = scenario.labels(number, subagents=False)
        return [
            Say(text=f"Both halves of step {number} at once."),
            *(_shell(tools, label) for label in halves),
        ]
    if kind is Kind.SUBAGENT and (delegated := _delegated(number, tools, text)) is not None:
        return [delegated]
    return [_shell(tools, str(number))]


def _delegated(number: int, tools: Sequence[Tool], text: str) -> Say | UseTool | None:
    """The subagent's start, or the wait for it; None: this harness has none."""
    offered = {tool.name: tool for tool in tools}
    asked, job = f"conf-subagent {number}" in text, subagent_prompt(number)
    if "task" in offered:  # OpenCode
        short = f"Steps of {number}"
        return UseTool(
            name="task",
            arguments={"description": short, "prompt": job, "subagent_type": "general"},
        )
    if "delegate_task" in offered:  # Hermes: the result comes by itself, now or in a later turn
        if asked:
            return Say(text="Waiting for the subagent.")
        return UseTool(name="delegate_task", arguments={"goal": job})
    if "spawn_agent" in offered:  # Codex
        spaced = offered["spawn_agent"].namespace
        if not asked:
            return UseTool(name="spawn_agent", arguments={"message": job}, namespace=spaced)
        targets = _AGENT_ID.findall(text)[-1:]
        arguments = {"targets": targets, "timeout_ms": _WAIT_MS}
        return UseTool(name="wait_agent", arguments=arguments, namespace=spaced)
    return None


def _shell(tools: Sequence[Tool], label: str) -> UseTool:
    call = shell_call(tools, command(label), reason=f"Run step {label}")
    if call is None:
        raise ValueError(f"no tool of {[tool.name for tool in tools]} runs a shell")
    (tool,) = [tool for tool in tools if tool.name == call.name]
    if "yield_time_ms" in tool.schema.get("properties", {}):
        return UseTool(name=call.name, arguments={**call.arguments, "yield_time_ms": _PATIENCE_MS})
    return call


def _say(conversation: str, done: int, text: str) -> Decision:
    return Decision(conversation=conversation, done=done, said=[Say(text=text)])
