# SPDX-License-Identifier: Apache-2.0
"""The real OpenAI SDK with deltas in its process, against a running gateway."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from support.gateway import PATIENCE_S, Gateway

from rollout_router.harness.pause import PROCEED, REACHED, Pause
from rollout_router.harness.sdk_agent import main
from rollout_router.transport.httpx import client as older_client
from rollout_router.transport.httpx2 import AsyncDeltaTransport, DeltaTransport, async_client

CALLS = 5
AGENT = "rollout_router.harness.sdk_agent"
SAID = [{"role": "user", "content": f"output {turn} " + "x" * 900} for turn in range(CALLS)]


def _chat(client: Any, calls: int, *, stream: bool) -> Any:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return client.chat.completions.create(
        model="scripted", messages=SAID[:calls], stream=stream, **options
    )


def _responses(client: Any, calls: int, *, stream: bool) -> Any:
    return client.responses.create(model="scripted", input=SAID[:calls], stream=stream)


Ask = Callable[..., Any]
ASKS = pytest.mark.parametrize("ask", [_chat, _responses])


def _whole(parts: list[Any]) -> bool:
    """Whether an answer, in one part or streamed, is there to its end."""
    last = [getattr(part, "type", None) for part in parts][-1]
    choices = [choice for part in parts for choice in getattr(part, "choices", [])]
    finished = any(choice.finish_reason for choice in choices)
    return (
        finished or last == "response.completed" or getattr(parts[-1], "status", "") == "completed"
    )


class Written:
    """What the SDK wrote, by a hook of its HTTP client."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def see(self, request: httpx2.Request) -> None:
        self.bodies.append(request.content)

    async def asee(self, request: httpx2.Request) -> None:
        self.see(request)


def _recorded(gateway: Gateway, rollout_id: str) -> list[bytes]:
    return [record["request_text"].encode() for record in gateway.records(rollout_id)]


def _check(gateway: Gateway, rollout_id: str, written: Written, transport: Any) -> None:
    assert len(written.bodies) == CALLS
    assert _recorded(gateway, rollout_id) == written.bodies
    counted = transport.statistics()["rollouts"][rollout_id]
    assert counted["calls"] == CALLS
    assert counted["resyncs"] == 1
    assert counted["bytes_full"] == sum(map(len, written.bodies))
    assert counted["bytes_sent"] < counted["bytes_full"] * 2 / 3  # of five calls, two go in full


@ASKS
def test_h1_s1_the_sdk_sends_deltas_and_sees_no_loss_of_its_owner(
    shared: Gateway, ask: Ask
) -> None:
    rollout_id = f"sdk{ask.__name__}"
    written, transport = Written(), DeltaTransport()
    http_client = openai.DefaultHttpxClient(
        transport=transport, event_hooks={"request": [written.see]}
    )
    url = f"{shared.url}/ng-rollout/{rollout_id}/v1"
    with openai.OpenAI(base_url=url, api_key="none", http_client=http_client, max_retries=0) as sdk:
        for call in range(1, CALLS + 1):
            stream = call % 2 == 0
            answer = ask(sdk, call, stream=stream)
            assert _whole(list(answer) if stream else [answer])
            if call == CALLS - 2:
                shared.force(rollout_id)  # as after its owner's death, nobody holds its bases
    _check(shared, rollout_id, written, transport)


@ASKS
def test_h1_s1_the_asynchronous_sdk_does_the_same(shared: Gateway, ask: Ask) -> None:
    rollout_id = f"async-sdk{ask.__name__}"
    written, transport = Written(), AsyncDeltaTransport(rollout=rollout_id)
    http_client = openai.DefaultAsyncHttpxClient(
        transport=transport, event_hooks={"request": [written.asee]}
    )

    async def play() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{shared.url}/v1", api_key="none", http_client=http_client, max_retries=0
        ) as sdk:
            for call in range(1, CALLS + 1):
                stream = call % 2 == 0
                answer = await ask(sdk, call, stream=stream)
                assert _whole([part async for part in answer] if stream else [answer])
                if call == CALLS - 2:
                    await asyncio.to_thread(shared.force, rollout_id)

    asyncio.run(play())
    _check(shared, rollout_id, written, transport)


def test_s2_parallel_calls_of_one_rollout_get_their_own_answers(shared: Gateway) -> None:
    async def play() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=f"{shared.url}/v1", api_key="none", http_client=async_client(rollout="many")
        ) as sdk:
            await _responses(sdk, 1, stream=False)
            asks = (_responses(sdk, 1 + call % CALLS, stream=False) for call in range(16))
            return await asyncio.gather(*asks)

    answers = asyncio.run(play())
    by_size = {answer.usage.input_tokens for answer in answers}
    assert len(by_size) == CALLS
    assert [answer.usage.input_tokens for answer in answers[:CALLS]] == sorted(by_size)


def test_a_client_of_the_older_library_serves_the_sdk_too(shared: Gateway) -> None:
    made: Any = older_client(rollout="older")
    with openai.OpenAI(base_url=f"{shared.url}/v1", api_key="none", http_client=made) as sdk:
        assert _whole(list(_chat(sdk, 1, stream=True)))
        assert _whole([_chat(sdk, 2, stream=False)])


AGENTS = pytest.mark.parametrize("more", [[], ["--async"]], ids=["threads", "loop"])
APIS = pytest.mark.parametrize("api", ["chat", "responses"])


def _told(lines: str) -> tuple[list[str], dict[str, Any]]:
    """What the agent printed: the ids of its answers, and how it ended."""
    *calls, end = map(json.loads, lines.splitlines())
    assert all(call["type"] == "call" and call["usage"] for call in calls)
    return [call["id"] for call in calls], end


def _answered(gateway: Gateway, rollout_id: str) -> Iterator[str]:
    """The ids of the answers, as the records have them; each answer was streamed."""
    for record in gateway.records(rollout_id):
        first = next(line for line in record["response"].splitlines() if line[:6] == "data: ")
        event = json.loads(first[6:])
        yield event.get("response", event)["id"]


@pytest.mark.parametrize(("api", "more"), [("chat", []), ("responses", ["--async"])])
def test_h1_the_agent_plays_a_task_and_its_history_travels_as_deltas(
    shared: Gateway, capsys: pytest.CaptureFixture[str], api: str, more: list[str]
) -> None:
    rollout_id = f"agent-{api}{''.join(more)}"
    url = f"{shared.url}/ng-rollout/{rollout_id}/v1"
    assert main(["--base-url", url, "--api", api, "--prompt", "go", *more]) == 0
    ids, end = _told(capsys.readouterr().out)
    assert end["answer"] == "done after 6 tool calls"
    assert ids == list(_answered(shared, rollout_id))
    counted = end["statistics"]["rollouts"][rollout_id]
    assert (counted["calls"], counted["resyncs"]) == (7, 0)
    assert counted["bytes_sent"] < counted["bytes_full"] / 3
    last = shared.records(rollout_id)[-1]["request_text"]
    assert all(f"step {step}\\n\\nexit code 0" in last for step in range(1, 7))


WAITING_SHELL = f"""\
#!/bin/sh
case "$2" in *"step 3") echo > {REACHED}; read -r _ < {PROCEED} ;; esac
exec sh "$@"
"""


@pytest.mark.long
@APIS
@AGENTS
def test_s1_the_agent_does_not_notice_the_death_of_its_owner(
    gateway: Gateway, folder: Path, api: str, more: list[str]
) -> None:
    url = f"{gateway.url}/ng-rollout/r1/v1"
    shell = folder / "shell"
    shell.write_text(WAITING_SHELL)
    shell.chmod(0o700)
    with Pause(folder, step="3") as pause:
        arguments = ["--base-url", url, "--api", api, "--prompt", "go", *more]
        with subprocess.Popen(
            [sys.executable, "-m", AGENT, *arguments, "--shell", str(shell)],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        ) as agent:
            pause.wait_reached(agent.pid, limit_s=PATIENCE_S)
            gateway.kill_worker(gateway.claims()["r1"]["worker_id"])
            pause.proceed()
            lines, _ = agent.communicate(timeout=PATIENCE_S)
    ids, end = _told(lines)
    assert end["answer"] == "done after 6 tool calls"
    assert end["statistics"]["rollouts"]["r1"]["resyncs"] == 1
    assert ids == list(_answered(gateway, "r1"))
