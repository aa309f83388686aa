# SPDX-License-Identifier: Apache-2.0
"""A tool that waits is seen, and goes on when it is told to."""

import subprocess
from pathlib import Path

import pytest

from rollout_router.harness.pause import PAUSE_AT, PROCEED, REACHED, NotReached, Pause

TOOL = f"[ $(cat {PAUSE_AT}) = 7 ]; echo > {REACHED}; read -r _ < {PROCEED}; echo gone on"


def started(folder: Path, command: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sh", "-c", command], cwd=folder, stdout=subprocess.PIPE)


def test_a_tool_waits_until_it_is_told_to_go_on(tmp_path: Path) -> None:
    with Pause(tmp_path, step="7") as pause, started(tmp_path, TOOL) as process:
        pause.wait_reached(process.pid, limit_s=30)
        assert process.poll() is None
        pause.proceed()
        assert process.communicate()[0] == b"gone on\n"


def test_a_harness_that_ends_first_is_told_of(tmp_path: Path) -> None:
    with Pause(tmp_path, step="7") as pause, started(tmp_path, "exit") as process:
        with pytest.raises(NotReached, match="ended before"):
            pause.wait_reached(process.pid, limit_s=30)
        process.wait()


def test_a_harness_that_takes_too_long_is_told_of(tmp_path: Path) -> None:
    with Pause(tmp_path, step="7") as pause, started(tmp_path, f"read -r _ < {PROCEED}") as process:
        with pytest.raises(NotReached, match="within 0 s"):
            pause.wait_reached(process.pid, limit_s=0)
        pause.proceed()
        process.wait()
