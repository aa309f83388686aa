# SPDX-License-Identifier: Apache-2.0
"""What usually goes wrong when a tool-using agent is to be continued, and does not here.

The hazards are numbered; a test carries the number of the one that it holds.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.gateway import invoked
from support.policy import REWARD
from support.trio import ERRANDS, MESSAGE, Service, Trio, payload_of

from rollout_router.checkpoint.effects import Performed
from rollout_router.checkpoint.example.environment import Worlds
from rollout_router.checkpoint.example.world import World
from rollout_router.checkpoint.journal import Journal, Opened
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.tables import rows_of
from rollout_router.checkpoint.wire import Operation

PARKED = '{"error": {"code": "checkpoint_parked", "message": "wait"}}'
SEED = {"scenario": "message", "seed": 1}
TALK = {"text": "How are you?"}


def named(rollout_id: str, sequence: int, *, claim_epoch: int = 1) -> Operation:
    return Operation(
        rollout_id=rollout_id,
        sequence=sequence,
        store_id="s",
        claim_epoch=claim_epoch,
        environment_id=f"of-{rollout_id}",
    )


def kinds(trio: Trio, rollout_id: str) -> list[str]:
    """What reached the model and the environment, by its kind."""
    return [kind for kind, _ in trio.reported(rollout_id) if not kind.endswith("#done")]


def result_of(payload: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(payload)
    return result


def test_hazard_1_a_transport_that_sends_again_never_runs_a_step_twice(trio: Trio) -> None:
    trio.operate(named("resent", 1), "seed", SEED)
    with ThreadPoolExecutor(6) as threads:  # on connections of their own: at any worker
        answers = list(
            threads.map(lambda _: trio.operate(named("resent", 2), "step", TALK), range(6))
        )
    answers = [one for one in answers if one.status_code != 503]  # another process was faster
    answers.append(trio.operate(named("resent", 2), "step", TALK))
    assert {(one.status_code, one.content) for one in answers} == {(200, answers[-1].content)}
    assert {one.headers["operation-revision"] for one in answers} == {"2"}
    world, _ = World.begin("message", 1)
    expected, _ = world.step(text=TALK["text"])
    assert answers[-1].json()["observation"] == expected
    with trio.services["environment"].client() as client:  # whose sender cannot be told
        path = "/ng-rollout/resent/step"
        anonymous = client.post(path, json={"environment_id": "of-resent", **TALK})
    assert (anonymous.status_code, anonymous.json()["error"]["code"]) == (400, "operation_required")
    assert trio.exported("of-resent").json()["revision"] == 2


def test_hazard_2_a_model_that_is_parked_never_ends_the_episode(trio: Trio) -> None:
    waiting, call = trio.held("parked", "responses 3")
    call.answer(PARKED, status=409)
    again = trio.control.next_call("parked")
    assert again.path == call.path
    assert not waiting.done()
    assert not {"close", "verify"} & {*kinds(trio, "parked")}
    trio.control.unhold("parked")
    again.answer()
    assert payload_of(waiting.result()) == trio.reference()
    assert result_of(trio.reference())["reward"] == REWARD
    assert "parked" not in trio.reference()  # nor is it an observation


def drained(trio: Trio, rollout_id: str) -> None:
    worker_id = trio.owner("agent", rollout_id)
    place = ("--state-dir", str(trio.agent.state_dir))
    assert invoked("workers", "drain", worker_id, "--wait", "30", *place).exit_code == 0


def shut_down(trio: Trio, rollout_id: str) -> None:
    _ = rollout_id
    trio.agent.process.send_signal(signal.SIGTERM)
    trio.agent.wait_exit()
    trio.restart("agent")


@pytest.mark.parametrize(
    "leave",
    [
        pytest.param(drained, id="drain", marks=pytest.mark.long),
        pytest.param(shut_down, id="shutdown", marks=pytest.mark.long),
    ],
)
def test_hazard_3_a_worker_that_leaves_never_closes_an_environment(
    trio: Trio, leave: Callable[[Trio, str], None]
) -> None:
    rollout_id = leave.__name__
    waiting, call = trio.held(rollout_id, "step 3")
    leave(trio, rollout_id)
    call.wait_gone()
    assert not {"close", "verify"} & {*kinds(trio, rollout_id)}
    assert waiting.exception() or waiting.result().status_code in {502, 503}
    assert payload_of(trio.finish(rollout_id)) == trio.reference()
    assert Counter(kinds(trio, rollout_id))["close"] == 1


@pytest.mark.parametrize("at", ["responses 2", "step 1", "close"])
def test_hazard_3_a_client_that_leaves_never_closes_an_environment(trio: Trio, at: str) -> None:
    rollout_id = f"left-{at.replace(' ', '-')}"
    trio.left_open(rollout_id, at)
    before = kinds(trio, rollout_id)
    assert trio.session(rollout_id)["session"]["status"] == "open"
    assert payload_of(trio.finish(rollout_id)) == trio.reference()
    assert kinds(trio, rollout_id)[len(before)] == before[-1]


def test_hazard_4_an_unknown_environment_is_an_error_and_never_a_reward(trio: Trio) -> None:
    for kind in ("verify", "close", "step"):
        refused = trio.operate(named("nowhere", 1), kind, TALK if kind == "step" else {})
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            404,
            "environment_unknown",
        )
        assert "reward" not in refused.text
    waiting, call = trio.held("vanished", "verify")
    lost = trio.session("vanished")["operations"][0]["environment_id"]
    with trio.services["environment"].client() as client:
        assert client.delete(f"/ng-control/v1/environments/{lost}").status_code == 204
    trio.control.unhold("vanished")
    call.answer()
    assert payload_of(waiting.result()) == trio.reference()  # it began again, from its input
    shown = trio.session("vanished")
    assert shown["session"]["restarts"] == 1
    assert shown["operations"][0]["environment_id"] != lost


def test_hazard_5_a_step_that_fails_midway_leaves_no_partly_changed_context() -> None:
    worlds = Worlds()
    worlds.seed("e", "errands", 1)
    before = worlds.export("e")

    def fails_midway(world: World) -> None:
        world.step(text="Hello?")
        world.tables["contacts"].clear()
        raise OSError("the simulated user is gone")

    with pytest.raises(OSError, match="user is gone"):
        worlds.change("e", fails_midway)
    assert worlds.export("e") == before


def test_hazard_6_cookies_are_merged_and_usage_is_accumulated(trio: Trio) -> None:
    result = result_of(payload_of(trio.post("cookies", ERRANDS)))
    sent = [one["cookies"] for one in trio.samples("cookies")]
    assert sent[0] == {}
    assert {*result["cookies"]} == {"home", "turn"} == {*sent[-1]}  # the first answer's, the last's
    assert {one["home"] for one in sent[1:]} == {result["cookies"]["home"]}
    rows = trio.session("cookies")["operations"]
    answers = [json.loads(row["result"]) for row in rows if row["kind"] == "model"]
    assert len(answers) == len(result["model_call_ids"])
    for name, count in result["usage"].items():
        assert count == sum(answer["response"]["usage"][name] for answer in answers)


@pytest.mark.parametrize(
    ("service", "task", "stopped", "at"),
    [
        ("agent", {**ERRANDS, "steps_max": 5}, "steps_max", "responses 4"),
        ("environment", {"scenario": "short", "seed": 3}, "done", "step#done 2"),
    ],
    ids=["model calls, which the agent counts", "messages, which the environment counts"],
)
def test_hazard_7_both_budgets_survive_a_take_over(
    trio: Trio, *, service: Service, task: dict[str, Any], stopped: str, at: str
) -> None:
    rollout_id = f"budget-{stopped}"
    trio.held(rollout_id, at, task)
    trio.control.unhold(rollout_id)
    trio.kill_owner(service, rollout_id)
    payload = payload_of(trio.finish(rollout_id, task))
    assert payload == trio.reference(task)
    result = result_of(payload)
    assert (result["stopped"], result["reward"]) == (stopped, 0.5)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
def test_hazard_8_an_environment_keeps_its_id_when_its_server_begins_anew(
    trio: Trio,
    whole: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    rollout_id = f"same-{whole}"
    waiting, _ = trio.held(rollout_id, "step 3")
    (environment_id,) = environments(trio, rollout_id)
    trio.control.unhold(rollout_id)
    if whole:
        trio.kill("environment")
        trio.restart("environment")
    else:
        trio.kill_owner("environment", rollout_id)
    assert payload_of(waiting.result()) == trio.reference()  # the call has waited for the server
    assert environments(trio, rollout_id) == {environment_id}
    assert trio.session(rollout_id)["session"]["restarts"] == 0


def environments(trio: Trio, rollout_id: str) -> set[str]:
    """Those that a rollout has acted on."""
    rows = trio.session(rollout_id)["operations"]
    return {row["environment_id"] for row in rows} - {None}


def test_hazard_9_every_call_carries_its_rollout_in_its_path_and_its_headers(trio: Trio) -> None:
    trio.post("who", MESSAGE)
    calls = trio.control.runs("who")
    assert {call.path.split("/")[1:3] == ["ng-rollout", "who"] for call in calls} == {True}
    assert {call.headers["operation-id"].rpartition("/")[0] for call in calls} == {"who"}
    fence = trio.agent.claims()["who"]["claim_epoch"]
    store = trio.agent.json("claims", "list")["store_id"]
    assert {call.headers["operation-fence"] for call in calls} == {f"{store}/{fence}"}
    environments = {
        call.headers.get("operation-environment") for call in calls if "responses" not in call.path
    }
    assert len(environments) == 1
    assert None not in environments


def test_hazard_10_no_record_grows_with_the_number_of_turns(folder: Path) -> None:
    turns = 40

    async def play(journal: Journal) -> list[int]:
        opened = await journal.open_rollout(
            "long", 1, task=ERRANDS, loop_digest="l", configuration_digest="c"
        )
        assert isinstance(opened, Opened)
        run, history = Run(journal, opened.rollout, opened.rows), ["the history"]

        async def answer(operation: Operation) -> Performed:
            _ = operation
            return Performed(value="what the model said")

        for _ in range(turns):
            history.append(await run.op("model", history, answer, effect="resample"))
        rows = journal.database.read(lambda db: rows_of(db, "long"))
        return [len(repr(row)) - len(str(row.sequence)) for row in rows]

    path = folder / "journal.sqlite3"
    with closing(Journal(path, instance="i", run="r", store_id="s")) as journal:
        assert len({*asyncio.run(play(journal))}) == 1


def test_hazard_11_a_state_goes_round_between_close_and_verify() -> None:
    world, _ = World.begin("message", 1)
    world.step(text="Hello?")
    closed = World.from_bytes(world.to_bytes()).close()
    world.close()
    again = World.from_bytes(world.to_bytes())
    assert again.to_bytes() == world.to_bytes()
    assert again.verified() == world.verified() == closed
    worlds = Worlds()
    worlds.restore("under its own id", world.to_bytes())
    assert worlds.change("under its own id", World.verified) == closed


def test_hazard_12_a_rollout_is_never_rebuilt_by_doing_its_steps_again(trio: Trio) -> None:
    waiting, _ = trio.held("again", "step 4")
    before = trio.reported("again")
    trio.kill_owner("environment", "again")
    anew = trio.control.next_call("again")
    trio.control.unhold("again")
    anew.answer()
    assert payload_of(waiting.result()) == trio.reference()
    after = trio.reported("again")[len(before) :]
    assert after[0] == before[-1]
    assert not {*after[1:]} & {*before}
