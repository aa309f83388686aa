# SPDX-License-Identifier: Apache-2.0
"""What the benchmark prints, writes and refuses; nothing is measured."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollout_router.bench.deltas import DeltaCosts, FormCosts
from rollout_router.bench.figures import Part, Target, at_least, at_most
from rollout_router.bench.forward import CASES, QUICK_CASES
from rollout_router.bench.forward_costs import Case, ForwardCosts
from rollout_router.bench.hop import HopCosts
from rollout_router.bench.measure import Measured
from rollout_router.cli import bench as command
from rollout_router.cli.main import main


def measured(stage: str, median_ms: float, ratio: float | None = None) -> Measured:
    return Measured(
        stage=stage,
        median_ms=median_ms,
        p99_ms=2 * median_ms,
        reference=None if ratio is None else "bare_5kb",
        ratio=ratio,
        spread=None if ratio is None else (ratio * 0.875, ratio * 1.125),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop(HopCosts):
    """With targets, which a client alone has not."""

    given: tuple[Target, ...]

    def targets(self) -> list[Target]:
        return list(self.given)


def hop(ratio: float = 1.5, *targets: Target) -> Part:
    stages = [measured("bare_5kb", 0.5), measured("hop_5kb", 0.5 * ratio, ratio=ratio)]
    cpu = [measured("bare_5kb", 0.25), measured("hop_5kb", 0.3125, ratio=1.25)]
    return Hop(rounds=7, stages=stages, cpu=cpu, notes=["httpx is [missing]"], given=targets)


def run(monkeypatch: pytest.MonkeyPatch, part: Part, *arguments: str) -> Result:
    monkeypatch.setattr(command, "_PARTS", {"hop": lambda _: part})
    return CliRunner().invoke(main, ["bench", *arguments])


def test_stages_targets_and_notes_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = at_most("the hop", 0.5, 1), at_least("bytes saved", 7.25, 7)
    done = run(monkeypatch, hop(1.5, *targets))
    assert done.exit_code == 0
    for text in ("time of a call; 7 rounds", "750.0", "1500.0", "1.5", "1.31 to 1.69"):
        assert text in done.stdout
    for text in ("processor time of a call", "312.5", "625.0", "1.25", "httpx is [missing]"):
        assert text in done.stdout
    for text in ("the hop", "0.5", "at most 1", "bytes saved", "7.25", "at least 7"):
        assert text in done.stdout


def test_a_missed_target_is_named_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, hop(1.5, at_most("the hop", 1.25, 1)), "--json")
    assert done.exit_code == 1
    assert "target missed: the hop is 1.25, at most 1" in done.stderr
    assert [target["met"] for target in json.loads(done.stdout)["targets"]] == [False]


def test_a_document_and_a_page_are_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    done = run(monkeypatch, hop(), "--json", "--evidence", str(page))
    found = json.loads(done.stdout)
    assert (found["schema"], found["notes"]) == (2, ["httpx is [missing]"])
    assert found["machine"]["cpus"] >= 1
    assert found["parts"]["hop"]["rounds"] == 7
    assert found["ratios"]["hop time hop_5kb"] == {"ratio": 1.5, "low": 1.3125, "high": 1.6875}
    assert "| hop_5kb | 750.0 | 1500.0 | 1.5 | 1.31 to 1.69 | bare_5kb |" in page.read_text()
    assert "- httpx is [missing]\n" in page.read_text()


@pytest.mark.parametrize(("ratio", "margin", "code"), [(1.5, 0, 0), (3.0, 0.25, 1), (3.0, 2, 0)])
def test_a_ratio_that_has_grown_is_named_and_the_exit_code(  # noqa: PLR0917 - a column each
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratio: float, margin: float, code: int
) -> None:
    before = tmp_path / "before.json"
    before.write_text(run(monkeypatch, hop(1.5), "--json").stdout)
    done = run(monkeypatch, hop(ratio), "--check", str(before), "--margin", str(margin))
    assert done.exit_code == code
    assert ("hop time hop_5kb: 3, recorded 1.5" in done.stderr) is bool(code)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ratios": {"other": {}}}'])
def test_what_is_no_document_of_a_run_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "f").write_text(text)
    done = run(monkeypatch, hop(), "--check", str(tmp_path / "f"))
    assert done.exit_code == 2
    assert "--check" in done.stderr


def test_the_bytes_and_times_of_each_form_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [measured("sha256", 0.1), measured("delta_plain", 0.3, 3), measured("x", 0.75, 7.5)]
    costs = FormCosts(
        form="moving", bytes_full=12_000, bytes_plain=1_000, bytes_deflated=400, stages=stages
    )
    done = run(monkeypatch, DeltaCosts(rounds=7, forms=[costs]))
    for text in ("Deltas", "7 rounds", "moving", "12,000", "12.0", "30.0", "3", "7.5"):
        assert text in done.stdout


def test_parts_are_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def part(name: str) -> Callable[[object], Part]:
        def measure(_: object) -> Part:
            asked.append(name)
            return hop()

        return measure

    monkeypatch.setattr(command, "_PARTS", {name: part(name) for name in ("deltas", "hop")})
    for names in ([], ["hop"], ["deltas", "hop"]):
        CliRunner().invoke(main, ["bench", *(f"--only={name}" for name in names)])
    assert asked == ["deltas", "hop", "hop", "deltas", "hop"]


def test_little_is_measured_of_forwarding_where_little_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, list[Case]]] = []

    def measure(_: Path, *, rounds: int, cases: list[Case], **_say: object) -> ForwardCosts:
        asked.append((rounds, cases))
        return ForwardCosts(results=[])

    monkeypatch.setattr(command, "run_forward", measure)
    for arguments in (["--quick"], ["--rounds=9"]):
        done = CliRunner().invoke(main, ["bench", "--only", "forward", *arguments])
        assert done.exit_code == 0
    assert asked == [(15, QUICK_CASES), (9, CASES)]
