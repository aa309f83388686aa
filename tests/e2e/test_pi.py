# SPDX-License-Identifier: Apache-2.0
"""The real harness Pi, through the shim, while its rollout's owner is killed between two calls."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.gateway import COMMAND

CACHE = Path(__file__).parents[2] / ".cache" / "harness"
FINE, REFUSED = 0, 4


def conformance(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [COMMAND, "conformance", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for program in ("npm", "node"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing")
    folder = tmp_path_factory.mktemp("install")
    done = conformance("install", "--cache", str(CACHE), folder=folder)
    if done.returncode == REFUSED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == FINE, done.stderr
    return CACHE


@pytest.mark.timeout(900)  # the first run installs
def test_s1_a_killed_owner_and_deltas_change_nothing_for_pi(
    installed: Path, tmp_path: Path
) -> None:
    done = conformance("--cache", str(installed), "--json", folder=tmp_path)
    assert done.returncode == FINE, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["differences"] == []
    deltas, full = document["runs"]
    for run in (deltas, full):
        check_run(run)
    assert (deltas["resyncs"], full["resyncs"]) == (1, 0)
    assert deltas["bytes_sent"] < deltas["bytes_full"] == full["bytes_full"] == full["bytes_sent"]
    for name in ("bodies", "tool_calls"):
        assert deltas["transcript"][name] == full["transcript"][name]
    assert deltas["told"] == full["told"]


def check_run(run: dict[str, Any]) -> None:
    assert run["exit_code"] == 0
    assert run["calls"] == run["told"]["model_calls"] == len(run["transcript"]["bodies"]) == 7
    assert run["told"]["answer"] == "done after 6 tool calls"
    assert run["told"]["problems"] == []
    assert [call["result"] for call in run["transcript"]["tool_calls"]] == [
        f"step {number}\n" for number in range(1, 7)
    ]
    before, after = run["transcript"]["owners"]
    assert (before["calls"], after["calls"]) == (3, 4)
    assert before["worker_id"] == run["killed"] != after["worker_id"]
    assert after["claim_epoch"] > before["claim_epoch"]


def test_a_harness_that_cannot_be_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = conformance("--cache", str(tmp_path / "cache"), folder=tmp_path)
    assert done.returncode == REFUSED
    assert "npm is missing" in done.stderr
    assert done.stdout == ""
