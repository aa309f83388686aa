# SPDX-License-Identifier: Apache-2.0
"""A real agent through the gateways, and what is asked of a session that continues.

Each test is one line of that list. The oracle is a rollout of the same task that nothing
interrupted: payloads are compared byte for byte, and every step of the world draws from a generator
that the payload shows, so one that was lost or done twice shows too.
"""

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.gateway import invoked
from support.policy import REWARD
from support.trio import ERRANDS, MESSAGE, RUN, Trio, payload_of, prompted

from rollout_router.checkpoint.errors import CODES
from rollout_router.checkpoint.wire import Operation

PARKED = '{"error": {"code": "checkpoint_parked", "message": "wait"}}'
BUSY = '{"error": {"code": "overloaded", "message": "wait"}}'
SOON = {"retry-after": "0"}
REFUSALS = [(409, PARKED, {}), (503, BUSY, SOON), (429, BUSY, SOON)]
BOUNDARIES = {  # what a session has in hand just before it
    "pending_model": "seed#done",
    "pending_action": "responses#done",
    "action_complete": "step#done 1",
    "turn_complete": "step#done 2",
    "pending_close": "step#done 4",
    "pending_verify": "close#done",
}


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def changed(file: Path, where: str, column: str, value: Any) -> Any:
    """Change a value behind the back of whoever keeps it; what it was."""
    with closing(sqlite3.connect(file)) as db, db:
        table, _, condition = where.partition(" WHERE ")
        (row,) = db.execute(f"SELECT {column} FROM {where}")  # noqa: S608 - words of this page
        update = f"UPDATE {table} SET {column}=? WHERE {condition}"  # noqa: S608 - as above
        assert db.execute(update, (value,)).rowcount == 1
    return row[0]


def test_it_rebinds_the_same_environment_and_repeats_no_close_and_no_step(trio: Trio) -> None:
    first, _ = trio.held("rebind", "step 2")
    before = trio.reported("rebind")
    trio.kill_owner("agent", "rebind")
    done = trio.finish("rebind")
    assert first.exception() or first.result().status_code == 502
    assert payload_of(done) == trio.reference()
    assert json.loads(payload_of(done))["reward"] == REWARD
    after = trio.reported("rebind")[len(before) :]
    assert after[0] == before[-1]  # the next action, under the same name
    applied = Counter(one for one in (*before, *after) if one[0].endswith("#done"))
    applied.pop(("step#done", before[-1][1]))
    assert set(applied.values()) == {1}
    rows = trio.session("rebind")["operations"]
    assert len({row["environment_id"] for row in rows} - {None}) == 1


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_prepare_commit_replace_restore_and_resume_at_every_boundary(
    trio: Trio, tmp_path: Path, times: int
) -> None:
    """Twice: the second checkpoint still holds what the first one restored."""
    names = {name: f"{name}-{times}" for name in BOUNDARIES}
    waits = trio.post(f"waits-{times}", MESSAGE)
    held = {name: trio.held(names[name], until)[1] for name, until in BOUNDARIES.items()}
    first = f"c1-of-{times}"
    hasty = trio.checkpoint("prepare", first, "--wait-seconds", "0")
    assert hasty.exit_code == 1
    blockers = {one["rollout_id"] for one in json.loads(hasty.stdout)["blockers"]}
    assert blockers == {*names.values()}
    for call in held.values():
        call.answer()
    assert trio.checkpoint("prepare", first).exit_code == 0
    stood = {name: boundary(trio, names[name]) for name in BOUNDARIES}
    assert {name: stands["kind"] for name, stands in stood.items()} == {n: n for n in BOUNDARIES}
    sampled = [len(trio.samples(names[name])) for name in BOUNDARIES]
    assert sampled == [0, 1, 1, 1, 3, 3]

    checkpoints = [first, *(f"c{number}-of-{times}" for number in range(2, times + 1))]
    for checkpoint_id in checkpoints:
        assert trio.checkpoint("prepare", checkpoint_id).exit_code == 0
        kept = replaced(trio, checkpoint_id, tmp_path)
        assert {name: kept[names[name]] for name in BOUNDARIES} == {n: n for n in BOUNDARIES}
        assert {name: boundary(trio, names[name]) for name in BOUNDARIES} == stood
        trio.resume(checkpoint_id)
    assert {payload_of(trio.finish(one)) for one in names.values()} == {trio.reference()}
    assert [len(trio.samples(names[name])) for name in BOUNDARIES] == [3 - n for n in sampled]
    assert trio.finish(f"waits-{times}").content == waits.content  # delivered again, not done again
    assert trio.samples(f"waits-{times}") == []


def boundary(trio: Trio, rollout_id: str) -> dict[str, Any]:
    """Where a rollout stands, without the fence, which belongs to a deployment."""
    stands: dict[str, Any] = trio.session(rollout_id)["boundary"]
    return {name: value for name, value in stands.items() if name != "claim_epoch"}


def replaced(trio: Trio, checkpoint_id: str, archive: Path) -> dict[str, str | None]:
    """Publish what is prepared, kill everything, and restore it where nothing is.

    Returns:
        The boundary of each rollout that was published; None of one that is not open.
    """
    places = ("--archive", str(archive), *trio.environment())
    assert trio.checkpoint("commit", checkpoint_id, *places).exit_code == 0
    who = ("--instance", "agent", "--run", RUN)
    inspected = trio.checkpoint("inspect", checkpoint_id, *places[:2], *who, places=False)
    kept = json.loads(inspected.stdout)["rollouts"]
    trio.replace()
    for _ in range(2):  # again is fine
        restored = trio.checkpoint("restore", checkpoint_id, *places, *who)
        assert json.loads(restored.stdout)["rollouts"] == Counter(one["kind"] for one in kept)
    return {one["rollout_id"]: one["boundary"] for one in kept}


def test_responses_usage_cookies_and_pending_actions_are_applied_once(trio: Trio) -> None:
    """An answer of the model is lost, and then its agent dies between the actions of one turn."""
    _, call = trio.held("once", "responses#done 1", ERRANDS)
    call.answer("{}", status=502)
    prompted(trio.control, "once", "step#done 1")
    stands = trio.session("once")["boundary"]
    assert (stands["kind"], stands["pending"]["action_cursor"]) == ("pending_action", 0)
    trio.kill_owner("agent", "once")
    result = json.loads(payload_of(trio.finish("once", ERRANDS)))
    assert result == json.loads(trio.reference(ERRANDS))
    drawn = [one["id"] for one in trio.samples("once")]
    assert drawn == [drawn[0], *result["model_call_ids"]]  # the one that was lost, and each once
    made = [item["call_id"] for item in result["output"] if item["type"] == "function_call"]
    answered = [item["call_id"] for item in result["output"] if "output" in item]
    assert sorted(made) == sorted(answered) == sorted({*made})
    asked = [one["cookies"] for one in trio.samples("once")]
    assert {one.get("home") for one in asked[2:]} == {result["cookies"]["home"]}
    assert len({one["turn"] for one in asked[2:]} | {result["cookies"]["turn"]}) == 10
    rows = {row["sequence"]: row["orphans"] for row in trio.session("once")["operations"]}
    assert {number: orphans for number, orphans in rows.items() if orphans} == {2: 1}


@pytest.mark.parametrize("until", ["responses 2", "step 2", "verify"])
def test_a_refusal_does_not_advance(trio: Trio, until: str) -> None:
    rollout_id = f"refused-{until.replace(' ', '-')}"
    waiting, call = trio.held(rollout_id, until)
    stands = trio.session(rollout_id)
    for status, body, headers in REFUSALS:
        call.answer(body, status=status, headers=headers)
        again = trio.control.next_call(rollout_id)
        assert again.headers["operation-id"] == call.headers["operation-id"]
        assert again.path == call.path
        assert trio.session(rollout_id) == stands  # its number, items, usage and cookies
        call = again
    trio.control.unhold(rollout_id)
    call.answer()
    assert payload_of(waiting.result()) == trio.reference()


def test_completed_and_unacknowledged_is_never_resumable(trio: Trio, tmp_path: Path) -> None:
    done = trio.post("done", MESSAGE)
    reports = trio.reported("done")
    again = trio.post("done", MESSAGE)
    assert again.content == done.content  # the receipt, too
    assert trio.reported("done") == reports  # nothing was done for it
    shown = trio.session("done")
    assert (shown["session"]["status"], shown["boundary"]) == ("completed", None)
    assert trio.checkpoint("prepare", "of-done").exit_code == 0
    commit = ("commit", "of-done", "--archive", str(tmp_path), *trio.environment())
    refused = trio.checkpoint(*commit, "--rollout", "done")
    assert (refused.exit_code, "[completed_in_scope]" in refused.output) == (4, True)
    trio.resume("of-done")
    receipt = {"receipt": done.json()["receipt"]}
    environment_id = shown["operations"][0]["environment_id"]
    assert trio.exported(environment_id).status_code == 200
    for _ in range(2):
        assert trio.post("done", receipt, to="acknowledge").json() == {
            "acknowledged": receipt["receipt"]
        }
    assert trio.exported(environment_id).status_code == 404
    assert code_of(trio.post("done", MESSAGE)) == (410, "result_acknowledged")


ENVIRONMENT_CODES = [  # code, status, how it is asked: kind, sequence, claim epoch, more
    ("stale_attempt", 409, "step", 3, 4, {"text": "Hello?"}),
    ("stale_operation", 409, "step", 1, 5, {"text": "Hello?"}),
    ("operation_conflict", 409, "step", 2, 5, {"text": "Another text."}),
    ("environment_exists", 409, "seed", 3, 5, {"scenario": "message", "seed": 1}),
]


@pytest.mark.parametrize(
    ("code", "status", "kind", "sequence", "epoch", "document"),
    ENVIRONMENT_CODES,
    ids=[one[0] for one in ENVIRONMENT_CODES],
)
def test_an_environment_fails_closed(
    trio: Trio, *, code: str, status: int, kind: str, sequence: int, epoch: int, document: Any
) -> None:
    operation = Operation(
        rollout_id=code, sequence=1, store_id="s", claim_epoch=5, environment_id=f"of-{code}"
    )
    seeded = trio.operate(operation, "seed", {"scenario": "message", "seed": 1})
    assert seeded.status_code == 200
    stepped = trio.operate(replace(operation, sequence=2), "step", {"text": "Hello?"})
    assert stepped.status_code == 200
    before = trio.exported(f"of-{code}").content
    wrong = replace(operation, sequence=sequence, claim_epoch=epoch)
    assert code_of(trio.operate(wrong, kind, document)) == (status, code)
    assert trio.exported(f"of-{code}").content == before


OPERATION = "operation WHERE sequence=2 AND"
DAMAGE = {  # code: file, row, column, value
    "task_changed": ("journal", "rollout WHERE", "task", "{}"),
    "loop_changed": ("journal", "rollout WHERE", "loop_digest", "another"),
    "configuration_changed": ("journal", "rollout WHERE", "configuration_digest", "another"),
    "stale_attempt": ("journal", "rollout WHERE", "claim_epoch", 1 << 62),
    "chain_broken": ("journal", OPERATION, "result", '{"reward": 1}'),
    "gap": ("journal", OPERATION, "sequence", 7),
    "revision_mismatch": ("environments", "environment WHERE", "revision", 7),
}


@pytest.mark.parametrize("code", DAMAGE)
def test_a_session_fails_closed(trio: Trio, code: str) -> None:
    """And it goes on where what was changed is put back, or begins anew where it was set aside."""
    file, row, column, value = DAMAGE[code]
    rollout_id = f"broken-{code}"
    there = (getattr(trio, file), f"{row} rollout_id='{rollout_id}'", column)
    trio.left_open(rollout_id, "step 1")
    was = changed(*there, value)
    before = trio.session(rollout_id)
    refused = trio.post(rollout_id, MESSAGE)
    assert code_of(refused) == (CODES[code].status, code)
    assert "reward" not in refused.json()
    after = trio.session(rollout_id)
    assert after["operations"] == before["operations"]
    if CODES[code].outcome == "refused":
        assert after == before
        changed(*there, was)
    else:
        assert (after["session"]["status"], after["session"]["reason"]) == ("quarantined", code)
        assert code_of(trio.post(rollout_id, MESSAGE)) == (409, "rollout_quarantined")
        journal = ("--journal", str(trio.journal), "--yes")
        assert invoked("sessions", "restart", rollout_id, *journal).exit_code == 0
    assert payload_of(trio.post(rollout_id, MESSAGE)) == trio.reference()


def test_what_is_no_task_and_no_receipt_is_refused(trio: Trio) -> None:
    trio.left_open("asked", "step 1")
    before = trio.session("asked")
    expected = {
        ("run", '{"scenario": 1}'): (400, "task_invalid"),
        ("run", '{"scenario": "message", "seed": 1}'): (409, "task_changed"),
        ("acknowledge", '{"receipt": "x"}'): (409, "rollout_open"),
        ("acknowledge", "[]"): (400, "acknowledgement_invalid"),
    }
    answers = {
        (to, document): code_of(trio.post("asked", json.loads(document), to=to))
        for to, document in expected
    }
    assert answers == expected
    assert trio.session("asked")["operations"] == before["operations"]
    unknown = trio.post("never-seen", {"receipt": "x"}, to="acknowledge")
    assert code_of(unknown) == (404, "rollout_unknown")
    trio.post("taken", MESSAGE)
    wrong = trio.post("taken", {"receipt": "x"}, to="acknowledge")
    assert code_of(wrong) == (409, "receipt_mismatch")
    assert payload_of(trio.post("taken", MESSAGE)) == trio.reference()


def test_a_checkpoint_fails_closed(trio: Trio, tmp_path: Path) -> None:
    """One code after the other; none changes a session, and none publishes."""
    trio.left_open("kept", "step 1")
    before = trio.session("kept")
    archive, other = str(tmp_path / "archive"), str(tmp_path / "other")
    who = ("--instance", "agent", "--run")
    places = ("--state-dir", str(trio.agent.state_dir), "--journal")
    elsewhere = str(tmp_path / "new.sqlite3")

    def commit(name: str, where: str = archive, rollout_id: str = "kept") -> Result:
        flags = ("--archive", where, *trio.environment(), "--rollout", rollout_id)
        return trio.checkpoint("commit", name, *flags)

    def restore(name: str, where: str = archive, run: str = RUN, into: str = elsewhere) -> Result:
        flags = ("--archive", where, *trio.environment(), *who, run, *places, into)
        return trio.checkpoint("restore", name, *flags, places=False)

    def prepare(name: str) -> Result:
        return trio.checkpoint("prepare", name)

    assert failed(commit("none")) == (4, "checkpoint_phase")
    assert prepare("f3").exit_code == 0
    assert failed(prepare("f2")) == (4, "checkpoint_busy")
    assert failed(commit("f3", rollout_id="unheard-of")) == (4, "rollout_unknown")
    trio.resume("f3")
    assert failed(commit("f3")) == (4, "checkpoint_abandoned")
    assert not list(Path(archive).rglob("manifest*"))
    assert prepare("f1").exit_code == 0
    assert commit("f1").exit_code == 0
    assert failed(commit("f1", other)) == (4, "checkpoint_conflict")
    assert not Path(other).exists()
    trio.resume("f1")
    assert commit("f1").exit_code == 0  # the same manifest again

    assert failed(restore("never")) == (4, "manifest_missing")
    assert failed(restore("f1", run="another")) == (4, "manifest_of_another")
    of_another = str(tmp_path / "another.sqlite3")
    assert failed(restore("f1", run="another", into=of_another)) == (4, "manifest_of_another")
    shutil.copytree(archive, other)
    (records,) = Path(other).rglob("records-*.jsonl")
    records.write_bytes(records.read_bytes().replace(b'"kind":"open"', b'"kind":"OPEN"'))
    assert failed(restore("f1", other)) == (3, "manifest_damaged")
    (manifest,) = Path(other).rglob("manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert failed(restore("f1", other)) == (3, "manifest_damaged")
    shutil.copytree(Path(archive) / "agent" / "f1", Path(archive) / "agent" / "f9")
    assert failed(restore("f9")) == (4, "manifest_of_another")
    assert prepare("f4").exit_code == 0
    assert commit("f4").exit_code == 0
    trio.resume("f4")
    fresh = str(tmp_path / "fresh.sqlite3")
    assert restore("f1", into=fresh).exit_code == 0
    assert trio.checkpoint("resume", "f1", *places, fresh, places=False).exit_code == 0
    assert failed(restore("f4", into=fresh)) == (4, "restore_into_live")
    trio.wait_open()
    assert trio.session("kept") == before
    assert payload_of(trio.finish("kept")) == trio.reference()


def failed(result: Result) -> tuple[int, str]:
    """The exit code, and the code that the message ends with."""
    return result.exit_code, result.stderr.rpartition("[")[2].rstrip("]\n")
