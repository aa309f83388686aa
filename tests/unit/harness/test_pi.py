# SPDX-License-Identifier: Apache-2.0
"""Pi's set-up files, its environment, and how its events are read."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollout_router.harness.pi import Pi
from rollout_router.harness.port import Harness, Place, Told

PI: Harness = Pi()
DONE = {"type": "agent_settled", "aborted": False}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    return Place(home=tmp_path / "home", work=tmp_path / "work", shell=tmp_path / "bash")


def assistant(**message: Any) -> dict[str, Any]:
    content = [{"type": "toolCall", "name": "x"}, {"type": "text", "text": "he"}]
    content.append({"type": "text", "text": "llo"})
    message = {"role": "assistant", "content": content, "stopReason": "stop", **message}
    return {"type": "message_end", "message": message}


def read(*events: dict[str, Any]) -> Told:
    return PI.read(json.dumps(event) + "\n" for event in events)


def test_the_only_provider_is_the_one_that_was_named(place: Place) -> None:
    PI.set_up(place, base_url="http://127.0.0.1:9/ng-rollout/r/v1", model="scripted")
    (written,) = place.home.rglob("models.json")
    (provider,) = json.loads(written.read_text())["providers"].values()
    assert provider["baseUrl"] == "http://127.0.0.1:9/ng-rollout/r/v1"
    assert provider["api"] == "openai-completions"
    assert [model["id"] for model in provider["models"]] == ["scripted"]


def test_tools_run_in_the_shell_that_was_named(place: Place) -> None:
    PI.set_up(place, base_url="http://127.0.0.1:9/v1", model="scripted")
    (written,) = place.home.rglob("settings.json")
    assert json.loads(written.read_text()) == {"shellPath": str(place.shell)}


def test_a_run_is_offline_and_inherits_no_proxy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    start = PI.start(Path("/cache"), place, model="scripted", prompt="go")
    assert not [name for name in start.environment if name.upper().endswith("S_PROXY")]
    assert start.environment["NO_PROXY"] == "127.0.0.1,localhost"
    assert start.environment["PI_OFFLINE"] == "1"
    assert start.environment["HOME"] == str(place.home)
    assert start.environment["PI_CODING_AGENT_DIR"].startswith(str(place.home))
    assert start.folder == place.work


def test_a_run_uses_the_installed_node_and_ends_with_the_prompt(place: Place) -> None:
    start = PI.start(Path("/cache"), place, model="scripted", prompt="go")
    assert start.arguments[0] == "/cache/node_modules/node/bin/node"
    assert start.arguments[1].startswith("/cache/node_modules/@earendil-works/pi-coding-agent/")
    assert start.arguments[-1] == "go"


def test_the_last_text_is_the_answer_and_every_answer_counts() -> None:
    first = assistant(content=[], stopReason="toolUse")
    user = {"type": "message_end", "message": {"role": "user", "content": "go"}}
    found = read(user, first, assistant(), DONE)
    assert found == Told(answer="hello", model_calls=2, problems=())


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        (assistant(stopReason="error", errorMessage="502 gone"), "502 gone"),
        (assistant(stopReason="aborted"), "an error"),
        ({"type": "auto_retry_start", "errorMessage": "overloaded"}, "overloaded"),
        ({"type": "tool_execution_end", "toolName": "bash", "isError": True}, "tool bash failed"),
        ({"type": "compaction_start", "reason": "overflow"}, "compacted"),
        ({"type": "agent_settled", "aborted": True}, "aborted"),
    ],
)
def test_s1_what_pi_noticed_is_a_problem(event: dict[str, Any], problem: str) -> None:
    (found,) = read(event, DONE).problems
    assert problem in found


def test_a_run_that_was_cut_off_is_a_problem() -> None:
    assert read(assistant()).problems == ("never said that it was done",)


def test_a_line_that_is_no_event_is_a_problem() -> None:
    (found,) = PI.read(["Error: boom\n", json.dumps(DONE)]).problems
    assert "Error: boom" in found
