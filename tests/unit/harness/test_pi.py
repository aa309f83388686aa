# SPDX-License-Identifier: Apache-2.0
"""Pi's set-up files, its environment, and how its events are read."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollout_router.harness.pi import Pi
from rollout_router.harness.port import Dialect, Harness, Setup, Target, Told

PI: Harness = Pi()
DONE = {"type": "agent_settled", "aborted": False}
ROLLOUT_URL = "http://127.0.0.1:9/ng-rollout/r"


def target(dialect: Dialect) -> Target:
    base_url = f"{ROLLOUT_URL}/v1"
    return Target(base_url=base_url, model="scripted", dialect=dialect, context_llm_tokens=64_000)


def set_up(dialect: Dialect) -> Setup:
    return PI.set_up(PurePosixPath("/h"), target(dialect))


def assistant(**message: Any) -> dict[str, Any]:
    content = [{"type": "toolCall", "name": "x"}, {"type": "text", "text": "he"}]
    content.append({"type": "text", "text": "llo"})
    usage = {"input": 3, "output": 1, "cost": {"total": 0.1}}
    own = {"role": "assistant", "content": content, "stopReason": "stop", "usage": usage}
    message = {**own, **message}
    return {"type": "message_end", "message": message}


def read(*events: dict[str, Any]) -> Told:
    return PI.read(json.dumps(event) + "\n" for event in events)


@pytest.mark.parametrize(
    ("dialect", "base_url", "api"),
    [
        (Dialect.CHAT, f"{ROLLOUT_URL}/v1", "openai-completions"),
        (Dialect.RESPONSES, f"{ROLLOUT_URL}/v1", "openai-responses"),
        (Dialect.MESSAGES, ROLLOUT_URL, "anthropic-messages"),
    ],
)
def test_the_only_provider_is_the_one_that_was_named(
    dialect: Dialect, base_url: str, api: str
) -> None:
    setup = set_up(dialect)
    models = json.loads(setup.files[PurePosixPath(".pi/agent/models.json")])
    (provider,) = models["providers"].values()
    assert (provider["baseUrl"], provider["api"]) == (base_url, api)
    assert setup.environment[provider["apiKey"].removeprefix("$")] == "unused"
    assert [model["id"] for model in provider["models"]] == ["scripted"]


def test_a_context_is_compacted_at_85_percent_and_a_tenth_is_kept() -> None:
    files = set_up(Dialect.CHAT).files
    settings = json.loads(files[PurePosixPath(".pi/agent/settings.json")])
    assert settings["compaction"] == {"reserveTokens": 9_600, "keepRecentTokens": 6_400}
    (provider,) = json.loads(files[PurePosixPath(".pi/agent/models.json")])["providers"].values()
    assert provider["models"][0]["contextWindow"] == 64_000


def test_a_run_is_offline() -> None:
    environment = set_up(Dialect.CHAT).environment
    assert environment["PI_OFFLINE"] == "1"
    assert environment["PI_CODING_AGENT_DIR"] == "/h/.pi/agent"
    assert "--offline" in PI.command(Path("/cache"), target(Dialect.CHAT), "go")


def test_a_run_uses_the_installed_node() -> None:
    command = PI.command(Path("/cache"), target(Dialect.CHAT), "go")
    assert command[0] == "/cache/node_modules/node/bin/node"
    assert command[1].startswith("/cache/node_modules/@earendil-works/pi-coding-agent/")


def test_the_last_text_is_the_answer_and_every_answer_counts() -> None:
    first = assistant(content=[], stopReason="toolUse")
    user = {"type": "message_end", "message": {"role": "user", "content": "go"}}
    found = read(user, first, assistant(), DONE)
    usage = {"input": 6, "output": 2}
    assert found == Told(answer="hello", model_calls=2, usage=usage, problems=())


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (assistant(stopReason="error", errorMessage="502 gone"), "502 gone"),
        (assistant(stopReason="aborted"), "an error"),
        ({"type": "auto_retry_start", "errorMessage": "overloaded"}, "retried: 'overloaded'"),
        ({"type": "tool_execution_end", "toolName": "bash", "isError": True}, "tool bash failed"),
        ({"type": "compaction_start", "reason": "overflow"}, "compacted: overflow"),
        ({"type": "agent_settled", "aborted": True}, "aborted"),
    ],
)
def test_s1_what_pi_noticed_is_a_problem(event: dict[str, Any], problem: str) -> None:
    (found,) = read(event, DONE).problems
    assert problem in found


def test_a_retried_call_is_told_once_and_counts_once() -> None:
    failed = assistant(stopReason="error", errorMessage="503 busy", content=[])
    retry = {"type": "auto_retry_start", "errorMessage": "503 busy"}
    found = read(failed, retry, assistant(), DONE)
    assert (found.answer, found.model_calls) == ("hello", 1)
    assert found.problems == ("retried: '503 busy'",)


def test_a_run_that_was_cut_off_is_a_problem() -> None:
    assert read(assistant()).problems == ("never said that it was done",)
