# SPDX-License-Identifier: Apache-2.0
"""The forms in which each part of the benchmark says what it found. Pure.

A part is a frozen dataclass, so that all its figures are JSON as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from rollout_router.bench.measure import Measured
from rollout_router.tables import Table

__all__ = ["Part", "Target", "Unit", "at_least", "at_most", "stage_table"]

Unit = Literal["ms", "µs"]
_PER_MS: Final[Mapping[Unit, tuple[int, int]]] = {"ms": (1, 3), "µs": (1000, 1)}  # and digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a figure has to be, and whether it is."""

    name: str
    value: float
    bound: float
    kind: Literal["at most", "at least"]
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(ABC):
    """What one part of the benchmark found; all its fields are JSON, or dataclasses of it."""

    notes: list[str] = field(default_factory=list)  # what could not be measured, and why

    @abstractmethod
    def tables(self) -> list[Table]:
        """The figures, for people."""

    @abstractmethod
    def measured(self) -> dict[str, Measured]:
        """Each stage by a name that is the same in every run of this part."""

    def targets(self) -> list[Target]:
        """What has to be so in each run."""
        return []


def at_most(name: str, value: float, bound: float) -> Target:
    """A target that *value* meets where it is no more than *bound*."""
    return Target(name=name, value=value, bound=bound, kind="at most", met=value <= bound)


def at_least(name: str, value: float, bound: float) -> Target:
    """A target that *value* meets where it is no less than *bound*."""
    return Target(name=name, value=value, bound=bound, kind="at least", met=value >= bound)


def stage_table(title: str, stages: Iterable[Measured], unit: Unit) -> Table:
    """Stages with their times and their ratios, the quartiles of the rounds beside them."""
    per_ms, digits = _PER_MS[unit]
    rows = []
    for stage in stages:
        times = (stage.median_ms, stage.p99_ms)
        ratio = "" if stage.ratio is None else f"{stage.ratio:.3g}"
        spread = "" if stage.spread is None else f"{stage.spread[0]:.3g} to {stage.spread[1]:.3g}"
        shown = [f"{per_ms * time_ms:.{digits}f}" for time_ms in times]
        rows.append([stage.stage, *shown, ratio, spread, stage.reference or ""])
    columns = ["stage", f"median {unit}", f"p99 {unit}", "ratio", "half of all rounds", "to"]
    return Table(title=title, columns=columns, rows=rows)
