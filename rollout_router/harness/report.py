# SPDX-License-Identifier: Apache-2.0
"""What a conformance run says: one document, and the tables that are made of it. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rollout_router.harness.compare import ASPECTS, Finding, Run, differences, faults
from rollout_router.harness.normal import RULES
from rollout_router.harness.plan import FLOORS, PLAIN_FLOORS, Mode
from rollout_router.harness.port import Dialect
from rollout_router.harness.scenario import Scenario

__all__ = ["SCHEMA", "Table", "Variant", "markdown", "summary", "tables"]

SCHEMA: Final = 2
_SANDBOX: Final = {"local hop": "local_hop_ms", "delta": "delta_ms", "other": "other_ms"}
_GYM: Final = ("claim", "admission", "read", "hop", "rebuild")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text in rows and columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One harness in one dialect, and its runs of one scenario, the reference first."""

    harness: str
    dialect: Dialect
    scenario: Scenario
    runs: Sequence[Run]


def summary(variant: Variant) -> dict[str, Any]:
    """What one variant's runs came to, as JSON."""
    reference = variant.runs[0]
    rules: Counter[str] = Counter()
    runs = []
    for run in variant.runs:
        found = faults(run, variant.scenario)
        if run is not reference:
            found += differences(run, reference, rules)
        runs.append(_run(run, found))
    return {
        "harness": variant.harness,
        "dialect": variant.dialect.value,
        "scenario": variant.scenario.name,
        "rules": dict(sorted(rules.items())),
        "runs": runs,
    }


def tables(variants: Iterable[Mapping[str, Any]]) -> list[Table]:
    """Differences, bytes and stages of a call, from :func:`summary` of each variant."""
    rows = [(variant, run) for variant in variants for run in variant["runs"]]
    return [_difference_table(rows), _byte_table(rows), _stage_table(rows), _rule_table(rows)]


def markdown(table: Table) -> str:
    """A table as Markdown, under its title."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    return f"### {table.title}\n\n{text}\n"


_Rows = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _run(run: Run, found: Sequence[Finding]) -> dict[str, Any]:
    return {
        "mode": run.mode.value,
        "wall_s": round(run.wall_s, 2),
        "exit_code": run.exit_code,
        "calls": run.calls,
        "tool_calls": len(run.transcript.tool_calls),
        "model_calls_told": run.told.model_calls,
        "answer": run.told.answer,
        "usage": dict(run.told.usage),
        "bytes_full": run.bytes_full,
        "bytes_sent": run.bytes_sent,
        "bytes_plain": run.bytes_plain,
        "times_fewer": round(run.times_fewer, 1),
        "times_fewer_plain": round(run.times_fewer_plain, 1),
        "floor": FLOORS.get((run.scenario, run.mode)),
        "floor_plain": PLAIN_FLOORS.get((run.scenario, run.mode)),
        "resyncs": run.resyncs,
        "killed": run.killed,
        "owners": [asdict(owner) for owner in run.transcript.owners],
        "stages_ms": _stages(run.timings),
        "findings": [asdict(finding) for finding in found],
    }


def _stages(timings: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The median of each stage, in milliseconds; None where no call had it."""
    calls = [{**call, **_server(call.get("server_timing") or "")} for call in timings]
    found: dict[str, float | None] = {}
    for name, key in _SANDBOX.items():
        found[f"sandbox {name}"] = _median(call[key] for call in calls)
    for name in _GYM:
        found[f"gym {name}"] = _median(call[name] for call in calls if name in call)
    found["gym other"] = _median(
        max(0.0, call["wait_ms"] - sum(call.get(name, 0.0) for name in (*_GYM, "app")))
        for call in calls
        if "app" in call
    )
    return found


def _server(header: str) -> dict[str, float]:
    """``Server-Timing`` by name, in milliseconds."""
    found = {}
    for entry in filter(None, map(str.strip, header.split(","))):
        name, _, duration = entry.partition(";dur=")
        if duration:
            found[name] = float(duration)
    return found


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(statistics.median(found), 3) if found else None


def _name(variant: Mapping[str, Any]) -> list[str]:
    return [f"{variant['harness']}, {variant['dialect']}", variant["scenario"]]


def _difference_table(rows: _Rows) -> Table:
    def cells(run: Mapping[str, Any]) -> list[str]:
        found = Counter(finding["aspect"] for finding in run["findings"])
        return [str(found[aspect]) if found[aspect] else "same" for aspect in ASPECTS]

    return Table(
        title="Differences from the run in full",
        columns=["harness", "scenario", "run", "calls", "tool calls made", *ASPECTS],
        rows=[
            [*_name(v), run["mode"], str(run["calls"]), str(run["tool_calls"]), *cells(run)]
            for v, run in rows
        ],
    )


def _byte_table(rows: _Rows) -> Table:
    return Table(
        title="Bytes of request bodies",
        columns=[
            *("harness", "scenario", "run", "written", "sent", "times fewer", "at least"),
            *("not compressed", "times fewer", "at least", "resyncs"),
        ],
        rows=[
            [
                *_name(v),
                run["mode"],
                f"{run['bytes_full']:,}",
                f"{run['bytes_sent']:,}",
                f"{run['times_fewer']:.1f}",
                _floor(run["floor"]),
                f"{run['bytes_plain']:,}",
                f"{run['times_fewer_plain']:.1f}",
                _floor(run["floor_plain"]),
                str(run["resyncs"]),
            ]
            for v, run in rows
            if run["mode"] not in {Mode.FULL.value, Mode.FULL_KILLED.value}
        ],
    )


def _floor(floor: float | None) -> str:
    return "-" if floor is None else f"{floor:.0f}"


def _stage_table(rows: _Rows) -> Table:
    names = [*(f"sandbox {name}" for name in ("local hop", "decode", "delta", "other"))]
    names += [f"gym {name}" for name in (*_GYM, "other")]

    def cell(run: Mapping[str, Any], name: str) -> str:
        value = run["stages_ms"].get(name)
        return "-" if value is None else f"{value:.3f}"

    shown = {Mode.FULL.value, Mode.DELTAS.value}
    return Table(
        title="Stages of a call, median milliseconds; nothing is decoded",
        columns=["harness", "scenario", "run", *names],
        rows=[
            [*_name(v), run["mode"], *(cell(run, name) for name in names)]
            for v, run in rows
            if run["mode"] in shown and v["scenario"] == "long"
        ],
    )


def _rule_table(rows: _Rows) -> Table:
    used: dict[str, list[str]] = {}
    for variant, run in rows:
        if run is variant["runs"][0]:
            for rule, count in variant["rules"].items():
                name = ", ".join([variant["harness"], variant["dialect"], variant["scenario"]])
                used.setdefault(rule, []).append(f"{name}: {count}")
    return Table(
        title="Rules by which requests were made equal, and how often",
        columns=["rule", "why", "used"],
        rows=[[rule.name, rule.why, "; ".join(used.get(rule.name, ["never"]))] for rule in RULES],
    )
