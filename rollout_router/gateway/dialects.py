# SPDX-License-Identifier: Apache-2.0
"""How a scripted turn is written in each dialect, plain and streamed. Pure.

``plain`` gives the JSON document, ``events`` the server-sent events in order, each whole. All ids
come from the digest of the request, and no clock is read: the same bytes get the same bytes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollout_router.gateway.model import Dialect
from rollout_router.gateway.script import Say, UseTool

__all__ = ["Turn", "events", "plain"]

_BYTES_PER_LLM_TOKEN = 4  # the usual rule of thumb; usage is made up, but plausible


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer of the scripted model, and what every dialect has to say around it."""

    said: Say | UseTool
    model: str
    digest: str  # hex sha256 of the request
    request_bytes: int

    def id(self, prefix: str) -> str:
        """An id for a thing of this turn."""
        return f"{prefix}_{self.digest[:24]}"

    @property
    def usage(self) -> tuple[int, int]:
        """Input and output in LLM tokens."""
        content = self.said.text if isinstance(self.said, Say) else self.said.arguments_json
        return (
            self.request_bytes // _BYTES_PER_LLM_TOKEN + 1,
            len(content) // _BYTES_PER_LLM_TOKEN + 1,
        )


def plain(dialect: Dialect, turn: Turn) -> Mapping[str, Any]:
    """The answer as one document."""
    match dialect:
        case Dialect.RESPONSES:
            return _response(turn, "completed", [_item(turn, "completed")])
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
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": usage if status == "completed" else None,
    }


def _item(turn: Turn, status: str) -> dict[str, Any]:
    """The one output item; empty while it is in progress."""
    whole = status == "completed"
    if isinstance(turn.said, UseTool):
        return {
            "id": turn.id("fc"),
            "type": "function_call",
            "status": status,
            "name": turn.said.name,
            "call_id": turn.id("call"),
            "arguments": turn.said.arguments_json if whole else "",
        }
    return {
        "id": turn.id("msg"),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [_text(turn.said.text)] if whole else [],
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _response_events(turn: Turn) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": _response(turn, "in_progress", [])}
    yield "response.in_progress", {"response": _response(turn, "in_progress", [])}
    added = _item(turn, "in_progress")
    yield "response.output_item.added", {"output_index": 0, "item": added}
    at = {"item_id": added["id"], "output_index": 0}
    if isinstance(turn.said, UseTool):
        kind, arguments = "response.function_call_arguments", turn.said.arguments_json
        for piece in _pieces(arguments):
            yield f"{kind}.delta", {**at, "delta": piece}
        yield f"{kind}.done", {**at, "name": turn.said.name, "arguments": arguments}
    else:
        part = {**at, "content_index": 0}
        yield "response.content_part.added", {**part, "part": _text("")}
        for piece in _pieces(turn.said.text):
            yield "response.output_text.delta", {**part, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**part, "text": turn.said.text, "logprobs": []}
        yield "response.content_part.done", {**part, "part": _text(turn.said.text)}
    item = _item(turn, "completed")
    yield "response.output_item.done", {"output_index": 0, "item": item}
    yield "response.completed", {"response": _response(turn, "completed", [item])}


# -- Chat Completions -----------------------------------------------------------------------------


def _chat_head(turn: Turn, kind: str) -> dict[str, Any]:
    return {"id": turn.id("chatcmpl"), "object": kind, "created": 0, "model": turn.model}


def _chat_usage(turn: Turn) -> dict[str, int]:
    given, made = turn.usage
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _chat_call(turn: Turn, said: UseTool, arguments: str) -> dict[str, Any]:
    function = {"name": said.name, "arguments": arguments}
    return {"id": turn.id("call"), "type": "function", "function": function}


def _chat_reason(turn: Turn) -> str:
    return "tool_calls" if isinstance(turn.said, UseTool) else "stop"


def _chat(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    if isinstance(turn.said, UseTool):
        message["tool_calls"] = [_chat_call(turn, turn.said, turn.said.arguments_json)]
    else:
        message["content"] = turn.said.text
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

    if isinstance(turn.said, UseTool):
        opened = {"index": 0, **_chat_call(turn, turn.said, "")}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [opened]})
        for piece in _pieces(turn.said.arguments_json):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        yield chunk({"role": "assistant", "content": ""})
        for piece in _pieces(turn.said.text):
            yield chunk({"content": piece})
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
        "content": [_block(turn, whole=True)],
        "stop_reason": _stop_reason(turn),
        "stop_sequence": None,
        "usage": {"input_tokens": given, "output_tokens": made},
    }


def _stop_reason(turn: Turn) -> str:
    return "tool_use" if isinstance(turn.said, UseTool) else "end_turn"


def _block(turn: Turn, *, whole: bool) -> dict[str, Any]:
    if isinstance(turn.said, UseTool):
        arguments = turn.said.arguments if whole else {}
        return {
            "type": "tool_use",
            "id": turn.id("toolu"),
            "name": turn.said.name,
            "input": arguments,
        }
    return {"type": "text", "text": turn.said.text if whole else ""}


def _message_events(turn: Turn) -> Iterator[tuple[str, dict[str, Any]]]:
    given, made = turn.usage
    opened = {**_message(turn), "content": [], "stop_reason": None}
    opened["usage"] = {"input_tokens": given, "output_tokens": 1}
    yield "message_start", {"message": opened}
    yield "content_block_start", {"index": 0, "content_block": _block(turn, whole=False)}
    if isinstance(turn.said, UseTool):
        for piece in _pieces(turn.said.arguments_json):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield "content_block_delta", {"index": 0, "delta": delta}
    else:
        for piece in _pieces(turn.said.text):
            yield (
                "content_block_delta",
                {"index": 0, "delta": {"type": "text_delta", "text": piece}},
            )
    yield "content_block_stop", {"index": 0}
    stop = {"stop_reason": _stop_reason(turn), "stop_sequence": None}
    yield "message_delta", {"delta": stop, "usage": {"output_tokens": made}}
    yield "message_stop", {}
