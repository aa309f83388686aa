# SPDX-License-Identifier: Apache-2.0
"""Rounds and figures, with a clock that the test turns."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from rollout_router.bench.measure import Stage, percentile, run_rounds


class Clock:
    """Stages take as long as they are told to."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ran: list[str] = []

    def stage(self, name: str, *takes_s: float, reference: str | None = None) -> Stage:
        left = list(takes_s)

        def prepare() -> Callable[[], object]:
            self.now_s += 1000  # preparation is not timed

            def timed() -> None:
                self.ran.append(name)
                self.now_s += left.pop(0)

            return timed

        return Stage(name=name, reference=reference, prepare=prepare)

    def time_s(self) -> float:
        return self.now_s


def test_medians_and_ratios_are_those_of_the_rounds_that_count() -> None:
    clock = Clock()
    slow = clock.stage("slow", 99, 4, 8, 6, reference="fast")
    fast = clock.stage("fast", 99, 1, 2, 3)
    found = run_rounds([slow, fast], rounds=3, warm_ups=1, clock_s=clock.time_s)
    assert [(each.stage, each.reference) for each in found] == [("slow", "fast"), ("fast", None)]
    assert [each.median_ms for each in found] == pytest.approx([6000, 2000])
    assert [each.p99_ms for each in found] == pytest.approx([8000, 3000])
    assert found[0].ratio == pytest.approx(3)
    assert found[0].spread == pytest.approx((2, 4))
    assert (found[1].ratio, found[1].spread) == (None, None)


def test_the_results_of_several_calls_that_are_timed_together_are_of_one() -> None:
    clock = Clock()
    stages = [clock.stage("one", 3), replace(clock.stage("ten", 60, reference="one"), calls=10)]
    one, ten = run_rounds(stages, rounds=1, warm_ups=0, clock_s=clock.time_s)
    assert (one.median_ms, ten.median_ms, ten.p99_ms) == pytest.approx((3000, 6000, 6000))
    assert ten.ratio == pytest.approx(2)


def orders(names: str, rounds: int) -> list[str]:
    clock = Clock()
    stages = [clock.stage(name, *[1] * rounds) for name in names]
    run_rounds(stages, rounds=rounds - 1, warm_ups=1, clock_s=clock.time_s)
    ran = "".join(clock.ran)
    return [ran[start : start + len(names)] for start in range(0, len(ran), len(names))]


def test_each_round_runs_every_stage_once() -> None:
    assert [sorted(order) for order in orders("abc", 20)] == [["a", "b", "c"]] * 20


def test_every_stage_runs_behind_every_other_and_in_repeatable_orders() -> None:
    found = orders("abc", 20)
    behind = {pair for order in found for pair in itertools.pairwise(order)}
    assert len(behind) == 6
    assert orders("abc", 20) == found


@pytest.mark.parametrize("rounds", [0, -1])
def test_no_rounds_are_no_measurement(rounds: int) -> None:
    with pytest.raises(ValueError, match="at least one round"):
        run_rounds([], rounds=rounds, warm_ups=0, clock_s=Clock().time_s)


def test_a_reference_that_is_not_measured_is_refused() -> None:
    stage = Clock().stage("a", 1, reference="b")
    with pytest.raises(ValueError, match="which is no stage"):
        run_rounds([stage], rounds=1, warm_ups=0, clock_s=Clock().time_s)


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [(1, 99, 1), (2, 99, 2), (100, 99, 99), (101, 99, 100), (1000, 99, 990), (10, 50, 5)],
)
def test_a_percentile_is_the_nearest_rank(count: int, percent: float, expected: float) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 99)
