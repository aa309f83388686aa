# SPDX-License-Identifier: Apache-2.0
"""How a scripted turn is written in each dialect, plain and streamed. Pure.

``plain`` gives the JSON document, ``events`` the server-sent events in order, each whole. All ids
come from the turn's name, and no clock is read: the same turn gets the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.script import Say, UseTool

__all__ = ["Turn", "events", "plain", "usage_of"]

_BYTES_PER_LLM_TOKEN = 4  # the usual rule of thumb; usage is made up, but plausible


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of a scripted model, and what every dialect has to say around it."""

    said: Sequence[Say | UseTool]  # one text at most, before all calls
    model: str
    name: str  # all ids hold it
    usage: tuple[int, int]  # input and output in LLM tokens

    def id(self, prefix: str, number: int = 0) -> str:
        """An id for a thing of this turn, the *number*-th tool call from 0."""
        return f"{prefix}_{self.name}" if number == 0 else f"{prefix}_{self.name}_{number + 1}"

    @property
    def text(self) -> str | None:
        """What it says."""
        return next((part.text for part in self.said if isinstance(part, Say)), None)

    @property
    def calls(self) -> list[UseTool]:
        """The tools that it calls."""
        return [part for part in self.said if isinstance(part, UseTool)]

    @property
    def numbered(self) -> list[tuple[int, Say | UseTool]]:
        """Its parts, each with its number among those of its kind."""
        texts = len(self.said) - len(self.calls)
        return [(0 if at < texts else at - texts, part) for at, part in enumerate(self.said)]


def usage_of(said: Sequence[Say | UseTool], request_bytes: int) -> tuple[int, int]:
    """Input and output in LLM tokens, made up from lengths."""
    made = sum(len(p.text if isinstance(p, Say) else p.arguments_json) for p in said)
    return request_bytes // _BYTES_PER_LLM_TOKEN + 1, made // _BYTES_PER_LLM_TOKEN + 1


def plain(dialect: Dialect, turn: Turn) -> Mapping[str, Any]:
    """The answer as one document."""
    match dialect:
        case Dialect.RESPONSES:
            return _response(turn, "completed", _items(turn))
        case Dialect.CHAT:
            return _chat(turn)
        case Dialect.MESSAGES:
            return _message(turn)


def events(dialect: Dialect, turn: Turn, *, include_usage: bool) -> Iterator[bytes]:
    """The answer as events; *include_usage* is Chat Completions' stream option."""
    match dialect:
        case Dialect.RESPONSES:
            for number, (kind, fields) in enumerate(_response_events(turn)):
                yield _event(kind, {"type": kind, "sequence_number": number, **fields})
        case Dialect.CHAT:
            for chunk in _chat_chunks(turn, include_usage=include_usage):
                yield b"data: " + _json(chunk) + b"\n\n"
            yield b"data: [DONE]\n\n"
        case Dialect.MESSAGES:
            for kind, fields in _message_events(turn):
                yield _event(kind, {"type": kind, **fields})


def _event(kind: str, document: Mapping[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _json(document) + b"\n\n"


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _pieces(text: str) -> list[str]:
    """*text* in up to three parts, so that a stream is one."""
    size = max(1, -(-len(text) // 3))
    return [text[start : start + size] for start in range(0, len(text), size)]


# -- Responses ------------------------------------------------------------------------------------


def _response(turn: Turn, status: str, output: list[Mapping[str, Any]]) -> dict[str, Any]:
    given, made = turn.usage
    usage = {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": given + made,
    }
    return {
        "id": turn.id("resp"),
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": turn.model,
        "output": output,
        "parallel_tool_calls": len(turn.calls) > 1,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": usage if status == "completed" else None,
    }


def _items(turn: Turn) -> list[Mapping[str, Any]]:
    return [_item(turn, number, part, "completed") for number, part in turn.numbered]


def _item(turn: Turn, number: int, part: Say | UseTool, status: str) -> dict[str, Any]:
    """An output item; empty while it is in progress."""
    whole = status == "completed"
    if isinstance(part, UseTool):
        return {
            "id": turn.id("fc", number),
            "type": "function_call",
            "status": status,
            "name": part.name,
            **({} if part.namespace is None else {"namespace": part.namespace}),
            "call_id": turn.id("call", number),
            "arguments": part.arguments_json if whole else "",
        }
    return {
        "id": turn.id("msg"),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [_text(part.text)] if whole else [],
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response_events(turn: Turn) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": _response(turn, "in_progress", [])}
    yield "response.in_progress", {"response": _response(turn, "in_progress", [])}
    for index, (number, part) in enumerate(turn.numbered):
        added = _item(turn, number, part, "in_progress")
        yield "response.output_item.added", {"output_index": index, "item": added}
        yield from _response_content({"item_id": added["id"], "output_index": index}, part)
        item = _item(turn, number, part, "completed")
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield "response.completed", {"response": _response(turn, "completed", _items(turn))}


def _response_content(
    at: Mapping[str, Any], part: Say | UseTool
) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(part, UseTool):
        kind, arguments = "response.function_call_arguments", part.arguments_json
        for piece in _pieces(arguments):
            yield f"{kind}.delta", {**at, "delta": piece}
        yield f"{kind}.done", {**at, "name": part.name, "arguments": arguments}
    else:
        where = {**at, "content_index": 0}
        yield "response.content_part.added", {**where, "part": _text("")}
        for piece in _pieces(part.text):
            yield "response.output_text.delta", {**where, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**where, "text": part.text, "logprobs": []}
        yield "response.content_part.done", {**where, "part": _text(part.text)}


# -- Chat Completions -----------------------------------------------------------------------------


def _chat_head(turn: Turn, kind: str) -> dict[str, Any]:
    return {"id": turn.id("chatcmpl"), "object": kind, "created": 0, "model": turn.model}


def _chat_usage(turn: Turn) -> dict[str, int]:
    given, made = turn.usage
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _chat_call(turn: Turn, number: int, call: UseTool, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"id": turn.id("call", number), "type": "function", "function": function}


def _chat_reason(turn: Turn) -> str:
    return "tool_calls" if turn.calls else "stop"


def _chat(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text, "refusal": None}
    if turn.calls:
        message["tool_calls"] = [
            _chat_call(turn, number, call, call.arguments_json)
            for number, call in enumerate(turn.calls)
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": _chat_reason(turn),
    }
    head = _chat_head(turn, "chat.completion")
    return {**head, "choices": [choice], "usage": _chat_usage(turn)}


def _chat_chunks(turn: Turn, *, include_usage: bool) -> Iterator[dict[str, Any]]:
    head = _chat_head(turn, "chat.completion.chunk")
    if include_usage:
        head["usage"] = None

    def chunk(delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**head, "choices": [choice]}

    role: dict[str, Any] = {"role": "assistant", "content": None}
    if turn.text is not None:
        yield chunk({**role, "content": ""})
        for piece in _pieces(turn.text):
            yield chunk({"content": piece})
        role = {}
    for index, call in enumerate(turn.calls):
        opened = {"index": index, **_chat_call(turn, index, call, "")}
        yield chunk({**role, "tool_calls": [opened]})
        for piece in _pieces(call.arguments_json):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        role = {}
    yield chunk({}, _chat_reason(turn))
    if include_usage:
        yield {**head, "choices": [], "usage": _chat_usage(turn)}


# -- Messages -------------------------------------------------------------------------------------


def _message(turn: Turn) -> dict[str, Any]:
    given, made = turn.usage
    return {
        "id": turn.id("msg"),
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": [_block(turn, n, part, whole=True) for n, part in turn.numbered],
        "stop_reason": _stop_reason(turn),
        "stop_sequence": None,
        "usage": {"input_tokens": given, "output_tokens": made},
    }


def _stop_reason(turn: Turn) -> str:
    return "tool_use" if turn.calls else "end_turn"


def _block(turn: Turn, number: int, part: Say | UseTool, *, whole: bool) -> dict[str, Any]:
    if isinstance(part, UseTool):
        return {
            "type": "tool_use",
            "id": turn.id("toolu", number),
            "name": part.name,
            "input": part.arguments if whole else {},
        }
    return {"type": "text", "text": part.text if whole else ""}


def _message_events(turn: Turn) -> Iterator[tuple[str, dict[str, Any]]]:
    given, made = turn.usage
    opened = {**_message(turn), "content": [], "stop_reason": None}
    opened["usage"] = {"input_tokens": given, "output_tokens": 1}
    yield "message_start", {"message": opened}
    for index, (number, part) in enumerate(turn.numbered):
        block = _block(turn, number, part, whole=False)
        yield "content_block_start", {"index": index, "content_block": block}
        for piece in _pieces(part.arguments_json if isinstance(part, UseTool) else part.text):
            delta = (
                {"type": "input_json_delta", "partial_json": piece}
                if isinstance(part, UseTool)
                else {"type": "text_delta", "text": piece}
            )
            yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    stop = {"stop_reason": _stop_reason(turn), "stop_sequence": None}
    yield "message_delta", {"delta": stop, "usage": {"output_tokens": made}}
    yield "message_stop", {}
