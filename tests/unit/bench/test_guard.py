# SPDX-License-Identifier: Apache-2.0
"""The comparison with a recorded run."""

from typing import Any

import pytest

from rollout_router.bench.guard import grown, recorded
from rollout_router.bench.measure import Measured


def ratio(value: float, *, noise: float = 0.1) -> dict[str, Any]:
    return {"ratio": value, "low": value * (1 - noise), "high": value * (1 + noise)}


def test_ratios_are_recorded_and_references_are_not() -> None:
    stage = Measured(stage="s", median_ms=2, p99_ms=9, reference="r", ratio=2.0, spread=(1.5, 2.5))
    bare = Measured(stage="r", median_ms=1, p99_ms=1, reference=None, ratio=None, spread=None)
    assert recorded({"x s": stage, "x r": bare}) == {"x s": {"ratio": 2.0, "low": 1.5, "high": 2.5}}


@pytest.mark.parametrize(
    ("now", "noise", "margin", "is_grown"),
    [
        (1.0, 0.1, 0.0, False),
        (0.1, 0.1, 0.0, False),  # it shrank
        (1.2, 0.1, 0.0, False),  # within the noise of both
        (1.3, 0.1, 0.0, True),
        (1.3, 0.1, 0.25, False),  # within the margin
        (2.0, 0.1, 0.25, True),
        (2.0, 0.4, 0.25, False),  # a run of much noise
    ],
)
def test_a_ratio_has_grown_beyond_the_noise_of_both_runs_and_the_margin(
    now: float, noise: float, margin: float, *, is_grown: bool
) -> None:
    found = grown({"a": ratio(now, noise=noise)}, {"a": ratio(1.0)}, margin=margin)
    assert bool(found) is is_grown


def test_what_has_grown_is_named_with_both_figures() -> None:
    now, before = {"a": ratio(3.0), "new": ratio(9.0)}, {"a": ratio(1.0), "old": ratio(1.0)}
    (line,) = grown(now, before, margin=0.25)
    assert line == "a: 3, recorded 1; half of all rounds 2.7 or more, then 1.1 or less"


def test_runs_without_a_ratio_in_common_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="none of the recorded ratios"):
        grown({"a": ratio(1)}, {"b": ratio(1)}, margin=1)
