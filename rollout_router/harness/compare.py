# SPDX-License-Identifier: Apache-2.0
"""What two runs of one harness have to have in common, and what each has to show alone. Pure.

With deltas or without, whatever died on the way, a run must be to harness and model the one that it
would have been (H1, S1): the same requests, tool calls, answers and end.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rollout_router.harness.model_log import Seen
from rollout_router.harness.normal import normalised, same
from rollout_router.harness.plan import FLOORS, PLAIN_FLOORS, Mode
from rollout_router.harness.port import Told
from rollout_router.harness.scenario import ANSWER_ID, Scenario
from rollout_router.harness.transcript import Transcript

__all__ = ["ASPECTS", "Failure", "Finding", "Run", "differences", "faults"]

_OK: Final = 200
_SHOWN: Final = 60  # characters before and after the place where two requests part

ASPECTS: Final = (
    "run",
    "requests",
    "headers",
    "tool calls",
    "answer",
    "usage",
    "exit code",
    "work",
    "call ids",
    "owners",
    "bytes",
)
"""What is looked at; each finding is about one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it has to be."""

    aspect: str  # of ASPECTS
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished run."""

    scenario: str
    mode: Mode
    wall_s: float
    exit_code: int
    killed: str | None  # the worker that owned the rollout and was killed
    told: Told
    transcript: Transcript
    seen: tuple[Seen, ...]  # by the model
    verified: tuple[str, ...]  # what the check of the work found wrong
    calls: int  # that the sandbox side sent on
    bytes_full: int  # of the request bodies that the harness wrote
    bytes_sent: int  # of the request bodies that left the sandbox, resends included
    bytes_plain: int  # the same, had nothing been compressed
    resyncs: int
    timings: tuple[Mapping[str, Any], ...]  # a call each; empty where nobody measured

    @property
    def times_fewer(self) -> float:
        """Bytes that the harness wrote for each one that was sent."""
        return self.bytes_full / self.bytes_sent

    @property
    def times_fewer_plain(self) -> float:
        """The same, had nothing been compressed."""
        return self.bytes_full / self.bytes_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that came to no end which can be compared; *text* says where it stopped."""

    mode: Mode
    text: str


def faults(run: Run, scenario: Scenario) -> list[Finding]:
    """What is wrong with one run, whatever the others did; empty where nothing is."""
    found = {
        "answer": [one for one in run.told.problems if not _expected(one, scenario)],
        "exit code": [f"the harness exited with {run.exit_code}"] if run.exit_code else [],
        "work": run.verified,
        "requests": _call_faults(run, scenario),
        "tool calls": [
            f"the model was not shown the result of {key}"
            for key, call in run.transcript.tool_calls.items()
            if call.result is None
        ],
        "call ids": _identity_faults(run),
        "owners": _owner_faults(run),
        "bytes": _byte_faults(run),
    }
    return [Finding(aspect=aspect, text=text) for aspect, texts in found.items() for text in texts]


def differences(run: Run, reference: Run, used: Counter[str]) -> list[Finding]:
    """What model or harness saw differently in *run*; the rules that were needed go to *used*."""
    pairs = (
        ("answer", "the final answer", run.told.answer, reference.told.answer),
        ("answer", "answers taken in", run.told.model_calls, reference.told.model_calls),
        ("usage", "LLM tokens", dict(run.told.usage), dict(reference.told.usage)),
        ("exit code", "the exit code", run.exit_code, reference.exit_code),
    )
    found = [
        Finding(aspect=aspect, text=f"{what}: {mine!r}, {reference.mode.value} {theirs!r}")
        for aspect, what, mine, theirs in pairs
        if mine != theirs
    ]
    mine, theirs = run.transcript.tool_calls, reference.transcript.tool_calls
    for key in sorted(mine.keys() | theirs.keys()):
        if not same(repr(mine.get(key)), repr(theirs.get(key)), used):
            text = f"{key}: {mine.get(key)}, {reference.mode.value} {theirs.get(key)}"
            found.append(Finding(aspect="tool calls", text=text))
    for aspect, ours, other in (
        ("requests", _requests(run), _requests(reference)),
        ("headers", _headers(run), _headers(reference)),
    ):
        texts = _unequal(ours, other, used)
        found += [Finding(aspect=aspect, text=text) for text in texts]
    return found


def _expected(problem: str, scenario: Scenario) -> bool:
    """Whether the scenario asked for what the harness found wrong."""
    return (problem.startswith("retried: ") and bool(scenario.faults)) or (
        problem.startswith("compacted: ") and scenario.compact_every is not None
    )


def _call_faults(run: Run, scenario: Scenario) -> list[str]:
    calls = run.transcript.calls
    found = []
    recorded = len(calls) + run.transcript.look_ups
    if run.calls != recorded:
        found.append(f"{run.calls} calls were sent on, {recorded} were recorded")
    failed = [call for call in calls if call.outcome != "completed" or call.status != _OK]
    if len(failed) != len(scenario.faults):
        found.append(f"{len(failed)} calls failed, {len(scenario.faults)} were to")
    if Counter(one.request_sha256 for one in run.seen) != Counter(c.request_sha256 for c in calls):
        found.append("what was recorded is not what the model saw")
    written = {line["sha256"] for line in run.timings}
    if strange := [call for call in calls if run.timings and call.request_sha256 not in written]:
        found.append(f"{len(strange)} of the requests are not what the harness wrote (H1)")
    return found


def _identity_faults(run: Run) -> list[str]:
    """The harness goes on from the answers that the records hold, and from no others."""
    calls = run.transcript.calls
    given = {one.answer_id for one in run.seen if one.answer_id is not None}
    recorded = {key for call in calls for key in ANSWER_ID.findall(call.response)}
    echoed = {key for call in calls for key in ANSWER_ID.findall(call.request)}
    echoed |= set(ANSWER_ID.findall(run.told.answer or ""))
    found = []
    if strange := sorted(echoed - recorded):
        found.append(f"the harness went on from answers that no record holds: {strange}")
    if strange := sorted(recorded - given):
        found.append(f"records hold answers that the model did not give: {strange}")
    if not ANSWER_ID.findall(run.told.answer or ""):
        found.append("the final answer names no call")
    return found


def _owner_faults(run: Run) -> list[str]:
    owners = run.transcript.owners
    expected = 1 if run.killed is None else 2
    if len(owners) != expected:
        return [f"the rollout had {len(owners)} owners in a row, expected {expected}"]
    if run.killed is None:
        return []
    before, after = owners
    found = []
    if before.worker_id != run.killed:
        found.append(f"worker {before.worker_id} owned the rollout, {run.killed} was killed")
    if after.worker_id == before.worker_id:
        found.append(f"worker {after.worker_id} went on after it was killed")
    if (after.claim_epoch or 0) <= (before.claim_epoch or 0):
        found.append(f"claim epoch {after.claim_epoch} followed {before.claim_epoch} (C2)")
    return found


def _byte_faults(run: Run) -> list[str]:
    """A frame is sent only after ``kept=`` was seen (S4), so saved bytes show that it was."""
    found = []
    resyncs = 1 if run.mode.deltas and run.mode.killed else 0
    if run.resyncs != resyncs:
        found.append(f"{run.resyncs} resyncs, expected {resyncs}")
    if not run.mode.deltas and run.bytes_sent != run.bytes_full:
        found.append(f"{run.bytes_sent} were sent for {run.bytes_full}")
    for what, times, floors in (
        ("times fewer", run.times_fewer, FLOORS),
        ("times fewer without compression", run.times_fewer_plain, PLAIN_FLOORS),
    ):
        floor = floors.get((run.scenario, run.mode), 1.0)
        if run.mode.deltas and times < floor:
            found.append(f"{times:.2f} {what}, expected {floor:g} or more")
    return found


def _requests(run: Run) -> Counter[tuple[str, str]]:
    return Counter((call.path, call.request) for call in run.transcript.calls)


def _headers(run: Run) -> Counter[tuple[str, str]]:
    return Counter((one.path, one.headers) for one in run.seen)


def _unequal(
    left: Counter[tuple[str, str]], right: Counter[tuple[str, str]], used: Counter[str]
) -> list[str]:
    """What stands on one side alone; parallel conversations come in any order, so all count."""
    left, right = _plain(left - right, used), _plain(right - left, used)
    left, right = left - right, right - left
    pairs = zip(sorted(left.elements()), sorted(right.elements()), strict=False)
    found = [_parted(one, other) for one, other in pairs]
    if left.total() != right.total():
        found.append(f"{left.total()} are new, {right.total()} are missing")
    return found


def _plain(texts: Counter[tuple[str, str]], used: Counter[str]) -> Counter[tuple[str, str]]:
    """What is left of them under the rules."""
    plain: Counter[tuple[str, str]] = Counter()
    for path, text in texts.elements():
        left, rules = normalised(text)
        plain[path, left] += 1
        used.update(rules)
    return plain


def _parted(one: tuple[str, str], other: tuple[str, str]) -> str:
    """Where two of them begin to differ."""
    (path, mine), (_, theirs) = one, other
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), len(mine))
    start, end = max(0, at - _SHOWN), at + _SHOWN
    return f"to {path}, from character {at}: {mine[start:end]!r}, not {theirs[start:end]!r}"
