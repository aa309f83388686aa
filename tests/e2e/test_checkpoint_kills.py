# SPDX-License-Identifier: Apache-2.0
"""Agent, environment and model are killed, stopped and parked in the middle of sessions.

Whatever happens, who asks again is given the payload of a rollout that nothing interrupted, byte
for byte; no effect happened twice; and there is one result.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from support.gateway import client_of, stopped, wait_until
from support.trio import MESSAGE, Service, Trio, payload_of, prompted

MOMENTS = {
    "seeding": "seed",
    "seeded": "seed#done",
    "first call": "responses",
    "model call": "responses 2",
    "sampled": "responses#done 2",
    "before a step": "step 2",
    "after a step": "step#done 2",
    "closing": "close#done",
    "closed": "verify",
    "verified": "verify#done",
}
EVERYDAY = {
    ("worker", "agent", "after a step"),
    ("worker", "environment", "closed"),
    ("worker", "model", "sampled"),
}
KILLS = [
    pytest.param(
        *(what, service, moment),
        id=f"{what} {service} {moment}",
        marks=[] if (what, service, moment) in EVERYDAY else pytest.mark.long,
    )
    for what in ("worker", "service")
    for service in get_args(Service)
    for moment in MOMENTS
    # No worker of the model owns the rollout before its first call.
    if (what, service) != ("worker", "model") or not moment.startswith("seed")
]


def assert_as_if_nothing_had_happened(trio: Trio, answer: httpx.Response, rollout_id: str) -> None:
    assert payload_of(answer) == trio.reference()
    assert trio.post(rollout_id, MESSAGE).content == answer.content  # one result, one receipt
    rows = trio.session(rollout_id)["operations"]
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    revisions = [row["revision"] for row in rows if row["environment_id"] is not None]
    assert revisions == list(range(1, len(revisions) + 1))
    (environment_id,) = {row["environment_id"] for row in rows} - {None}
    assert trio.exported(environment_id).json()["revision"] == len(revisions)
    drawn = [one["id"] for one in trio.samples(rollout_id)]
    again = len(drawn) - len(set(drawn))
    assert again <= 1  # what was lost with its answer
    assert again <= sum(row["orphans"] for row in rows)


@pytest.mark.parametrize(("what", "service", "moment"), KILLS)
def test_a_session_goes_on_after_a_kill(
    trio: Trio, what: str, service: Service, moment: str
) -> None:
    rollout_id = f"{what}-{service}-{moment.replace(' ', '-')}"
    waiting, _ = trio.held(rollout_id, MOMENTS[moment])
    trio.control.unhold(rollout_id)
    killed(trio, what, service, rollout_id)
    for call in held_still(trio, rollout_id, service, moment):
        call.answer()
    answer = trio.finish(rollout_id)
    if service == "agent":
        assert waiting.exception() or waiting.result().status_code == 502
    else:  # whose agent has waited for its servers
        assert waiting.result().content == answer.content
    assert_as_if_nothing_had_happened(trio, answer, rollout_id)


def killed(trio: Trio, what: str, service: Service, rollout_id: str) -> None:
    """SIGKILL the worker that owns a rollout, or a whole service, which is started again."""
    if what == "worker":
        trio.kill_owner(service, rollout_id)
    else:
        trio.kill(service)
        trio.restart(service)


def held_still(trio: Trio, rollout_id: str, service: Service, moment: str) -> list[Any]:
    """The call that is held, where it lives on in a server that was not killed."""
    at = "model" if MOMENTS[moment].startswith("responses") else "environment"
    return [trio.control.runs(rollout_id)[-1]] if service not in ("agent", at) else []


@pytest.mark.long
def test_a_session_whose_answer_was_lost_after_its_completion_is_answered_again(
    trio: Trio,
) -> None:
    """The answer comes through a worker that is stopped; when it is there, both are killed."""
    trio.settle()
    trio.post("unanswered", {"receipt": "x"}, to="acknowledge")  # so that one of them owns it
    owner = trio.owner("agent", "unanswered")
    (other,) = (one for one in trio.agent.ready["workers"] if one["id"] != owner)
    trio.control.hold("unanswered")
    with client_of(trio.agent, other["id"]) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.post, "/ng-rollout/unanswered/run", json=MESSAGE)
        call = prompted(trio.control, "unanswered", "verify#done")
        with stopped(other["pid"]):
            call.answer()
            wait_until(
                lambda: trio.session("unanswered")["session"]["status"] == "completed",
                "the rollout is completed",
            )
            trio.kill_worker("agent", other["id"])
        assert isinstance(waiting.exception(), httpx.TransportError)
    receipt = trio.session("unanswered")["receipt"]
    trio.kill_worker("agent", owner)
    reports = trio.reported("unanswered")
    answer = trio.finish("unanswered")
    assert answer.json()["receipt"] == receipt
    assert trio.reported("unanswered") == reports
    assert_as_if_nothing_had_happened(trio, answer, "unanswered")


@pytest.mark.parametrize("until", ["responses#done 2", "step#done 2"])
def test_f1_a_stopped_agent_that_goes_on_records_nothing(trio: Trio, until: str) -> None:
    rollout_id = f"zombie-{until[:4]}"
    waiting, call = trio.held(rollout_id, until)
    with stopped(trio.agent.pid_of(trio.owner("agent", rollout_id))):
        trio.agent.force(rollout_id)
        answer = trio.finish(rollout_id)
        shown = trio.session(rollout_id)
        call.answer()
    late = waiting.result()
    assert (late.status_code, late.json()["error"]["code"]) == (409, "stale_attempt")
    assert trio.session(rollout_id) == shown
    assert_as_if_nothing_had_happened(trio, answer, rollout_id)


def test_a_client_that_asks_twice_at_once_is_given_one_result(trio: Trio) -> None:
    first, call = trio.held("twice", "responses 2")
    second = trio.begin("twice")
    wait_until(lambda: trio.in_flight("twice") >= 2, "both calls are at the owner")
    trio.control.unhold("twice")
    call.answer()
    assert first.result().content == second.result().content
    assert_as_if_nothing_had_happened(trio, first.result(), "twice")
    assert len(trio.samples("twice")) == 3


def phase(trio: Trio, checkpoint_id: str) -> tuple[bool, str]:
    """Whether the gate is open, and how the checkpoint stands."""
    status = json.loads(trio.checkpoint("status").stdout)
    (found,) = (one for one in status["checkpoints"] if one["checkpoint_id"] == checkpoint_id)
    return status["gate"]["open"], found["phase"]


def test_a_run_that_was_parked_ends_with_the_bytes_of_one_that_never_was(trio: Trio) -> None:
    reference = trio.reference()
    waiting, call = trio.held("parked-run", "step 2")
    hasty = trio.checkpoint("prepare", "k1", "--wait-seconds", "0")
    assert hasty.exit_code == 1
    (blocker,) = json.loads(hasty.stdout)["blockers"]
    assert blocker["worker_id"] == trio.owner("agent", "parked-run")
    assert f"worker {blocker['worker_id']}, rollout parked-run: " in hasty.stderr
    assert phase(trio, "k1") == (False, "preparing")
    late = trio.post("too-late", MESSAGE)
    assert (late.status_code, late.json()["error"]["code"]) == (503, "admission_closed")
    assert "retry-after" in late.headers

    trio.control.unhold("parked-run")
    call.answer()
    assert trio.checkpoint("prepare", "k1").exit_code == 0
    assert phase(trio, "k1") == (False, "prepared")
    stands = trio.session("parked-run")
    assert stands["boundary"]["kind"] == "turn_complete"
    assert not waiting.done()
    trio.resume("k1")
    answer = waiting.result()
    assert payload_of(answer) == reference
    assert trio.session("parked-run")["session"]["attempt"] == 1
    assert phase(trio, "k1") == (True, "abandoned")
    assert_as_if_nothing_had_happened(trio, answer, "parked-run")
    assert payload_of(trio.finish("too-late")) == reference


def test_a_run_whose_checkpoint_fell_silent_goes_on_by_itself(trio: Trio) -> None:
    waiting, call = trio.held("silent", "step 2")
    flags = ("--budget-seconds", "5", "--wait-seconds", "0")
    assert trio.checkpoint("prepare", "k2", *flags).exit_code in (1, 4)  # 4: it is over already
    trio.control.unhold("silent")
    call.answer()
    answer = waiting.result()  # nobody resumed it
    assert phase(trio, "k2") == (True, "abandoned")
    trio.wait_open()
    assert_as_if_nothing_had_happened(trio, answer, "silent")


@pytest.mark.parametrize(
    ("what", "service"),
    [
        ("worker", "agent"),
        ("worker", "environment"),
        ("service", "agent"),
        ("service", "environment"),
    ],
)
@pytest.mark.long
def test_a_kill_while_a_checkpoint_is_prepared_changes_nothing_of_it(
    trio: Trio, tmp_path: Path, what: str, service: Service
) -> None:
    rollout_id = checkpoint_id = f"prepared-{what}-{service}"
    _, call = trio.held(rollout_id, "step 2")
    assert trio.checkpoint("prepare", checkpoint_id, "--wait-seconds", "0").exit_code == 1
    trio.control.unhold(rollout_id)
    call.answer()
    assert trio.checkpoint("prepare", checkpoint_id).exit_code == 0
    stands = trio.session(rollout_id)
    killed(trio, what, service, rollout_id)
    assert phase(trio, checkpoint_id) == (False, "prepared")
    places = ("--archive", str(tmp_path), *trio.environment(), "--rollout", rollout_id)
    assert trio.checkpoint("commit", checkpoint_id, *places).exit_code == 0
    assert trio.session(rollout_id) == stands
    trio.resume(checkpoint_id)
    assert phase(trio, checkpoint_id) == (True, "resumed")
    assert_as_if_nothing_had_happened(trio, trio.finish(rollout_id), rollout_id)


@pytest.mark.long
def test_a_rollout_begins_again_when_its_restart_only_environment_dies(trio: Trio) -> None:
    reference = trio.reference()
    trio.kill("environment")
    trio.restart_only = True
    try:
        trio.restart("environment")
        waiting, call = trio.held("anew", "step 2")
        trio.kill_owner("environment", "anew")
        call.close()
        trio.control.unhold("anew")
        assert payload_of(waiting.result()) == reference
        session = trio.session("anew")["session"]
        assert (session["restarts"], session["reason"]) == (1, "")
        rows = trio.session("anew")["operations"]
        assert rows[0]["sequence"] > 1
        assert [row["kind"] for row in rows[:2]] == ["seed", "model"]
    finally:
        trio.kill("environment")
        trio.restart_only = False
        trio.restart("environment")
