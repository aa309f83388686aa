# SPDX-License-Identifier: Apache-2.0
import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from rollout_router.gateway.app import create_app
from rollout_router.gateway.model import INLINE_BYTES_MAX, Dialect, ModelAnswer, ModelRequest
from rollout_router.gateway.scripted import Scripted
from rollout_router.gateway.turn_end import Ending, TurnScanner

PARAMETERS = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}
TOOL: Any = {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": True}
ARGUMENTS = {"command": "echo step 1"}


def request(dialect: Dialect, **document: Any) -> ModelRequest:
    content: dict[str, Any] = {"model": "m", **document}
    content.setdefault("input" if dialect is Dialect.RESPONSES else "messages", [{"role": "user"}])
    return ModelRequest(
        method="POST",
        path=dialect.value,
        query=b"",
        headers=[],
        body=json.dumps(content).encode(),
        dialect=dialect,
        document=content,
    )


def answered(asked: ModelRequest, collect: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    async def ask() -> tuple[int, dict[bytes, bytes], bytes]:
        async with Scripted(steps=1) as model, model.answer(asked) as answer:
            return answer.status, dict(answer.headers), await collect(answer.parts)

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def client(serving: Any) -> Iterator[openai.OpenAI]:
    with (
        serving(create_app(Scripted(steps=1))) as url,
        openai.OpenAI(base_url=f"{url}/sessions/r1/v1", api_key="x", max_retries=0) as sdk,
    ):
        yield sdk


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", Dialect)
def test_h1_every_answer_names_the_digest_of_its_bytes_and_repeats_itself(
    dialect: Dialect, *, stream: bool, collect: Any
) -> None:
    asked = request(dialect, stream=stream, tools=[CHAT_TOOL, TOOL])

    status, headers, body = answered(asked, collect)

    assert status == 200
    digest = hashlib.sha256(asked.body).hexdigest().encode()
    assert headers[b"scripted-request-sha256"] == digest
    assert answered(asked, collect) == (status, headers, body)


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("tools", [[], [CHAT_TOOL, TOOL, {"name": "t", "input_schema": {}}]])
def test_f2_every_stream_ends_its_turn(dialect: Dialect, tools: Any, collect: Any) -> None:
    _, headers, body = answered(request(dialect, stream=True, tools=tools), collect)

    assert headers[b"content-type"].startswith(b"text/event-stream")
    scanner = TurnScanner()
    assert scanner.add(body)
    assert scanner.rest()
    assert scanner.ending is Ending.COMPLETED


def test_the_sdk_reads_a_response_with_a_tool_call(client: openai.OpenAI) -> None:
    response = client.responses.create(model="m", input="go", tools=[TOOL])

    (item,) = response.output
    assert item.type == "function_call"
    assert json.loads(item.arguments) == ARGUMENTS
    assert response.usage is not None
    assert response.status == "completed"


def test_the_sdk_reads_a_response_with_text(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="m", input=[{"type": "function_call_output", "call_id": "c", "output": "x"}]
    )

    assert response.output_text == "done after 1 tool calls"


@pytest.mark.parametrize("tools", [[TOOL], []])
def test_the_sdk_reads_a_streamed_response(client: openai.OpenAI, tools: Any) -> None:
    with client.responses.stream(model="m", input="go", tools=tools) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()

    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    (item,) = response.output
    if tools:
        assert "response.function_call_arguments.delta" in kinds
        assert item.type == "function_call"
        assert json.loads(item.arguments) == ARGUMENTS
    else:
        assert response.output_text == "done after 0 tool calls"


def test_the_sdk_reads_a_chat_completion(client: openai.OpenAI) -> None:
    user: Any = {"role": "user", "content": "go"}
    asked = client.chat.completions.create(model="m", messages=[user], tools=[CHAT_TOOL])

    (call,) = asked.choices[0].message.tool_calls or []
    assert asked.choices[0].finish_reason == "tool_calls"
    assert call.type == "function"
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert asked.usage is not None

    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "x"}
    done = client.chat.completions.create(model="m", messages=[user, result], tools=[CHAT_TOOL])
    assert done.choices[0].message.content == "done after 1 tool calls"
    assert done.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("tools", [[CHAT_TOOL], openai.omit])
def test_the_sdk_reads_a_streamed_chat_completion(client: openai.OpenAI, tools: Any) -> None:
    with client.chat.completions.stream(
        model="m",
        messages=[{"role": "user", "content": "go"}],
        tools=tools,
        stream_options={"include_usage": True},
    ) as stream:
        stream.until_done()
        completion = stream.get_final_completion()

    assert completion.usage is not None
    choice = completion.choices[0]
    if choice.finish_reason == "tool_calls":
        (call,) = choice.message.tool_calls or []
        assert json.loads(call.function.arguments) == ARGUMENTS
    else:
        assert choice.message.content == "done after 0 tool calls"


def test_chat_usage_is_streamed_only_where_it_is_asked_for(collect: Any) -> None:
    def last_chunk(**options: Any) -> dict[str, Any]:
        body = answered(request(Dialect.CHAT, stream=True, **options), collect)[2].decode()
        last, done = body.strip().split("\n\n")[-2:]
        assert done == "data: [DONE]"
        chunk: dict[str, Any] = json.loads(last.removeprefix("data: "))
        return chunk

    assert "usage" not in last_chunk()
    asked = last_chunk(stream_options={"include_usage": True})
    assert asked["choices"] == []
    assert asked["usage"]["total_tokens"] > 0


def test_a_messages_stream_has_the_events_in_their_order(collect: Any) -> None:
    tool = {"name": "bash", "input_schema": PARAMETERS}
    body = answered(request(Dialect.MESSAGES, stream=True, tools=[tool]), collect)[2]
    events = [
        (lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: ")))
        for lines in (event.split("\n") for event in body.decode().strip().split("\n\n"))
    ]

    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[2:-3]) == {"content_block_delta"}
    partial = "".join(d["delta"]["partial_json"] for n, d in events if n == "content_block_delta")
    assert json.loads(partial) == ARGUMENTS
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert events[0][1]["message"]["stop_reason"] is None


def test_a_plain_message_is_read_back(collect: Any) -> None:
    document = json.loads(answered(request(Dialect.MESSAGES), collect)[2])

    assert document["content"] == [{"type": "text", "text": "done after 0 tool calls"}]
    assert (document["type"], document["role"], document["stop_reason"]) == (
        "message",
        "assistant",
        "end_turn",
    )


def test_a_model_name_that_no_encoding_can_write_is_answered(collect: Any) -> None:
    status, _, body = answered(request(Dialect.CHAT, model="\ud800"), collect)

    assert (status, json.loads(body)["model"]) == (200, "\ud800")


def test_h1_a_large_body_is_digested_outside_the_event_loop(
    collect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    answer = Scripted._answer

    def watched(model: Scripted, asked: ModelRequest) -> ModelAnswer:
        threads.append(threading.get_ident())
        return answer(model, asked)

    monkeypatch.setattr(Scripted, "_answer", watched)
    small, large = (
        answered(request(Dialect.CHAT, padding="x" * size), collect)
        for size in (1, INLINE_BYTES_MAX)
    )

    assert (small[0], large[0]) == (200, 200)
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [True, False]


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("any").id == "any"


def test_a_script_cannot_be_shorter_than_nothing() -> None:
    with pytest.raises(ValueError, match="0 steps"):
        Scripted(steps=-1)
