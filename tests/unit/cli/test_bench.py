# SPDX-License-Identifier: Apache-2.0
"""What the benchmark prints for people."""

import pytest

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
    _print(_Results(rounds=7, sizes=[], claims=[], hop=costs, start=[], notes=[]))
    printed = capsys.readouterr().out
    for text in ("time of a call; 7 rounds", "750.0", "1500.0", "1.5"):
        assert text in printed
    for text in ("CPU of a call; 7 rounds", "312.5", "625.0", "1.25", "httpx is [missing]"):
        assert text in printed
    none = HopCosts(stages=[], cpu=[], notes=[])
    start = [measured("shim_ready", 20.5, ratio=1.75)]
    _print(_Results(rounds=7, sizes=[], claims=[], hop=none, start=start, notes=[]))
    printed = capsys.readouterr().out
    assert "the hop" not in printed
    for text in ("the start of the shim; 7 rounds", "shim_ready", "20.5", "1.75"):
        assert text in printed
