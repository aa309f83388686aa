# SPDX-License-Identifier: Apache-2.0
"""Hermes' configuration, its run under a shell, and how what it prints is read."""

import json
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollout_router.harness.hermes import Hermes
from rollout_router.harness.port import Dialect, Harness, Target, Told

HERMES: Harness = Hermes()
ROLLOUT_URL = "http://127.0.0.1:9/ng-rollout/r"
REPORT = {"api_calls": 7, "completed": True, "failed": False, "input_tokens": 9, "model": "m"}
TARGET = Target(base_url=f"{ROLLOUT_URL}/v1", model="m", dialect=Dialect.CHAT)


@pytest.mark.parametrize(
    ("dialect", "base_url", "mode"),
    [
        (Dialect.CHAT, f"{ROLLOUT_URL}/v1", "chat_completions"),
        (Dialect.RESPONSES, f"{ROLLOUT_URL}/v1", "codex_responses"),
        (Dialect.MESSAGES, ROLLOUT_URL, "anthropic_messages"),
    ],
)
def test_a_named_provider_speaks_the_dialect(dialect: Dialect, base_url: str, mode: str) -> None:
    target = Target(
        base_url=f"{ROLLOUT_URL}/v1", model="m", dialect=dialect, context_llm_tokens=64_000
    )
    setup = HERMES.set_up(PurePosixPath("/h"), target)
    (text,) = setup.files.values()
    written = json.loads(text)  # JSON is YAML
    assert setup.files.keys() == {PurePosixPath(".hermes/config.yaml")}
    assert setup.environment["HERMES_HOME"] == "/h/.hermes"
    (provider,) = written["providers"].values()
    assert (provider["base_url"], provider["api_mode"]) == (base_url, mode)
    assert setup.environment[provider["key_env"]] == "unused"
    assert written["model"] == {"default": "m", "provider": "gym", "context_length": 64_000}
    assert int(64_000 * written["compression"]["threshold"]) == 54_400
    assert not any([*written["security"].values(), *written["agent"].values()])


class Started:
    """A run of Hermes' command with a program of the test in place of its Python."""

    def __init__(self, folder: Path, script: str) -> None:
        program = folder / "venv" / "bin" / "python"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o700)
        self.done = subprocess.run(
            HERMES.command(folder, TARGET, "it's $HOME"),
            env={"PATH": "/usr/bin:/bin", "HERMES_HOME": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        self.told = HERMES.read(self.done.stdout.splitlines(keepends=True))


def test_a_run_prints_the_answer_and_what_it_used(tmp_path: Path) -> None:
    # It is given -P -m MODULE --usage-file FILE -z PROMPT.
    script = f"""\
shift 3
printf '%s\\nand more\\n' "$4"
echo '{json.dumps(REPORT)}' > "$2"
"""
    run = Started(tmp_path, script)
    assert run.done.returncode == 0
    assert run.told == Told(
        answer="it's $HOME\nand more", model_calls=7, usage={"input_tokens": 9}, problems=()
    )


def test_the_exit_code_is_its_own_and_what_an_earlier_run_used_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "usage.json").write_text(json.dumps(REPORT))
    run = Started(tmp_path, "exit 3")
    assert run.done.returncode == 3
    assert run.told.usage == {}
    (problem,) = run.told.problems
    assert "never said what it used" in problem


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"failed": True}, "API call failed"),
        ({"completed": False}, "API call failed"),
        ({"failed": True, "failure": "boom"}, "boom"),
    ],
)
def test_s1_a_failed_run_is_a_problem(changed: dict[str, Any], problem: str) -> None:
    """Its exit code is 0 even then: what failed is its answer."""
    used = json.dumps({**REPORT, "api_calls": None, **changed}, indent=2)
    told = HERMES.read(["API call failed\n\n", "--- what hermes says that it used ---\n", used])
    assert [problem in found for found in told.problems] == [True]
    assert told.model_calls is None
