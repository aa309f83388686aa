# SPDX-License-Identifier: Apache-2.0
"""What two runs of one harness have to have in common, and what each has to show alone. Pure.

Both lost their owner between two calls. The one with deltas must be, to harness and model, the run
that it would have been without (H1, S1): the same bytes, the same tool calls, the same answer.
"""

from dataclasses import dataclass

from rollout_router.harness.port import Told
from rollout_router.harness.transcript import Transcript

__all__ = ["Expected", "Run", "differences", "faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What the scripted model and the kill make certain."""

    calls: int  # of the model
    calls_before_kill: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished run."""

    deltas: bool  # whether the gateway took deltas
    exit_code: int
    killed: str  # the worker that owned the rollout and was killed
    told: Told
    transcript: Transcript
    calls: int  # that the shim sent on
    bytes_full: int  # of the request bodies that the harness wrote
    bytes_sent: int  # of the request bodies that left the shim, resends included
    resyncs: int

    @property
    def name(self) -> str:
        """What people call it."""
        return "with deltas" if self.deltas else "in full"


def faults(run: Run, expected: Expected) -> list[str]:
    """What is wrong with one run, whatever the other did; empty where nothing is."""
    found = [f"the harness: {problem}" for problem in run.told.problems]
    if run.exit_code != 0:
        found.append(f"the harness exited with code {run.exit_code}")
    seen = {
        "answers that the harness took in": run.told.model_calls,
        "calls that the shim sent on": run.calls,
        "calls that the gateway recorded": len(run.transcript.bodies),
    }
    for what, count in seen.items():
        if count != expected.calls:
            found.append(f"{what}: {count}, expected {expected.calls}")
    if bad := [outcome for outcome in run.transcript.outcomes if outcome != "completed"]:
        found.append(f"calls that were not completed: {', '.join(bad)}")
    if any(call.result is None for call in run.transcript.tool_calls):
        found.append("the model was not shown the result of every tool call")
    found += _owner_faults(run, expected)
    found += _delta_faults(run)
    return [f"{run.name}: {fault}" for fault in found]


def differences(one: Run, other: Run) -> list[str]:
    """What the model or the harness saw differently; empty where the runs are the same."""
    pairs = {
        "the tool calls": (one.transcript.tool_calls, other.transcript.tool_calls),
        "the final answer": (one.told.answer, other.told.answer),
        "the exit code": (one.exit_code, other.exit_code),
    }
    found = [
        f"{what}: {left!r} {one.name}, {right!r} {other.name}"
        for what, (left, right) in pairs.items()
        if left != right
    ]
    bodies = zip(one.transcript.bodies, other.transcript.bodies, strict=False)  # counted in faults
    unequal = [str(number) for number, (a, b) in enumerate(bodies, start=1) if a != b]
    if unequal:
        found.append(f"the bytes of request {', '.join(unequal)}")
    return found


def _owner_faults(run: Run, expected: Expected) -> list[str]:
    owners = run.transcript.owners
    if len(owners) != 2:  # noqa: PLR2004 - before the kill and after it
        return [f"the rollout had {len(owners)} owners in a row, expected 2"]
    before, after = owners
    found = []
    if before.worker_id != run.killed or before.calls != expected.calls_before_kill:
        found.append(
            f"worker {before.worker_id} owned the first {before.calls} calls; worker {run.killed} "
            f"was to own {expected.calls_before_kill}, and was killed after them"
        )
    if after.worker_id == before.worker_id:
        found.append(f"worker {after.worker_id} went on after it was killed")
    if (after.claim_epoch or 0) <= (before.claim_epoch or 0):
        found.append(f"claim epoch {after.claim_epoch} followed {before.claim_epoch} (C2)")
    return found


def _delta_faults(run: Run) -> list[str]:
    """A frame is sent only after ``kept=`` was seen (S4), so saved bytes show that it was."""
    resyncs = 1 if run.deltas else 0
    found = []
    if run.resyncs != resyncs:
        found.append(f"{run.resyncs} resyncs, expected {resyncs}")
    if run.deltas and run.bytes_sent >= run.bytes_full:
        found.append(f"no bytes were saved: {run.bytes_sent} sent for {run.bytes_full}")
    if not run.deltas and run.bytes_sent != run.bytes_full:
        found.append(f"{run.bytes_sent} bytes were sent for {run.bytes_full}")
    return found
