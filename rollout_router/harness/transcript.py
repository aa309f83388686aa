# SPDX-License-Identifier: Apache-2.0
"""What a model saw of a run, read from the gateway's capture records. Pure. Chat Completions."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

__all__ = ["Ownership", "ToolCall", "Transcript", "read_transcript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call, as it stands in the last request."""

    name: str
    arguments: str  # as the harness wrote them
    result: str | None  # None: the model never saw one


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A worker that owned the rollout for some calls in a row."""

    worker_id: str
    claim_epoch: int | None
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The calls of one rollout."""

    bodies: tuple[str, ...]  # sha256 of each request as the application was given it
    outcomes: tuple[str, ...]
    owners: tuple[Ownership, ...]
    tool_calls: tuple[ToolCall, ...]


def read_transcript(records: Iterable[str]) -> Transcript:
    """Read capture records, oldest first, one JSON document each.

    Raises:
        ValueError, KeyError: a record, or the last request, has another form.
    """
    calls = [json.loads(record) for record in records]
    owned = groupby((call["worker_id"], call["claim_epoch"]) for call in calls)
    return Transcript(
        bodies=tuple(call["request_sha256"] for call in calls),
        outcomes=tuple(call["outcome"] for call in calls),
        owners=tuple(
            Ownership(worker_id=worker, claim_epoch=epoch, calls=len(list(same)))
            for (worker, epoch), same in owned
        ),
        tool_calls=_tool_calls(json.loads(calls[-1]["request_text"])) if calls else (),
    )


def _tool_calls(request: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    messages = request["messages"]
    results = {
        message["tool_call_id"]: _text(message["content"])
        for message in messages
        if message["role"] == "tool"
    }
    return tuple(
        ToolCall(
            name=call["function"]["name"],
            arguments=call["function"]["arguments"],
            result=results.get(call["id"]),
        )
        for message in messages
        for call in message.get("tool_calls") or []
    )


def _text(content: str | list[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
