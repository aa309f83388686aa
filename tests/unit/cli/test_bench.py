# SPDX-License-Identifier: Apache-2.0
"""What the benchmark prints for people."""

import pytest

from rollout_router.bench.deltas import DeltaCosts
from rollout_router.bench.hop import HopCosts
from rollout_router.bench.measure import Measured
from rollout_router.cli.bench import _print, _Results


def measured(stage: str, median_ms: float, ratio: float | None = None) -> Measured:
    reference = None if ratio is None else "bare_5kb"
    return Measured(
        stage=stage, median_ms=median_ms, p99_ms=2 * median_ms, reference=reference, ratio=ratio
    )


def test_the_figures_of_the_hop_and_why_one_is_missing_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    costs = HopCosts(
        stages=[measured("bare_5kb", 0.5), measured("hop_5kb", 0.75, ratio=1.5)],
        cpu=[measured("bare_5kb", 0.25), measured("hop_5kb", 0.3125, ratio=1.25)],
        notes=["httpx is [missing]"],
    )
    _print(_Results(rounds=7, sizes=[], claims=[], hop=costs, deltas=[], start=[], notes=[]))
    printed = capsys.readouterr().out
    for text in ("time of a call; 7 rounds", "750.0", "1500.0", "1.5"):
        assert text in printed
    for text in ("CPU of a call; 7 rounds", "312.5", "625.0", "1.25", "httpx is [missing]"):
        assert text in printed
    _print(_Results(rounds=7, sizes=[], claims=[], hop=NO_HOP, deltas=[], start=[], notes=[]))
    assert "the hop" not in capsys.readouterr().out


NO_HOP = HopCosts(stages=[], cpu=[], notes=[])


def test_the_bytes_and_times_of_each_form_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    stages = [measured("sha256", 0.1), measured("delta_plain", 0.3, 3), measured("x", 0.75, 7.5)]
    costs = DeltaCosts(
        form="moving", bytes_full=12_000, bytes_plain=1_000, bytes_deflated=400, stages=stages
    )
    _print(_Results(rounds=7, sizes=[], claims=[], hop=NO_HOP, deltas=[costs], start=[], notes=[]))
    printed = capsys.readouterr().out
    for text in ("deltas", "7 rounds", "moving", "12,000", "12.0", "30.0", "3", "7.5"):
        assert text in printed


def test_the_start_of_the_shim_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    start = [measured("shim_ready", 20.5, ratio=1.75)]
    _print(_Results(rounds=7, sizes=[], claims=[], hop=NO_HOP, deltas=[], start=start, notes=[]))
    printed = capsys.readouterr().out
    for text in ("the start of the shim; 7 rounds", "shim_ready", "20.5", "1.75"):
        assert text in printed
