# SPDX-License-Identifier: Apache-2.0
"""What a conformance run says: one document, and the tables that are made of it. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rollout_router.harness.compare import ASPECTS, Failure, Finding, Run, differences, faults
from rollout_router.harness.normal import RULES
from rollout_router.harness.plan import FLOORS, PLAIN_FLOORS, Mode
from rollout_router.harness.port import Dialect
from rollout_router.harness.scenario import Scenario
from rollout_router.tables import Table, markdown
from rollout_router.timings import GYM, SANDBOX, stages_of

__all__ = ["SCHEMA", "Variant", "findings", "page", "summary", "tables"]

SCHEMA: Final = 3
_SHOWN: Final = 3  # findings of one kind of one run
_INTRODUCTION: Final = """\
# Conformance

What one run of `rollout-router conformance --evidence FILE` found; FILE is this page. Real
harnesses played scripted tasks through the shim (the agents on the OpenAI SDK through a transport
in their process) and a gateway of two workers. **No real model was called**: a scripted one asked
for the tool calls. What the harnesses did with its answers, their requests, tools, retries and
compactions, is their own.

- *long*: 20 commands of 5 KB of output each, 21 calls. *mixed*: parallel tool calls, an output of
  100 KB, a subagent where the harness has them. *compaction*: 30 commands; after each ten the
  model says that the context is full, and the harness compacts. *faults*: a 503, a stream cut
  after its beginning, a connection closed before an answer, a 429.
- Behind a shim the rollout is owned by the worker that the shim's connection does not end at, so
  its calls take a hop.
- *in full*: deltas are off at the gateway (`--no-history-delta --route-always`). *owner killed*:
  SIGKILL to the worker that owns the rollout, while a command runs between two calls.
- Each run must end well alone: exit code, no retry or compaction but those that its scenario asks
  for, every command ran once and in order, every record is what the model saw and, by its
  digest, what the harness wrote, and each answer that the harness went on from stands in a
  record. It is compared with the run in full whose owner lived.
- *requests* are compared byte by byte, and *headers* field by field, without those of the last
  hop; where that fails, under the rules of the last table. Those of parallel conversations are
  compared without their order. *run*: whether it came to an end that can be compared.
- The commands' output is compressed 4.3 times by zlib; recorded outputs of 3 to 6 KB 2.6, 2.9 and
  4.3 times (quartiles). Ratios with compression are for texts like these. *not compressed* counts
  what the same frames would have had.
- Stages stand beside those of the run in full: *sandbox* in the shim, *gym* in the workers
  ([cli](cli.md#serve---server-timing)). Nothing is decoded: no stage reads JSON of a body. An
  agent on the SDK has no shim to measure.

"""
_DECODE: Final = "sandbox decode"  # where others decode JSON; it stands in the table, empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One harness in one dialect, and its runs of one scenario, the reference first."""

    harness: str
    dialect: Dialect
    scenario: Scenario
    runs: Sequence[Run | Failure]


def summary(variant: Variant) -> dict[str, Any]:
    """What one variant's runs came to, as JSON."""
    reference = variant.runs[0]
    rules: Counter[str] = Counter()
    runs = []
    for run in variant.runs:
        if isinstance(run, Failure):
            runs.append(_failed(run))
            continue
        found = faults(run, variant.scenario)
        if isinstance(reference, Run) and run is not reference:
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
    variants = list(variants)
    rows = [(variant, run) for variant in variants for run in variant["runs"]]
    ended = [(variant, run) for variant, run in rows if not run["failed"]]
    return [_difference_table(rows), _byte_table(ended), _stage_table(ended), _rule_table(variants)]


def findings(variants: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line a finding, the first of each kind in each run alone: the document has all of it."""
    lines = []
    for variant in variants:
        for run in variant["runs"]:
            name = ", ".join((*_name(variant), run["mode"]))
            seen: Counter[str] = Counter()
            for finding in run["findings"]:
                seen[finding["aspect"]] += 1
                if seen[finding["aspect"]] <= _SHOWN:
                    text = finding["text"].partition("\n")[0]
                    lines.append(f"{name}: {finding['aspect']}: {text}")
    return lines


def page(document: Mapping[str, Any]) -> str:
    """The document of a run as a page of Markdown."""
    lines = [f"- {name}: {value}" for name, value in document["versions"].items()]
    for harness, packages in document["harnesses"].items():
        lines.append(f"- {harness}: {', '.join(f'{n} {v}' for n, v in packages.items())}")
    reached = "loopback alone" if document["loopback_only"] else "the machine's network too"
    lines.append(f"- network that the harnesses could reach: {reached}")
    found = [f"- {line}" for line in findings(document["variants"])] or ["None."]
    sections = {"Versions and configuration": lines, "Findings": found}
    parts = ["\n".join([f"## {title}", "", *listed, ""]) for title, listed in sections.items()]
    return _INTRODUCTION + "\n".join([*parts, *map(markdown, tables(document["variants"]))])


_Rows = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]


def _run(run: Run, found: Sequence[Finding]) -> dict[str, Any]:
    return {
        "mode": run.mode.value,
        "failed": False,
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


def _failed(failure: Failure) -> dict[str, Any]:
    finding = Finding(aspect="run", text=failure.text)
    return {"mode": failure.mode.value, "failed": True, "findings": [asdict(finding)]}


def _stages(timings: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """The median of each stage, in milliseconds; None where no call had it."""
    calls = [stages_of(line) for line in timings]
    return {name: _median(c[name] for c in calls if name in c) for name in (*SANDBOX, *GYM)}


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(statistics.median(found), 3) if found else None


def _name(variant: Mapping[str, Any]) -> list[str]:
    return [f"{variant['harness']}, {variant['dialect']}", variant["scenario"]]


def _difference_table(rows: _Rows) -> Table:
    def cells(run: Mapping[str, Any]) -> list[str]:
        if run["failed"]:
            return ["failed" if column == "run" else "-" for column in ("", "", *ASPECTS)]
        found = Counter(finding["aspect"] for finding in run["findings"])
        counts = [str(found[aspect]) if found[aspect] else "same" for aspect in ASPECTS]
        return [str(run["calls"]), str(run["tool_calls"]), *counts]

    return Table(
        title="Differences from the run in full",
        columns=["harness", "scenario", "run", "calls", "tool calls made", *ASPECTS],
        rows=[[*_name(v), run["mode"], *cells(run)] for v, run in rows],
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
    return "-" if floor is None else f"{floor:g}"


def _stage_table(rows: _Rows) -> Table:
    local_hop, *others = SANDBOX
    names = [local_hop, _DECODE, *others, *GYM]

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


def _rule_table(variants: Iterable[Mapping[str, Any]]) -> Table:
    used: dict[str, list[str]] = {}
    for variant in variants:
        for rule, count in variant["rules"].items():
            used.setdefault(rule, []).append(f"{', '.join(_name(variant))}: {count}")
    return Table(
        title="Rules by which requests were made equal, and how often",
        columns=["rule", "why", "used"],
        rows=[[rule.name, rule.why, "; ".join(used.get(rule.name, ["never"]))] for rule in RULES],
    )
