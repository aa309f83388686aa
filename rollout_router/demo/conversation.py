# SPDX-License-Identifier: Apache-2.0
"""What a rollout is here, and what each of its calls asks of the model. Pure.

The items of a rollout are its whole conversation as OpenAI Responses items. Those that the model
made (assistant messages, reasoning, function calls) come in *turns*: items that follow one another
without an input between them. One turn is one call, and its request carries all items before it.
What the model answers to the call is not used: the recorded turn stands in its place.

The instructions and the tools are a harness's own and no part of the items; they stay the same over
a rollout. With them a rollout that opens with the model's turn has something to ask, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rollout_router.demo.tools import INSTRUCTIONS, MODEL, TOOLS
from rollout_router.transport.sandbox.wire import is_rollout_id

__all__ = ["Dialect", "Item", "Rollout", "Unplayable", "chat_messages", "parameters", "turns"]

Item = Mapping[str, Any]

_MESSAGE: Final = "message"
_CALL: Final = "function_call"
_OUTPUT: Final = "function_call_output"
_REASONING: Final = "reasoning"
_ROLES: Final = frozenset({"assistant", "developer", "system", "user"})
_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    _MESSAGE: ("role",),
    _CALL: ("call_id", "name", "arguments"),
    _OUTPUT: ("call_id",),
    _REASONING: (),
}
"""The kinds of items that can be played, with the fields that have to be strings."""

_TEXTS: Final[Mapping[str, Sequence[str]]] = {
    _MESSAGE: ("content",),
    _CALL: (),
    _OUTPUT: ("output",),
    _REASONING: ("summary", "content"),
}
"""Where each kind keeps text: a string, or a list of parts with a ``text``."""


class Dialect(StrEnum):
    """How the model is asked."""

    RESPONSES = "responses"
    CHAT = "chat"


class Unplayable(ValueError):  # noqa: N818 - named by what can be said of it
    """This is no rollout that can be played; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout, checked.

    Raises:
        Unplayable: the id names no rollout, an item is not understood, or there is no turn.
    """

    rollout_id: str
    items: Sequence[Item]

    def __post_init__(self) -> None:
        if not is_rollout_id(self.rollout_id):
            raise Unplayable(f"{self.rollout_id!r} is no rollout id")
        for number, item in enumerate(self.items):
            wrong = _wrong(item)
            if wrong is not None:
                raise Unplayable(f"item {number} {wrong}")
        if not turns(self.items):
            raise Unplayable(f"rollout {self.rollout_id} has no turn of a model: nothing to ask")


def turns(items: Sequence[Item]) -> list[int]:
    """Where each turn of the model begins: how many items its request carries."""
    made = [_is_made(item) for item in items]
    return [n for n, mine in enumerate(made) if mine and (n == 0 or not made[n - 1])]


def parameters(dialect: Dialect, items: Sequence[Item], *, stream: bool) -> dict[str, Any]:
    """What the SDK's ``create`` is called with, to ask for the turn after *items*."""
    if dialect is Dialect.RESPONSES:
        return {
            "model": MODEL,
            "instructions": INSTRUCTIONS,
            "input": list(items),
            "tools": list(TOOLS),
            "stream": stream,
        }
    return {
        "model": MODEL,
        "messages": [{"role": "system", "content": INSTRUCTIONS}, *chat_messages(items)],
        "tools": [_chat_tool(tool) for tool in TOOLS],
        "stream": stream,
    }


def chat_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Responses items as Chat Completions messages.

    A turn becomes one assistant message: its texts, its function calls as ``tool_calls``, and its
    reasoning as ``reasoning_content``, the field by which open models take it back.
    """
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] | None = None
    for item in items:
        if not _is_made(item):
            turn = None
            messages.append(_input(item))
            continue
        if turn is None:
            turn = {"role": "assistant", "content": ""}
            messages.append(turn)
        _add(turn, item)
    return messages


def _input(item: Item) -> dict[str, Any]:
    if _kind(item) == _OUTPUT:
        content = _text(item.get("output"))
        return {"role": "tool", "tool_call_id": item["call_id"], "content": content}
    return {"role": item["role"], "content": _text(item.get("content"))}


def _add(turn: dict[str, Any], item: Item) -> None:
    kind = _kind(item)
    if kind == _CALL:
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        turn.setdefault("tool_calls", []).append(call)
        return
    key = "reasoning_content" if kind == _REASONING else "content"
    texts = [turn.get(key, ""), *(_text(item.get(name)) for name in _TEXTS[kind])]
    turn[key] = "\n\n".join(text for text in texts if text)


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": function}


def _kind(item: Item) -> Any:
    return item.get("type", _MESSAGE)


def _is_made(item: Item) -> bool:
    kind = _kind(item)
    return kind in {_CALL, _REASONING} or (kind == _MESSAGE and item["role"] == "assistant")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(p["text"] for p in content or ())


def _wrong(item: Any) -> str | None:
    """Why an item cannot be played, as the end of a sentence; None where it can."""
    if not isinstance(item, dict):
        return "is no JSON object"
    kind = _kind(item)
    if not isinstance(kind, str) or kind not in _FIELDS:
        return f"has the type {kind!r}, and only {', '.join(sorted(_FIELDS))} can be played"
    for name in _FIELDS[kind]:
        if not isinstance(item.get(name), str):
            return f"is a {kind} without the string {name!r}"
    if kind == _MESSAGE and item["role"] not in _ROLES:
        return f"has the role {item['role']!r}, and only {', '.join(sorted(_ROLES))} exist"
    for name in _TEXTS[kind]:
        if not _is_text(item.get(name)):
            return f"is a {kind} whose {name!r} is neither a string nor a list of parts with a text"
    return None


def _is_text(content: Any) -> bool:
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    )
