# SPDX-License-Identifier: Apache-2.0
"""The agent on the OpenAI SDK: what it makes of answers, whole, parallel and cut."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from unit.transport.sandbox.conftest import gateway

from rollout_router.harness.sdk_agent import main

if TYPE_CHECKING:
    from unit.transport.sandbox.conftest import FakeGateway, Handler, Received, Script

__all__ = ["gateway"]

MODES = pytest.mark.parametrize("mode", [[], ["--async"]], ids=["threads", "loop"])
APIS = pytest.mark.parametrize("api", ["chat", "responses"])


def _chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _part(index: int, arguments: str, **first: str) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments}, **first}


def _item(call: str, command: str) -> dict[str, Any]:
    arguments = json.dumps({"command": command})
    return {"type": "function_call", "call_id": call, "name": "shell", "arguments": arguments}


def _response(*output: dict[str, Any]) -> dict[str, Any]:
    response = {"id": "r1", "output": list(output)}
    return {"type": "response.completed", "response": response}


# Two calls in one turn, in Chat with their pieces mixed; one is no JSON there.
TWO_CALLS = {
    "chat": [
        _chunk(tool_calls=[_part(0, '{"command":', id="a")]),
        _chunk(tool_calls=[_part(1, "no JSON", id="b"), _part(0, ' "echo one; exit 3"}')]),
        _chunk("tool_calls"),
    ],
    "responses": [_response(_item("a", "echo one; exit 3"), _item("b", "echo two >&2"))],
}
DONE = {
    "chat": [_chunk(content="all "), _chunk("stop", content="done")],
    "responses": [
        _response(
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "all done", "annotations": []}],
            }
        )
    ],
}


def _saying(events: list[dict[str, Any]], *, cut: bool = False) -> Script:
    def say(handler: Handler, _: Received) -> None:
        handler.begin_stream()
        for event in events:
            named = f"event: {event['type']}\n" if "type" in event else ""
            handler.chunk(f"{named}data: {json.dumps(event)}\n\n".encode())
        if cut:
            handler.cut()
        else:
            handler.chunk(b"")

    return say


def _play(gateway: FakeGateway, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, Any]:
    url = f"{gateway.url}/ng-rollout/r1/v1"
    code = main(["--base-url", url, "--prompt", "go", *more])
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@APIS
@MODES
def test_each_call_of_a_turn_gets_its_own_result(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str], api: str, mode: list[str]
) -> None:
    gateway.scripts += [_saying(TWO_CALLS[api]), _saying(DONE[api])]
    code, (first, second, end) = _play(gateway, capsys, "--api", api, *mode)
    assert (code, end["type"], end["answer"]) == (0, "done", "all done")
    assert [first["type"], second["type"]] == ["call", "call"]
    document = json.loads(gateway.received[1].raw)
    *_, one, two = document["messages" if api == "chat" else "input"]
    if api == "chat":
        assert (one["tool_call_id"], one["content"]) == ("a", "one\n\nexit code 3")
        assert two["tool_call_id"] == "b"
        assert two["content"].startswith("not run: ")
    else:
        assert (one["call_id"], one["output"]) == ("a", "one\n\nexit code 3")
        assert (two["call_id"], two["output"]) == ("b", "two\n\nexit code 0")


@pytest.mark.parametrize(("api", "mode"), [("chat", []), ("responses", ["--async"])])
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "ended-early"])
def test_r4_a_part_of_an_answer_is_never_acted_on(
    gateway: FakeGateway,
    capsys: pytest.CaptureFixture[str],
    api: str,
    mode: list[str],
    *,
    cut: bool,
) -> None:
    part = TWO_CALLS["chat"][:1] if api == "chat" else [{"type": "response.created"}]
    gateway.scripts += [_saying(part, cut=cut), _saying(DONE[api])]
    code, events = _play(gateway, capsys, "--api", api, *mode)
    assert (code, [event["type"] for event in events]) == (0, ["call", "done"])
    assert gateway.received[0].raw == gateway.received[1].raw


@MODES
def test_r4_an_answer_that_never_comes_whole_ends_the_task(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    gateway.scripts += [_saying(TWO_CALLS["chat"][:1])] * 4
    code, (end,) = _play(gateway, capsys, *mode)
    assert (code, end["type"]) == (1, "failed")
    assert "not whole" in end["error"]
    assert len(gateway.received) == 4


def test_without_a_transport_bodies_are_the_sdk_s_own(
    gateway: FakeGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.scripts.append(_saying(DONE["chat"]))
    code, (_, end) = _play(gateway, capsys, "--flavour", "none")
    assert (code, end["statistics"]) == (0, None)
    assert not gateway.received[0].kept
