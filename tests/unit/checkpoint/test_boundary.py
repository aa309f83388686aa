# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from support.recording import (
    DIGESTS,
    TASK,
    Gate,
    World,
    journal_in,
    on_a_loop,
    opened,
)

from rollout_router.checkpoint.boundary import (
    SCHEMA,
    BoundaryRecord,
    boundary_of,
    session_of,
)
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Opened
from rollout_router.checkpoint.rows import Recorded
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.tool_session import Boundary, SessionTask

SESSION_TASK = SessionTask.from_document(TASK)


async def boundaries(folder: Path) -> tuple[list[tuple[Opened, BoundaryRecord]], str]:
    """A session's boundary before each of its operations, and the environment's id."""
    journal, world, found = journal_in(folder), World(), list[tuple[Opened, BoundaryRecord]]()
    first = await opened(journal, 5)
    run = Run(journal, first.rollout, first.rows)

    class Looking(Gate):
        async def wait_open(self) -> None:
            now = await opened(journal, 5)
            at = boundary_of(now.rollout, now.rows, SESSION_TASK, run.environment_id)
            found.append((now, at))
            self.opens.set()

        def begin(self) -> bool:
            begun = super().begin()
            self.opens.clear()
            return begun

    run = Run(journal, first.rollout, first.rows, steps=Looking(is_open=False))
    await world.loop(run, TASK)
    journal.close()
    return found, run.environment_id


@on_a_loop
async def test_a_session_reaches_each_boundary_and_the_record_says_where(folder: Path) -> None:
    found, environment_id = await boundaries(folder)
    assert [record.kind for _, record in found] == [
        "pending_model",  # the environment is about to be
        "pending_model",
        "pending_action",
        "action_complete",
        "turn_complete",
        "pending_action",
        "turn_complete",
        "pending_close",
        "pending_verify",
    ]
    assert {record.kind for _, record in found} == set(get_args(Boundary))
    revisions = [0, 1, 1, 2, 3, 3, 4, 4, 5]
    outputs = [0, 0, 3, 4, 5, 7, 8, 9, 9]
    models = [0, 0, 1, 1, 1, 2, 2, 3, 3]
    for number, (now, record) in enumerate(found):
        asked = models[number]
        assert record.sequence == now.rollout.next == number + 1
        assert (record.claim_epoch, record.attempt, record.restarts) == (5, 1, 0)
        assert record.revisions == ({environment_id: revisions[number]} if number else {})
        assert len(record.output_items) == outputs[number]
        assert record.usage == (
            {"input_tokens": 10 * asked, "output_tokens": asked * (asked + 1) // 2} if asked else {}
        )
        assert record.cookies == {f"call-{turn}": "x" for turn in range(asked)}
        assert record.last_model_call_id == (f"call-{asked - 1}" if asked else None)
        assert record.budgets == {"steps_left": SESSION_TASK.steps_max - asked}
        stopped = "model_said_nothing" if number >= 7 else ""
        assert record.agent == {"environment_id": environment_id, "stopped": stopped}
        assert (record.pending is not None) == (
            record.kind in ("pending_action", "action_complete")
        )
        assert record.chain == now.rollout.head
        assert record.task_digest == digest(canonical(TASK))
        named = (record.loop_digest, record.configuration_digest)
        assert named == tuple(DIGESTS.values())
        assert len({record.chain for _, record in found}) == len(found)
    pending = [record.pending for _, record in found if record.pending is not None]
    assert [(one["action_cursor"], one["operation_id"]) for one in pending] == [
        (0, "r/3"), (1, "r/4"), (0, "r/6"),
    ]  # fmt: skip
    assert [len(one["actions"]) for one in pending] == [2, 2, 1]


@on_a_loop
async def test_a_record_is_the_same_on_the_other_side_of_json(folder: Path) -> None:
    for _, record in (await boundaries(folder))[0]:
        hop = json.loads(json.dumps(record.document()))
        assert hop == record.document()
        again = BoundaryRecord.from_document(hop)
        assert again == record
        assert _types(again.document()) == _types(record.document())


def _types(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _types(one) for name, one in value.items()}
    return [_types(one) for one in value] if isinstance(value, list) else type(value)


@on_a_loop
async def test_what_is_no_such_record_is_refused(folder: Path) -> None:
    found, _ = await boundaries(folder)
    document = found[2][1].document()
    wrong: dict[str, tuple[Any, ...]] = {
        "schema": (SCHEMA + 1, 0, True, "1", None, float(SCHEMA)),
        **dict.fromkeys(("claim_epoch", "attempt", "restarts", "sequence"), ("1", True, 1.0)),
        **dict.fromkeys(("rollout_id", "chain", "task_digest", "loop_digest"), (1, None)),
        "configuration_digest": (1, None),
        "kind": ("finished", "pending_seed", None, 1),
        "output_items": (None, {}, "x"),
        **dict.fromkeys(("usage", "revisions"), (None, [], {"a": "1"}, {"a": True})),
        "cookies": (None, [], {"a": 1}),
        "last_model_call_id": (1,),
        "budgets": (None, {}, {"steps_left": "1"}, {"steps_left": 1, "more": 1}),
        "pending": (1, [], {}, {**(document["pending"] or {}), "more": 1}),
        "agent": (None, {}, {"environment_id": "e", "stopped": 1}, {**document["agent"], "x": ""}),
    }
    assert wrong.keys() == document.keys()
    bad = [{**document, name: value} for name, values in wrong.items() for value in values]
    missing = [{name: document[name] for name in document if name != one} for one in document]
    others: list[Any] = [{**document, "more": 1}, None, [], "x"]
    for one in (*bad, *missing, *others):
        with pytest.raises(CheckpointRefusal, match="boundary") as refusal:
            BoundaryRecord.from_document(one)
        assert refusal.value.code == "unknown_schema"
    assert BoundaryRecord.from_document(document).document() == document


@on_a_loop
async def test_rows_of_another_loop_and_of_one_that_is_over_have_no_boundary(folder: Path) -> None:
    found, environment_id = await boundaries(folder)
    now, _ = found[-1]
    rollout, rows = now.rollout, now.rows
    values: dict[str, Any] = {"kind": "verify", "result": '{"reward":1,"details":0}'}
    over = replace(rows[0], sequence=rollout.next, **values)

    def refused(these: tuple[Recorded, ...]) -> None:
        with pytest.raises(CheckpointRefusal) as refusal:
            boundary_of(rollout, these, SESSION_TASK, environment_id)
        assert refusal.value.code == "unknown_schema"

    refused((*rows, over))
    refused((replace(rows[0], kind="other"), *rows[1:]))
    refused(rows[1:])
    for result in ("{}", "1", "[]", "null", '{"observation":1,"tools":1}'):
        refused((replace(rows[0], result=result), *rows[1:]))
    intent = replace(over, result=None)
    assert session_of((*rows, intent), SESSION_TASK, environment_id) == session_of(
        rows, SESSION_TASK, environment_id
    )
