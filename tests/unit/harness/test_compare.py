# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs: silent where they are the same, and one sentence a difference."""

from dataclasses import replace
from typing import Any

import pytest

from rollout_router.harness.compare import Expected, Run, differences, faults
from rollout_router.harness.port import Told
from rollout_router.harness.transcript import Ownership, ToolCall, Transcript

EXPECTED = Expected(calls=3, calls_before_kill=1)
DELTAS = Run(
    deltas=True,
    exit_code=0,
    killed="ada",
    told=Told(answer="done", model_calls=3, problems=()),
    transcript=Transcript(
        bodies=("a", "b", "c"),
        outcomes=("completed",) * 3,
        owners=(
            Ownership(worker_id="ada", claim_epoch=7, calls=1),
            Ownership(worker_id="bob", claim_epoch=8, calls=2),
        ),
        tool_calls=(ToolCall(name="bash", arguments='{"command":"ls"}', result="x\n"),),
    ),
    calls=3,
    bytes_full=300,
    bytes_sent=200,
    resyncs=1,
)
FULL = replace(DELTAS, deltas=False, bytes_sent=300, resyncs=0)


def told(**changes: Any) -> Run:
    return replace(DELTAS, told=replace(DELTAS.told, **changes))


def seen(**changes: Any) -> Run:
    return replace(DELTAS, transcript=replace(DELTAS.transcript, **changes))


def owners(*owners: tuple[str, int, int]) -> Run:
    found = [Ownership(worker_id=w, claim_epoch=e, calls=n) for w, e, n in owners]
    return seen(owners=tuple(found))


@pytest.mark.parametrize("run", [DELTAS, FULL], ids=["deltas", "full"])
def test_a_good_run_has_no_faults(run: Run) -> None:
    assert faults(run, EXPECTED) == []


def test_h1_runs_that_saw_the_same_have_no_differences() -> None:
    assert differences(DELTAS, FULL) == []


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (replace(DELTAS, exit_code=1), "exited with code 1"),
        (told(problems=("a model call was tried again: '502'",)), "tried again"),
        (told(model_calls=2), "took in: 2, expected 3"),
        (replace(DELTAS, calls=4), "sent on: 4, expected 3"),
        (seen(bodies=("a", "b")), "recorded: 2, expected 3"),
        (seen(outcomes=("completed", "failed", "completed")), "not completed: failed"),
        (seen(tool_calls=(ToolCall(name="x", arguments="{}", result=None),)), "shown the result"),
        (owners(("ada", 7, 3)), "1 owners in a row"),
        (owners(("ada", 7, 1), ("bob", 8, 1), ("ada", 9, 1)), "3 owners in a row"),
        (owners(("bob", 7, 1), ("cid", 8, 2)), "worker ada was to own 1"),
        (owners(("ada", 7, 2), ("bob", 8, 1)), "owned the first 2 calls"),
        (owners(("ada", 7, 1), ("ada", 8, 2)), "went on after it was killed"),
        (owners(("ada", 7, 1), ("bob", 7, 2)), "claim epoch 7 followed 7"),
        (replace(DELTAS, resyncs=0), "0 resyncs, expected 1"),
        (replace(DELTAS, resyncs=2), "2 resyncs, expected 1"),
        (replace(DELTAS, bytes_sent=300), "no bytes were saved"),
        (replace(FULL, resyncs=1), "1 resyncs, expected 0"),
        (replace(FULL, bytes_sent=299), "299 bytes were sent for 300"),
    ],
)
def test_each_fault_of_a_run_is_named(run: Run, fault: str) -> None:
    found = faults(run, EXPECTED)
    assert len(found) == 1
    assert fault in found[0]
    assert found[0].startswith(run.name)


@pytest.mark.parametrize(
    ("run", "difference"),
    [
        (told(answer="other"), "the final answer: 'other' with deltas, 'done' in full"),
        (seen(tool_calls=()), "the tool calls"),
        (
            seen(tool_calls=(replace(DELTAS.transcript.tool_calls[0], result="y\n"),)),
            "the tool calls",
        ),
        (replace(DELTAS, exit_code=1), "the exit code"),
        (seen(bodies=("a", "x", "y")), "the bytes of request 2, 3"),
    ],
)
def test_h1_each_difference_between_runs_is_named(run: Run, difference: str) -> None:
    found = differences(run, FULL)
    assert len(found) == 1
    assert difference in found[0]
