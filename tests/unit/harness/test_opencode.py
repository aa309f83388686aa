# SPDX-License-Identifier: Apache-2.0
"""OpenCode's set-up, its command, and how its events are read (as 1.18.33 prints them)."""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollout_router.harness.opencode import OpenCode
from rollout_router.harness.port import Dialect, Harness, Target, Told

HOME = PurePosixPath("/home/agent")
URL = "http://127.0.0.1:9/ng-rollout/r/v1"


def target(dialect: Dialect = Dialect.CHAT, **more: Any) -> Target:
    return Target(base_url=URL, model="scripted", dialect=dialect, **more)


def config(harness: Harness, aim: Target) -> Any:
    setup = harness.set_up(HOME, aim)
    ((folder, text),) = (
        (path.parent, text) for path, text in setup.files.items() if path.name == "opencode.json"
    )
    assert setup.environment["OPENCODE_CONFIG_DIR"] == str(HOME / folder)
    return json.loads(text)


def part(kind: str, message: str = "m1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "part": {"messageID": message, **more}}


def finish(message: str = "m1", reason: str = "stop", given: int = 10) -> dict[str, Any]:
    cache = {"read": 2, "write": 1}
    tokens = {"total": 99, "input": given, "output": 3, "reasoning": 0, "cache": cache}
    return part("step_finish", message, reason=reason, tokens=tokens)


def read(*events: dict[str, Any]) -> Told:
    return OpenCode().read(json.dumps(event) + "\n" for event in events)


@pytest.mark.parametrize(
    ("dialect", "client"),
    [
        (Dialect.CHAT, "@ai-sdk/openai-compatible"),
        (Dialect.RESPONSES, "@ai-sdk/openai"),
        (Dialect.MESSAGES, "@ai-sdk/anthropic"),
    ],
)
def test_the_only_provider_is_the_target_in_its_dialect(dialect: Dialect, client: str) -> None:
    document = config(OpenCode(), target(dialect, api_key="key", context_llm_tokens=20_000))
    ((name, provider),) = document["provider"].items()
    assert provider["npm"] == client
    assert provider["options"] == {"baseURL": URL, "apiKey": "key"}
    assert provider["models"]["scripted"]["limit"] == {"context": 20_000, "output": 8_192}
    assert document["enabled_providers"] == [name]
    assert document["model"] == document["small_model"] == f"{name}/scripted"
    assert "agent" not in document


def test_a_replacement_prompt_is_that_of_the_agent_build() -> None:
    document = config(OpenCode("{env:HOME}"), target())
    assert document["agent"] == {"build": {"prompt": "{env:HOME}"}}
    assert not any(
        "{env:" in text for text in OpenCode("{env:HOME}").set_up(HOME, target()).files.values()
    )


def test_everything_of_it_lies_below_its_home_and_loopback_has_no_proxy() -> None:
    environment = OpenCode().set_up(HOME, target()).environment
    folders = [value for name, value in environment.items() if name.startswith("XDG_")]
    assert len(folders) == 4
    for folder in [*folders, environment["TMPDIR"]]:
        assert PurePosixPath(folder).is_relative_to(HOME)
    assert environment["NO_PROXY"] == environment["no_proxy"] == "127.0.0.1,localhost"
    assert environment["OPENCODE_DISABLE_MODELS_FETCH"] == "1"


def test_there_is_nothing_for_it_to_install() -> None:
    setup = OpenCode().set_up(HOME, target())
    config_home = PurePosixPath(setup.environment["XDG_CONFIG_HOME"]) / "opencode"
    for folder in (PurePosixPath(setup.environment["OPENCODE_CONFIG_DIR"]), config_home):
        below = folder.relative_to(HOME)
        assert below / "node_modules/.keep" in setup.files
        locked = json.loads(setup.files[below / "package-lock.json"])["packages"][""]
        assert "@opencode-ai/plugin" in locked["dependencies"]


def test_a_prompt_that_looks_like_a_flag_is_a_prompt() -> None:
    command = OpenCode().command(Path("/cache"), target(), "--help")
    assert command[0].startswith("/cache/node_modules/opencode-linux-x64/")
    assert command[-2:] == ["--", "--help"]
    assert "gym/scripted" in command


def test_the_answer_is_the_text_of_the_last_message_and_usage_is_summed() -> None:
    told = read(
        part("step_start"),
        part("text", text="let me see"),
        part("tool_use", tool="bash", state={"status": "completed"}),
        finish(reason="tool-calls"),
        part("step_start", "m2"),
        part("text", "m2", text="do"),
        part("text", "m2", text="ne"),
        finish("m2", given=5),
    )
    usage = {"input": 15, "output": 6, "reasoning": 0, "cache_read": 4, "cache_write": 2}
    assert told == Told(answer="done", model_calls=2, usage=usage, problems=())


def test_a_compaction_is_a_problem_and_its_words_are_no_answer() -> None:
    more = {"synthetic": True, "metadata": {"compaction_continue": True}}
    told = read(
        part("step_start"), part("text", text="a"), finish(), part("text", "m2", text="go", **more)
    )
    assert told.answer == "a"
    (problem,) = told.problems
    assert problem.startswith("compacted: ")


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (part("step_start"), "retried: "),
        (finish(reason="unknown"), "ended early: a model call ended in 'unknown'"),
        (part("step_start", "m2"), "unfinished: "),
        (
            {"type": "error", "error": {"name": "APIError", "data": {"message": "no"}}},
            "error: APIError: no",
        ),
        (
            part("tool_use", tool="bash", state={"status": "error", "error": "bad"}),
            "tool failed: bash: bad",
        ),
        (
            part("tool_use", tool="invalid", state={"status": "completed", "output": "no such"}),
            "tool failed: invalid: no such",
        ),
        ({"type": "text"}, "unreadable: "),
        ({"type": "step_finish", "part": {"messageID": "m1"}}, "unreadable: "),
    ],
)
def test_what_went_wrong_is_told(event: dict[str, Any], problem: str) -> None:
    told = read(part("step_start"), event, finish())
    assert [text for text in told.problems if text.startswith(problem)] == list(told.problems)
    assert len(told.problems) == 1


def test_a_run_that_said_nothing_is_unfinished() -> None:
    told = OpenCode().read(["not an event\n"])
    assert (told.answer, told.model_calls) == (None, 0)
    assert [problem.split(":")[0] for problem in told.problems] == ["unreadable", "unfinished"]
