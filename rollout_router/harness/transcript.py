# SPDX-License-Identifier: Apache-2.0
"""What a model saw of a run, read from the gateway's capture records. Pure; in every dialect."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

__all__ = ["Ownership", "Recorded", "ToolCall", "Transcript", "read_transcript"]

_GENERATING: Final = {"responses", "chat/completions", "messages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One call as the gateway recorded it."""

    path: str  # from the dialect's part on: the same in every run
    outcome: str
    status: int | None
    request: str
    request_sha256: str
    response: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call, as a request that came after it shows it."""

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

    calls: tuple[Recorded, ...]  # of a model, in the order in which they ended
    look_ups: int  # POSTs beside them
    owners: tuple[Ownership, ...]
    tool_calls: Mapping[str, ToolCall]  # by their id, of all conversations of the rollout


def read_transcript(records: Iterable[str]) -> Transcript:
    """Read capture records, oldest first, one JSON document each.

    Raises:
        ValueError, KeyError: a record, or a request, has another form.
    """
    posted = [one for one in map(json.loads, records) if one["method"] == "POST"]
    documents = [one for one in posted if _path(one).partition("?")[0] in _GENERATING]
    owned = groupby((one["worker_id"], one["claim_epoch"]) for one in documents)
    return Transcript(
        calls=tuple(map(_recorded, documents)),
        look_ups=len(posted) - len(documents),
        owners=tuple(
            Ownership(worker_id=worker, claim_epoch=epoch, calls=len(list(same)))
            for (worker, epoch), same in owned
        ),
        tool_calls=_tool_calls(json.loads(one["request_text"]) for one in documents),
    )


def _path(document: Mapping[str, Any]) -> str:
    """From the dialect's part on."""
    path: str = document["path"].rpartition("/v1/")[2]
    return path


def _recorded(document: Mapping[str, Any]) -> Recorded:
    return Recorded(
        path=_path(document),
        outcome=document["outcome"],
        status=document["status"],
        request=document["request_text"],
        request_sha256=document["request_sha256"],
        response=document["response"],
    )


def _tool_calls(requests: Iterable[Mapping[str, Any]]) -> Mapping[str, ToolCall]:
    """What stands in any request; the first result counts, a later one may have been cleared."""
    called: dict[str, tuple[str, str]] = {}
    results: dict[str, str] = {}
    for request in requests:
        for key, name, arguments in _made(request):
            called.setdefault(key, (name, arguments))
        for key, result in _answered(request):
            results.setdefault(key, result)
    return {
        key: ToolCall(name=name, arguments=arguments, result=results.get(key))
        for key, (name, arguments) in called.items()
    }


def _made(request: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The tool calls in one request: id, name, arguments."""
    for item in _items(request):
        if item.get("type") == "function_call":
            yield item["call_id"], item["name"], item["arguments"]
        for call in item.get("tool_calls") or ():
            yield call["id"], call["function"]["name"], call["function"]["arguments"]
        for block in _blocks(item.get("content"), "tool_use"):
            yield block["id"], block["name"], json.dumps(block["input"], sort_keys=True)


def _answered(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The results of tool calls in one request: id, text."""
    for item in _items(request):
        if item.get("type") == "function_call_output":
            yield item["call_id"], _text(item["output"])
        if item.get("role") == "tool":
            yield item["tool_call_id"], _text(item["content"])
        for block in _blocks(item.get("content"), "tool_result"):
            yield block["tool_use_id"], _text(block.get("content", ""))


def _items(request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = request.get("messages", request.get("input"))
    return found if isinstance(found, list) else []


def _blocks(content: object, kind: str) -> list[Mapping[str, Any]]:
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if block.get("type") == kind]


def _text(content: str | list[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
