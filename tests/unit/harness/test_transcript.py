# SPDX-License-Identifier: Apache-2.0
"""What the model saw, read from capture records."""

import json
from typing import Any

import pytest

from rollout_router.harness.transcript import Ownership, ToolCall, Transcript, read_transcript


def record(worker: str, epoch: int, messages: list[dict[str, Any]]) -> str:
    return json.dumps(
        {
            "worker_id": worker,
            "claim_epoch": epoch,
            "outcome": "completed",
            "request_sha256": f"{worker}{len(messages)}",
            "request_text": json.dumps({"messages": messages}),
        }
    )


USER: dict[str, Any] = {"role": "user", "content": "go"}
CALLS: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "2", "function": {"name": "bash", "arguments": '{"command":"b"}'}},
        {"id": "1", "function": {"name": "read", "arguments": "{}"}},
    ],
}
FIRST: dict[str, Any] = {
    "role": "tool",
    "tool_call_id": "1",
    "content": [{"type": "text", "text": "one"}],
}
SECOND: dict[str, Any] = {"role": "tool", "tool_call_id": "2", "content": "two"}


def test_tool_calls_are_those_of_the_last_request_with_their_results() -> None:
    records = [record("ada", 1, [USER]), record("bob", 2, [USER, CALLS, FIRST, SECOND])]
    assert read_transcript(records) == Transcript(
        bodies=("ada1", "bob4"),
        outcomes=("completed", "completed"),
        owners=(
            Ownership(worker_id="ada", claim_epoch=1, calls=1),
            Ownership(worker_id="bob", claim_epoch=2, calls=1),
        ),
        tool_calls=(
            ToolCall(name="bash", arguments='{"command":"b"}', result="two"),
            ToolCall(name="read", arguments="{}", result="one"),
        ),
    )


def test_a_tool_call_whose_result_the_model_never_saw_has_none() -> None:
    (first, second) = read_transcript([record("ada", 1, [USER, CALLS, SECOND])]).tool_calls
    assert (first.result, second.result) == ("two", None)


def test_an_owner_that_comes_back_is_another_stretch() -> None:
    owners = [("ada", 1), ("ada", 1), ("bob", 2), ("ada", 3)]
    found = read_transcript([record(worker, epoch, [USER]) for worker, epoch in owners]).owners
    assert [(each.worker_id, each.calls) for each in found] == [("ada", 2), ("bob", 1), ("ada", 1)]


def test_no_records_are_an_empty_transcript() -> None:
    assert read_transcript([]) == Transcript(bodies=(), outcomes=(), owners=(), tool_calls=())


def test_a_record_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Expecting"):
        read_transcript(["{"])
