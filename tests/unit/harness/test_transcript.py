# SPDX-License-Identifier: Apache-2.0
"""What the model saw, read from capture records of every dialect."""

import json
from typing import Any

import pytest

from rollout_router.harness.transcript import Ownership, ToolCall, Transcript, read_transcript


def read(*requests: dict[str, Any], owners: tuple[tuple[str, int], ...] = ()) -> Transcript:
    owned = owners or (("ada", 1),) * len(requests)
    return read_transcript(
        json.dumps(
            {
                "worker_id": worker,
                "claim_epoch": epoch,
                "method": "POST",
                "path": "/ng-rollout/r/v1/chat/completions",
                "outcome": "completed",
                "status": 200,
                "request_text": json.dumps(request),
                "request_sha256": "d",
                "response": "data: x",
            }
        )
        for request, (worker, epoch) in zip(requests, owned, strict=True)
    )


def in_chat(result: object) -> dict[str, Any]:
    call = {"id": "c1", "function": {"name": "bash", "arguments": '{"a":1}'}}
    return {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": result},
        ]
    }


IN_RESPONSES = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "done\n"},
    ]
}
IN_MESSAGES = {
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": {"a": 1}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "done\n"}],
                }
            ],
        },
    ]
}


@pytest.mark.parametrize(
    "request_",
    [in_chat("done\n"), in_chat([{"type": "text", "text": "done\n"}]), IN_RESPONSES, IN_MESSAGES],
    ids=["chat", "chat-parts", "responses", "messages"],
)
def test_a_tool_call_and_its_result_are_read_in_every_dialect(request_: dict[str, Any]) -> None:
    call = read(request_).tool_calls["c1"]
    assert (call.name, json.loads(call.arguments), call.result) == ("bash", {"a": 1}, "done\n")


def test_the_first_result_counts_and_what_was_dropped_since_is_not_lost() -> None:
    transcript = read(in_chat("done\n"), in_chat("[cleared]"), {"messages": []})
    assert transcript.tool_calls == {
        "c1": ToolCall(name="bash", arguments='{"a":1}', result="done\n")
    }


def test_a_call_whose_result_was_never_shown_has_none() -> None:
    request = {"messages": in_chat("x")["messages"][:2]}
    assert read(request).tool_calls["c1"].result is None


def test_owners_are_counted_in_a_row() -> None:
    empty: dict[str, Any] = {"messages": []}
    owners = (("ada", 1), ("ada", 1), ("bob", 2), ("ada", 3))
    assert read(empty, empty, empty, empty, owners=owners).owners == (
        Ownership(worker_id="ada", claim_epoch=1, calls=2),
        Ownership(worker_id="bob", claim_epoch=2, calls=1),
        Ownership(worker_id="ada", claim_epoch=3, calls=1),
    )


def test_the_path_is_that_of_the_dialect() -> None:
    assert read({"messages": []}).calls[0].path == "chat/completions"


def test_a_look_up_is_no_call_of_the_model() -> None:
    transcript = read_transcript(
        ['{"method":"GET","path":"/r/v1/models"}', '{"method":"POST","path":"/r/api/show"}']
    )
    assert (transcript.calls, transcript.look_ups) == ((), 1)


def test_a_record_of_another_form_is_an_error() -> None:
    with pytest.raises(KeyError):
        read_transcript(['{"method":"POST","path":"/v1/messages","claim_epoch":1}'])
