# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs: silent where they are the same, and one sentence a difference."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.runs import CALLS, DELTAS, FIRST, FULL, HEADERS, LAST, SCENARIO, recorded, seen

from rollout_router.harness.compare import ASPECTS, Run, differences, faults
from rollout_router.harness.plan import FLOORS, PLAIN_FLOORS, Mode
from rollout_router.harness.scenario import Fault
from rollout_router.harness.transcript import Ownership


def told(**changes: Any) -> Run:
    return replace(DELTAS, told=replace(DELTAS.told, **changes))


def recording(**changes: Any) -> Run:
    return replace(DELTAS, transcript=replace(DELTAS.transcript, **changes))


def owners(*owners: tuple[str, int, int]) -> Run:
    found = [Ownership(worker_id=w, claim_epoch=e, calls=n) for w, e, n in owners]
    return recording(owners=tuple(found))


def tool(**changes: Any) -> Run:
    return recording(tool_calls={FIRST: replace(DELTAS.transcript.tool_calls[FIRST], **changes)})


def requests(*requests: str) -> Run:
    pairs = zip(requests, CALLS, strict=False)
    return recording(calls=tuple(replace(call, request=request) for request, call in pairs))


def headers(text: str) -> Run:
    return replace(DELTAS, seen=(replace(DELTAS.seen[0], headers=text), *DELTAS.seen[1:]))


@pytest.mark.parametrize(
    "run", [DELTAS, FULL, replace(owners(("ada", 7, 2)), killed=None)], ids=lambda r: r.mode.value
)
def test_a_good_run_has_no_faults(run: Run) -> None:
    resyncs = 1 if run.mode.deltas and run.mode.killed else 0
    assert faults(replace(run, resyncs=resyncs), SCENARIO) == []


def test_h1_runs_that_saw_the_same_have_no_differences() -> None:
    used: Counter[str] = Counter()
    assert differences(DELTAS, FULL, used) == []
    assert not used


@pytest.mark.parametrize(
    ("run", "aspect", "fault"),
    [
        (replace(DELTAS, exit_code=1), "exit code", "exited with 1"),
        (told(problems=("the run was aborted",)), "answer", "aborted"),
        (told(problems=("retried: 502",)), "answer", "retried"),
        (told(problems=("compacted: it was full",)), "answer", "compacted"),
        (told(answer="done"), "call ids", "the final answer names no call"),
        (told(answer="done conf_main_9_9"), "call ids", "no record holds: ['conf_main_9_9']"),
        (replace(DELTAS, verified=("step 1 ran twice",)), "work", "ran twice"),
        (replace(DELTAS, calls=3), "requests", "3 calls were sent on, 2 were recorded"),
        (
            recording(calls=(CALLS[0], replace(CALLS[1], outcome="failed"))),
            "requests",
            "1 calls failed, 0 were to",
        ),
        (recording(calls=(CALLS[0], replace(CALLS[1], status=503))), "requests", "1 calls failed"),
        (replace(DELTAS, seen=DELTAS.seen[:1]), "requests", "not what the model saw"),
        (tool(result=None), "tool calls", f"the result of {FIRST}"),
        (owners(("ada", 7, 2)), "owners", "1 owners in a row"),
        (owners(("ada", 7, 1), ("bob", 8, 1), ("ada", 9, 1)), "owners", "3 owners in a row"),
        (owners(("bob", 7, 1), ("cid", 8, 1)), "owners", "bob owned the rollout, ada was killed"),
        (owners(("ada", 7, 1), ("ada", 8, 1)), "owners", "went on after it was killed"),
        (owners(("ada", 7, 1), ("bob", 7, 1)), "owners", "claim epoch 7 followed 7"),
        (replace(DELTAS, killed=None, resyncs=0, mode=Mode.DELTAS), "owners", "expected 1"),
        (replace(DELTAS, resyncs=0), "bytes", "0 resyncs, expected 1"),
        (replace(DELTAS, resyncs=2), "bytes", "2 resyncs, expected 1"),
        (replace(DELTAS, bytes_sent=301), "bytes", "1.00 times fewer, expected 1"),
        (replace(DELTAS, bytes_plain=301), "bytes", "1.00 times fewer without compression"),
        (replace(FULL, resyncs=1), "bytes", "1 resyncs, expected 0"),
        (replace(FULL, bytes_sent=299), "bytes", "299 were sent for 300"),
    ],
)
def test_each_fault_of_a_run_is_named(run: Run, aspect: str, fault: str) -> None:
    found = [finding for finding in faults(run, SCENARIO) if finding.aspect == aspect]
    assert len(found) == 1
    assert fault in found[0].text
    assert found[0].aspect in ASPECTS


def test_h1_a_request_that_the_harness_did_not_write_is_named() -> None:
    lines = [{"sha256": call.request_sha256} for call in CALLS]
    assert faults(replace(DELTAS, timings=tuple(lines)), SCENARIO) == []
    texts = [
        finding.text for finding in faults(replace(DELTAS, timings=tuple(lines[:1])), SCENARIO)
    ]
    assert texts == ["1 of the requests are not what the harness wrote (H1)"]


def test_an_answer_that_the_model_did_not_give_is_named() -> None:
    seen = (replace(DELTAS.seen[0], answer_id=None), DELTAS.seen[1])
    texts = [finding.text for finding in faults(replace(DELTAS, seen=seen), SCENARIO)]
    assert texts == [f"records hold answers that the model did not give: ['{FIRST}']"]


def test_what_a_scenario_asks_for_is_no_fault() -> None:
    faulty = replace(SCENARIO, faults={1: Fault.CUT}, compact_every=10)
    failed = recorded("go", "", outcome="failed")
    run = replace(
        recording(calls=(*CALLS, failed)),
        calls=3,
        seen=(*DELTAS.seen, seen(failed.request_sha256, None)),
    )
    run = replace(run, told=replace(run.told, problems=("retried: cut", "compacted: full")))
    assert faults(run, faulty) == []


@pytest.mark.parametrize(("floors", "sent"), [(FLOORS, "sent"), (PLAIN_FLOORS, "plain")])
def test_too_many_bytes_are_a_fault(floors: Mapping[tuple[str, Mode], float], sent: str) -> None:
    for (scenario, mode), floor in floors.items():
        run = replace(
            DELTAS, scenario=scenario, mode=mode, bytes_full=1000, bytes_sent=1, bytes_plain=1
        )
        few = run_sending(run, sent, int(1000 / floor))
        many = run_sending(run, sent, int(1000 / floor) + 1)
        assert len(faults(many, SCENARIO)) == len(faults(few, SCENARIO)) + 1


def run_sending(run: Run, name: str, count: int) -> Run:
    return replace(run, bytes_sent=count) if name == "sent" else replace(run, bytes_plain=count)


@pytest.mark.parametrize(
    ("run", "aspect", "difference"),
    [
        (told(answer="other"), "answer", f"'other', in full, owner killed 'done {LAST}'"),
        (told(model_calls=3), "answer", "answers taken in: 3, in full, owner killed 2"),
        (told(usage={"output": 8}), "usage", "{'output': 8}"),
        (replace(DELTAS, exit_code=1), "exit code", "1, in full"),
        (recording(tool_calls={}), "tool calls", f"{FIRST}: None"),
        (tool(result="y\n"), "tool calls", "result='y\\n'"),
        (requests("go", "gone"), "requests", "to responses, from character 2: 'gone', not 'go, "),
        (requests("go"), "requests", "0 are new, 1 are missing"),
        (headers(f"{HEADERS}; charset=utf-8"), "headers", "application/json; charset=utf-8', not"),
        (headers(HEADERS.replace("Bearer k", "Bearer j")), "headers", "from character 34: "),
        (
            headers(HEADERS.removeprefix("accept: */*\n")),
            "headers",
            "character 1: 'authorization",
        ),
    ],
)
def test_h1_each_difference_between_runs_is_named(run: Run, aspect: str, difference: str) -> None:
    found = differences(run, FULL, Counter())
    assert len(found) == 1
    assert found[0].aspect == aspect
    assert difference in found[0].text


def test_requests_of_parallel_conversations_may_come_in_another_order() -> None:
    assert differences(recording(calls=CALLS[::-1]), FULL, Counter()) == []


def test_requests_that_a_rule_makes_equal_are_equal_and_the_rule_is_told() -> None:
    one, other = (requests("go", f"Chunk ID: {name}") for name in ("ab", "cd"))
    used: Counter[str] = Counter()
    assert differences(one, replace(other, mode=Mode.FULL_KILLED), used) == []
    assert used == {"chunk of a command's output": 2}
