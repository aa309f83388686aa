# SPDX-License-Identifier: Apache-2.0
"""The shell that stops before one command."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollout_router.harness.pause import NotReached, PausingShell, script

PATIENCE_S = 30.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PausingShell]:
    folder = tmp_path / "it's here"
    folder.mkdir()
    with PausingShell(folder, command="echo step 3") as shell:
        yield shell


def start(shell: PausingShell, command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([shell.path, "-c", command], stdout=subprocess.PIPE, text=True)


def test_it_stops_before_the_command_until_it_is_told(shell: PausingShell, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    running = start(shell, f"touch {mark}; echo step 3")
    shell.wait_reached(running.pid, limit_s=PATIENCE_S)
    assert not mark.exists()
    shell.proceed()
    assert running.communicate(timeout=PATIENCE_S)[0] == "step 3\n"
    assert mark.exists()


def test_it_stops_once(shell: PausingShell) -> None:
    first = start(shell, "echo step 3")
    shell.wait_reached(first.pid, limit_s=PATIENCE_S)
    shell.proceed()
    assert first.communicate(timeout=PATIENCE_S)[0] == "step 3\n"
    assert start(shell, "echo step 3").communicate(timeout=PATIENCE_S)[0] == "step 3\n"


def test_other_commands_run_through_with_their_exit_code(shell: PausingShell) -> None:
    running = start(shell, "echo step 2; exit 7")
    assert running.communicate(timeout=PATIENCE_S)[0] == "step 2\n"
    assert running.returncode == 7


def test_a_harness_that_ends_before_the_command_is_noticed(shell: PausingShell) -> None:
    running = start(shell, "echo step 2")
    with pytest.raises(NotReached, match="ended before"):
        shell.wait_reached(running.pid, limit_s=PATIENCE_S)
    running.communicate(timeout=PATIENCE_S)


def test_a_harness_that_takes_too_long_is_noticed(shell: PausingShell) -> None:
    running = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    with pytest.raises(NotReached, match="within 0 s"):
        shell.wait_reached(running.pid, limit_s=0)
    running.communicate(timeout=PATIENCE_S)


def test_paths_and_command_are_quoted(tmp_path: Path) -> None:
    text = script(tmp_path / "a b", command="echo 'x'")
    assert f"< '{tmp_path}/a b/proceed'" in text
    assert """*'echo '"'"'x'"'"''*)""" in text
