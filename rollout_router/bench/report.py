# SPDX-License-Identifier: Apache-2.0
"""What a run of the benchmark says: one document, and a page that is made of it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from rollout_router.bench.figures import Part, Target
from rollout_router.bench.guard import recorded
from rollout_router.bench.measure import Measured
from rollout_router.tables import Table, markdown

__all__ = ["SCHEMA", "document", "missed", "notes", "page", "tables"]

SCHEMA: Final = 2
_WHOLE_FROM: Final = 1000
_INTRODUCTION: Final = """\
# Benchmarks

One run of `make bench`, which writes this page and [benchmarks.json](benchmarks.json). What each
stage is and how it is measured stands on [benchmarking.md](benchmarking.md). Read the ratios, each
to a reference **of the same run**: they survive a change of machine, the times do not.

"""


def document(machine: Mapping[str, Any], parts: Mapping[str, Part]) -> dict[str, Any]:
    """Everything that was measured, as JSON; parts that were left out are not in it."""
    stages: dict[str, Measured] = {}
    for part in parts.values():
        stages |= part.measured()
    return {
        "schema": SCHEMA,
        "machine": dict(machine),
        "notes": notes(parts.values()),
        "targets": [asdict(target) for part in parts.values() for target in part.targets()],
        "ratios": recorded(stages),
        "parts": {name: asdict(part) for name, part in parts.items()},
    }


def tables(parts: Iterable[Part]) -> list[Table]:
    """Targets first, then the tables of each part."""
    parts = list(parts)
    targets = [target for part in parts for target in part.targets()]
    found = [table for part in parts for table in part.tables()]
    return [_targets(targets), *found] if targets else found


def missed(parts: Iterable[Part]) -> list[str]:
    """A line for people for each target that was missed."""
    targets = [target for part in parts for target in part.targets()]
    return [
        f"target missed: {target.name} is {_figure(target.value)}, {target.kind} "
        f"{_figure(target.bound)}"
        for target in targets
        if not target.met
    ]


def notes(parts: Iterable[Part]) -> list[str]:
    """What could not be measured, and why."""
    return [note for part in parts for note in part.notes]


def page(machine: Mapping[str, Any], parts: Iterable[Part]) -> str:
    """The run as a page of Markdown."""
    parts = list(parts)
    lines = [f"- {name}: {value}" for name, value in machine.items()]
    lines += [f"- {note}" for note in notes(parts)]
    return _INTRODUCTION + "\n".join(
        ["## Machine and configuration", "", *lines, "", *map(markdown, tables(parts))]
    )


def _targets(targets: Iterable[Target]) -> Table:
    rows = [
        [
            target.name,
            _figure(target.value),
            f"{target.kind} {_figure(target.bound)}",
            "met" if target.met else "MISSED",
        ]
        for target in targets
    ]
    return Table(title="Targets", columns=["what", "measured", "has to be", ""], rows=rows)


def _figure(value: float) -> str:
    """Three digits of a ratio; of bytes all."""
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.3g}"
