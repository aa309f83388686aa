# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: what a step leaves, and what the check sees."""

import os
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollout_router.harness.scenario import SCENARIOS, command, progress
from rollout_router.harness.workspace import make_workspace, text_of, verify

MIXED = SCENARIOS["mixed"]
SHORT = replace(MIXED, steps=(*MIXED.steps[:2], MIXED.steps[4]))  # 1, 2a and 2b, a subagent
PLAIN, DELEGATED = ["1", "2a", "2b", "3"], ["1", "2a", "2b", "sub-3-1", "sub-3-2"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "it's here"
    folder.mkdir()
    make_workspace(folder, SHORT)
    return folder


def ran(work: Path, labels: list[str]) -> list[str]:
    return [
        subprocess.run(
            ["/bin/sh", "-c", command(label)], cwd=work, capture_output=True, text=True, check=True
        ).stdout
        for label in labels
    ]


@pytest.mark.parametrize(("labels", "subagents"), [(PLAIN, False), (DELEGATED, True)])
def test_steps_in_order_are_right_work(work: Path, labels: list[str], *, subagents: bool) -> None:
    printed = ran(work, labels)
    assert printed == [text_of(label, 5_000) for label in labels]
    assert verify(work, SHORT, subagents=subagents) == []
    assert verify(work, SHORT, subagents=not subagents) != []


def test_the_halves_of_a_step_may_end_in_any_order(work: Path) -> None:
    ran(work, ["1", "2b", "2a", "3"])
    assert verify(work, SHORT, subagents=False) == []


def again(work: Path) -> None:
    ran(work, ["3"])


def forged(work: Path) -> None:
    (work / "texts" / "1").write_text("x")


def lost(work: Path) -> None:
    (work / "out" / "step-2a").unlink()


def swapped(work: Path) -> None:
    (work / "log").write_text("1\n3\n2a\n2b\n")


def littered(work: Path) -> None:
    (work / "out" / "more").write_text("")


def undone(work: Path) -> None:
    (work / "log").write_text("")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (again, ["the steps ran as 1 2a 2b 3 3, not as", "out/step-3 does not hold"]),
        (forged, ["texts/1 does not hold"]),
        (lost, ["out/step-2a is missing"]),
        (swapped, ["the steps ran as 1 3 2a 2b, not as"]),
        (littered, ["out/more is not of any step"]),
        (undone, ["the steps ran as , not as 1 2a 2b 3"]),
    ],
)
def test_other_work_is_told(work: Path, wrong: Callable[[Path], None], said: list[str]) -> None:
    ran(work, PLAIN)
    wrong(work)
    found = verify(work, SHORT, subagents=False)
    assert len(found) == len(said)
    assert all(line.startswith(start) for line, start in zip(found, said, strict=True))


def test_a_step_that_is_no_step_fails(work: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        ran(work, ["4"])


def test_a_step_waits_once_where_it_is_to(work: Path) -> None:
    for name in ("reached", "proceed"):
        os.mkfifo(work / name)
    (work / "pause-at").write_text("2a\n")
    ran(work, ["1"])
    with subprocess.Popen(
        ["/bin/sh", "-c", command("2a")], cwd=work, stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert (work / "reached").read_text() == "2a\n"
        assert (work / "log").read_text() == "1\n"
        (work / "proceed").write_text("\n")
        assert waiting.communicate()[0] == text_of("2a", 5_000)
    assert not (work / "pause-at").exists()
    ran(work, ["2b", "3"])
    assert verify(work, SHORT, subagents=False) == []


@pytest.mark.parametrize(("output_bytes", "ratio"), [(5_000, (2.6, 4.3)), (100_000, (4.4, 6.5))])
def test_what_a_step_prints_is_as_dense_as_real_outputs(
    output_bytes: int, ratio: tuple[float, float]
) -> None:
    """Recorded tool outputs of that length: their first and third quartile under zlib."""
    text = text_of("7", output_bytes)
    data = text.encode()
    lines = text.splitlines()
    assert output_bytes <= len(data) <= output_bytes + 200
    assert ratio[0] < len(data) / len(zlib.compress(data, 6)) < ratio[1]
    assert len(lines) < 2_000  # of more lines, harnesses keep the last
    assert progress(lines[0]) == progress(lines[-1]) == 7
    assert text != text_of("8", output_bytes)
