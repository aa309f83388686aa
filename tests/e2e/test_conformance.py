# SPDX-License-Identifier: Apache-2.0
"""Real harnesses through the whole of it, while owners die: they and the model notice nothing."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.gateway import COMMAND

from rollout_router.cli.main import main
from rollout_router.harness import HARNESSES

CACHE = Path(__file__).parents[2] / ".cache" / "harness"
FINE, REFUSED = 0, 4


def conformance(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [COMMAND, "conformance", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def installed(name: str, folder: Path) -> None:
    """Skips where it cannot be had."""
    if HARNESSES[name].packages.npm:
        for program in ("npm", "node"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is missing")
    done = conformance("install", "--harness", name, "--cache", str(CACHE), folder=folder)
    if done.returncode == REFUSED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == FINE, done.stderr


def played(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = conformance("--cache", str(CACHE), "--json", *arguments, folder=folder)
    assert done.returncode == FINE, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["findings"] == 0
    variants: list[dict[str, Any]] = document["variants"]
    return variants


@pytest.mark.long  # with an installation from npm it takes a sixth of the everyday suite
@pytest.mark.timeout(900)  # the first run installs
def test_s1_h1_a_killed_owner_and_deltas_change_nothing_for_pi(tmp_path: Path) -> None:
    installed("pi", tmp_path)
    (variant,) = played(tmp_path, "--harness", "pi", "--dialect", "chat", "--scenario", "mixed")
    full, deltas, killed = variant["runs"]
    for run in variant["runs"]:
        assert (run["exit_code"], run["calls"], run["model_calls_told"]) == (0, 8, 8)
        assert run["tool_calls"] == 9
        assert run["answer"].endswith("conf_main_7_1")
    assert [run["resyncs"] for run in variant["runs"]] == [0, 0, 1]
    assert full["bytes_sent"] == full["bytes_full"] > deltas["bytes_sent"]
    before, after = killed["owners"]
    assert before["worker_id"] == killed["killed"] != after["worker_id"]
    assert after["claim_epoch"] > before["claim_epoch"]
    assert all(deltas["stages_ms"][f"sandbox {name}"] > 0 for name in ("local hop", "delta"))
    assert all(
        deltas["stages_ms"][f"gym {name}"] > 0 for name in ("claim", "read", "hop", "rebuild")
    )


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", ["mixed", "faults"])
@pytest.mark.parametrize("name", HARNESSES)
def test_s1_h1_no_harness_notices_deltas_or_a_killed_owner(
    tmp_path: Path, name: str, scenario: str
) -> None:
    installed(name, tmp_path)
    found = played(tmp_path, "--harness", name, "--scenario", scenario)
    assert [one["dialect"] for one in found] == [str(one) for one in HARNESSES[name].dialects]


def test_a_harness_that_cannot_be_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    cache = ("--cache", str(tmp_path / "cache"))
    done = conformance("--harness", "pi", *cache, folder=tmp_path)
    assert done.returncode == REFUSED
    assert "npm is missing" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--harness", "pi,claude"], "unknown: claude"),
        (["--harness", "codex", "--dialect", "chat"], "none of these harnesses speaks"),
    ],
)
def test_what_cannot_be_run_is_a_usage_error(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["conformance", *arguments])
    assert done.exit_code == 2
    assert said in done.output
