# SPDX-License-Identifier: Apache-2.0
"""Rounds of measurements, and what is said about them. Pure but for the clock that comes in.

All stages run once a round, so that whatever drifts in the machine hits all of them alike, and each
round has an order of its own, so that none always runs behind the same other. The orders are the
same in every run.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Measured",
    "Stage",
    "Taken",
    "measured",
    "percentile",
    "run_rounds",
    "summary",
    "take_rounds",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One thing to measure."""

    name: str
    reference: str | None  # the stage that it is compared with; None: it is a reference only
    prepare: Callable[[], Callable[[], object]]
    """Not timed; gives what is timed."""

    calls: int = 1  # in what is timed; the results are of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One stage's result, in milliseconds."""

    stage: str
    median_ms: float
    p99_ms: float  # of few rounds it is the slowest one
    reference: str | None
    ratio: float | None  # of the medians, to the reference's
    spread: tuple[float, float] | None  # of the ratios within each round: the middle half of them


Taken = Mapping[str, Sequence[float]]
"""What each stage took in each round, in seconds; by its name."""


def run_rounds(
    stages: Sequence[Stage], *, rounds: int, warm_ups: int, clock_s: Callable[[], float]
) -> list[Measured]:
    """Measure each of *stages* *rounds* times, after *warm_ups* rounds that do not count.

    Raises:
        ValueError: nothing would be measured, or a reference is no stage.
    """
    return summary(stages, take_rounds(stages, rounds=rounds, warm_ups=warm_ups, clock_s=clock_s))


def take_rounds(
    stages: Sequence[Stage], *, rounds: int, warm_ups: int, clock_s: Callable[[], float]
) -> Taken:
    """The same, as it was taken."""
    if rounds < 1:
        raise ValueError(f"at least one round is measured, not {rounds}")
    names = [stage.name for stage in stages]
    for stage in stages:
        if stage.reference is not None and stage.reference not in names:
            raise ValueError(f"{stage.name} is compared with {stage.reference}, which is no stage")
    taken_s: dict[str, list[float]] = {name: [] for name in names}
    orders = random.Random(0)  # noqa: S311 - repeatable orders, not secrets
    for number in range(warm_ups + rounds):
        for stage in orders.sample(stages, len(stages)):
            timed = stage.prepare()
            start_s = clock_s()
            timed()
            end_s = clock_s()
            if number >= warm_ups:
                taken_s[stage.name].append((end_s - start_s) / stage.calls)
    return taken_s


def summary(stages: Sequence[Stage], taken: Taken) -> list[Measured]:
    """What *taken* comes to."""
    return [measured(stage.name, taken, reference=stage.reference) for stage in stages]


def measured(name: str, taken: Taken, *, reference: str | None) -> Measured:
    """What one stage of *taken* comes to, beside another one; rounds stand in the same order."""
    taken_s, spread = taken[name], None
    median_s, ratio = statistics.median(taken_s), None
    if reference is not None:
        ratio = median_s / statistics.median(taken[reference])
        ratios = [mine / its for mine, its in zip(taken_s, taken[reference], strict=True)]
        spread = percentile(ratios, 25), percentile(ratios, 75)
    return Measured(
        stage=name,
        median_ms=1000 * median_s,
        p99_ms=1000 * percentile(taken_s, 99),
        reference=reference,
        ratio=ratio,
        spread=spread,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of *values* that *percent* of them do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values have no percentile")
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]
