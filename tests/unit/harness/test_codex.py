# SPDX-License-Identifier: Apache-2.0
"""Codex's configuration, and how its events are read."""

import json
import platform
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollout_router.harness.codex import Codex
from rollout_router.harness.port import Dialect, Harness, Target, Told

CODEX: Harness = Codex()
DONE = {"type": "turn.completed", "usage": {"input_tokens": 7, "output_tokens": 2}}


def read(*events: dict[str, Any]) -> Told:
    return CODEX.read(json.dumps(event) + "\n" for event in events)


def said(text: str) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"type": "agent_message", "text": text}}


def test_the_only_provider_is_the_one_that_was_named() -> None:
    target = Target(
        base_url="http://127.0.0.1:9/ng-rollout/r/v1",
        model='a "model"\x7f',
        dialect=Dialect.RESPONSES,
        context_llm_tokens=64_000,
    )
    setup = CODEX.set_up(PurePosixPath("/h"), target)
    (text,) = setup.files.values()
    written = tomllib.loads(text)
    assert setup.files.keys() == {PurePosixPath(".codex/config.toml")}
    assert setup.environment["CODEX_HOME"] == "/h/.codex"
    (provider,) = written["model_providers"].values()
    assert written["model_provider"] in written["model_providers"]
    assert (provider["base_url"], provider["wire_api"]) == (target.base_url, "responses")
    assert setup.environment[provider["env_key"]] == "unused"
    assert written["model"] == target.model
    assert written["model_context_window"] == 64_000
    assert written["model_auto_compact_token_limit"] == 54_400


def test_nothing_that_asks_the_internet_is_on() -> None:
    target = Target(base_url="http://x/v1", model="m", dialect=Dialect.RESPONSES)
    (text,) = CODEX.set_up(PurePosixPath("/h"), target).files.values()
    written = tomllib.loads(text)
    off = [written["check_for_update_on_startup"], *written["features"].values()]
    off += [written[name]["enabled"] for name in ("analytics", "feedback")]
    assert not any(off)


@pytest.mark.parametrize(("machine", "package"), [("x86_64", "x64"), ("aarch64", "arm64")])
def test_the_program_is_the_one_of_this_machine(
    machine: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    ((program, *_), _printed) = CODEX.probe(Path("/cache"))
    vendor = f"/cache/node_modules/@openai/codex-linux-{package}/vendor"
    assert program == f"{vendor}/{machine}-unknown-linux-musl/bin/codex"


def test_the_last_message_is_the_answer_and_usage_is_summed() -> None:
    told = read(said("first"), DONE, said("last"), DONE)
    usage = {"input_tokens": 14, "output_tokens": 4}
    assert told == Told(answer="last", model_calls=None, usage=usage, problems=())


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"type": "error", "message": "Reconnecting... 1/5 (gone)"}, "retried: Reconnecting... 1"),
        ({"type": "error", "message": "unexpected status 400"}, "error: unexpected status 400"),
        ({"type": "turn.failed", "error": {"message": "gone"}}, "the turn failed: gone"),
    ],
)
def test_s1_what_codex_noticed_is_a_problem(event: dict[str, Any], problem: str) -> None:
    (found,) = read(event, DONE).problems
    assert found.startswith(problem)
