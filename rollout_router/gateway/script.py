# SPDX-License-Identifier: Apache-2.0
"""What the scripted model says next, decided from the request alone. Pure.

It counts the tool results in the conversation. While there are fewer than ``steps``, it asks for
one more tool call; then it says that it is done. No state is kept anywhere, so any worker gives the
same answer to the same bytes, before and after the death of an owner.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rollout_router.gateway.model import Dialect

__all__ = ["Say", "Tool", "UseTool", "next_turn", "offered_tools", "shell_call"]

_COMMANDS: Final = ("command", "cmd")  # how the tools that run a shell name their string


@dataclass(frozen=True, slots=True, kw_only=True)
class UseTool:
    """Call one tool."""

    name: str
    arguments: Mapping[str, Any]
    namespace: str | None = None  # of the tool; Responses alone

    @property
    def arguments_json(self) -> str:
        """The arguments as models write them: JSON in a string."""
        return json.dumps(self.arguments, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Say something, and end the turn."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the client offers."""

    name: str
    schema: Mapping[str, Any]
    namespace: str | None = None

    def command(self, rank: int) -> str | None:
        """The property that takes a shell command, if it is the one of *rank*."""
        name = _COMMANDS[rank]
        found = _mapping(_mapping(self.schema.get("properties")).get(name))
        return name if found.get("type") == "string" else None


def next_turn(dialect: Dialect, document: Mapping[str, Any], *, steps: int) -> UseTool | Say:
    """The next turn of the conversation in *document*."""
    done = _tool_results(dialect, document)
    tools = [tool for tool in offered_tools(dialect, document) if tool.namespace is None]
    if done >= steps or not tools:
        return Say(text=f"done after {done} tool calls")
    step = f"step {done + 1}"
    return shell_call(tools, f"echo {step}", reason=step) or _use(tools[0], step)


def shell_call(tools: Sequence[Tool], command: str, *, reason: str) -> UseTool | None:
    """Run *command* with the first tool that runs a shell; *reason* fills its other strings."""
    for rank in range(len(_COMMANDS)):
        for tool in tools:
            if (name := tool.command(rank)) is not None:
                return _use(tool, reason, **{name: command})
    return None


def _use(tool: Tool, step: str, **chosen: str) -> UseTool:
    properties = _mapping(tool.schema.get("properties"))
    required = tool.schema.get("required")
    names = [n for n in required if isinstance(n, str)] if isinstance(required, list) else []
    filled = {name: _value(_mapping(properties.get(name)), step) for name in names}
    return UseTool(name=tool.name, arguments={**filled, **chosen})


def _value(schema: Mapping[str, Any], step: str) -> Any:
    """Something that *schema* allows, in all but contrived cases; of the caller's, only scalars."""
    allowed = schema.get("enum")
    for value in allowed if isinstance(allowed, list) else ():
        if not isinstance(value, dict | list):
            return value
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((k for k in kind if k != "null"), "string")
    if not isinstance(kind, str):
        return step
    if kind in {"integer", "number"}:
        minimum = schema.get("minimum")
        return minimum if isinstance(minimum, int | float) else 1
    return {"boolean": False, "array": [], "object": {}, "null": None}.get(kind, step)


def _tool_results(dialect: Dialect, document: Mapping[str, Any]) -> int:
    if dialect is Dialect.RESPONSES:
        kinds = [item.get("type") for item in _mappings(document.get("input"))]
        return sum(isinstance(kind, str) and kind.endswith("_call_output") for kind in kinds)
    messages = _mappings(document.get("messages"))
    if dialect is Dialect.CHAT:
        return sum(message.get("role") == "tool" for message in messages)
    return sum(
        block.get("type") == "tool_result"
        for message in messages
        for block in _mappings(message.get("content"))
    )


def offered_tools(dialect: Dialect, document: Mapping[str, Any]) -> list[Tool]:
    """The functions that a request lets the model call, those in namespaces too."""
    if document.get("tool_choice") == "none":
        return []
    listed = list(_mappings(document.get("tools")))
    if dialect is Dialect.RESPONSES:  # some clients of Responses give their tools inside the input
        for item in _mappings(document.get("input")):
            if item.get("type") == "additional_tools":
                listed += _mappings(item.get("tools"))
        for space in [entry for entry in listed if entry.get("type") == "namespace"]:
            listed += [
                {**entry, "namespace": space.get("name")} for entry in _mappings(space.get("tools"))
            ]
    tools = []
    for entry in listed:
        if dialect is Dialect.MESSAGES:
            name, schema = entry.get("name"), entry.get("input_schema")
            usable = entry.get("type", "custom") == "custom"
        else:
            function = _mapping(entry.get("function")) if dialect is Dialect.CHAT else entry
            name, schema = function.get("name"), function.get("parameters")
            usable = entry.get("type") == "function"
        if usable and isinstance(name, str) and name:
            spaced = entry.get("namespace") if dialect is Dialect.RESPONSES else None
            tools.append(Tool(name=name, schema=_mapping(schema), namespace=spaced))
    return tools


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> Iterable[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
