# SPDX-License-Identifier: Apache-2.0
"""Sessions over the real ToolSandbox server of NeMo Gym go on after the death of its process.

Policy and user are scripted, and the user's answers can be held: a step is then in the middle of
its work. ``docs/nemo-gym.md`` says what each test stands for.
"""

import asyncio
import base64
import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support import toolsandbox
from support.folders import private_folder
from support.gateway import PATIENCE_S
from support.toolsandbox import POLICY, TEXT, Models, Sandbox, play, sent_verify, step_of

from rollout_router.call import Call
from rollout_router.checkpoint.client import Caller
from rollout_router.checkpoint.digests import canonical, digest
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.sessions import Sessions
from rollout_router.checkpoint.wire import Operation

pytestmark = pytest.mark.timeout(600)  # the server takes 10 seconds to start, where it is alone

STORE = "store"
ENDED = -signal.SIGTERM  # as a server of one worker ends by it
OPERATIONS = ["seed_session", *["step"] * len(POLICY), "close", "verify"]
CONTROL = "/ng-control/v1/environments"


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    with toolsandbox.models() as server:
        yield server


@pytest.fixture(scope="module")
def sandbox(models: Models) -> Iterator[Sandbox]:
    with private_folder() as folder:
        server = Sandbox(folder, models)
        yield server
        assert server.stop() == ENDED


def played(
    folder: Path,
    sandbox: Sandbox,
    models: Models,
    *,
    after: Callable[[str], None] | None = None,
) -> Any:
    """The result of a session; *after* is called after each operation of its environment."""

    async def hook(kind: str) -> None:
        if after is not None:
            await asyncio.to_thread(after, kind)

    async def session(journal: Journal) -> Any:
        async with Caller(models.url) as model, Caller(sandbox.url) as environment:
            loop = partial(play, model=model, sandbox=environment, hook=hook)
            async with Sessions(journal, loop, loop_digest="play") as sessions:
                call = Call(rollout_id="r1", claim_epoch=1, worker_id="w", store_id=STORE)
                return json.loads((await sessions.run(call, {"task_idx": 0})).payload)

    # The name of the run names the environment too: each test has its own.
    path = folder / "journal.sqlite3"
    journal = Journal(path, instance="agent", run=folder.name, store_id=STORE)
    try:
        return asyncio.run(session(journal))
    finally:
        journal.close()


def comparable(result: Any) -> Any:
    """A result without the names that tools invent and the times that they read."""
    text = json.dumps(result)
    for form in (
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        r"(?<='creation_timestamp': )[\d.]+",
    ):
        text = re.sub(form, "*", text)
    return json.loads(text)


@pytest.fixture(scope="module")
def whole(sandbox: Sandbox, models: Models) -> Any:
    """The result of a session that nothing interrupts."""
    with private_folder() as folder:
        result = played(folder, sandbox, models)
    assert (result["reward"], result["exception_type"]) == (1.0, None)
    outputs = [item["output"] for item in result["items"] if "output" in item]
    assert outputs[2] == "ConnectionError: Cellular service is not enabled"
    assert outputs[4] in outputs[5]  # the message is found, under the id that was told
    return comparable(result)


def test_a_session_whose_environment_is_killed_after_every_operation_is_a_whole_one(
    sandbox: Sandbox, models: Models, folder: Path, whole: Any
) -> None:
    kills = []

    def kill(kind: str) -> None:
        kills.append(kind)
        sandbox.kill()
        sandbox.start()

    result = played(folder, sandbox, models, after=kill)

    assert kills == OPERATIONS
    assert comparable(result) == whole


def test_a_step_that_is_cut_by_a_kill_is_done_again_from_the_state_before_it(
    sandbox: Sandbox, models: Models, folder: Path, whole: Any
) -> None:
    while not models.asked.empty():
        models.asked.get()
    models.free.clear()
    with ThreadPoolExecutor(1) as threads:
        session = threads.submit(played, folder, sandbox, models)
        assert models.asked.get(timeout=PATIENCE_S) == POLICY[5]  # the agent's text is appended
        sandbox.kill()
        models.free.set()
        sandbox.start()
        result = session.result()

    assert comparable(result) == whole  # the text is there once: the turns are counted
    assert [models.asked.get() for _ in range(2)] == [POLICY[5], POLICY[6]]
    assert models.asked.empty()


class Environment:
    """One environment, operated by hand."""

    def __init__(self, server: Sandbox, environment_id: str) -> None:
        self.server = server
        self.environment_id = environment_id

    def ask(self, number: int, path: str, body: Any) -> httpx.Response:
        operation = Operation(
            rollout_id="r1",
            sequence=number,
            store_id=STORE,
            claim_epoch=1,
            environment_id=self.environment_id,
        )
        with self.server.client(headers=operation.headers()) as client:
            return client.post(f"/{path}", json=body)

    def code(self, number: int, path: str, body: Any) -> str:
        """Of the refusal of an operation."""
        answer = self.ask(number, path, body)
        assert answer.status_code >= 400
        return str(answer.json()["error"]["code"])

    def seed(self) -> httpx.Response:
        return self.ask(1, "seed_session", {"task_idx": 0})

    def step(self, number: int) -> httpx.Response:
        """What the policy says at the turn before *number*."""
        return self.ask(number, "step", step_of(self.environment_id, POLICY[number - 2]))

    def close(self, number: int) -> httpx.Response:
        return self.ask(number, "close", {"env_id": self.environment_id})

    def verify(self, number: int) -> httpx.Response:
        return self.ask(number, "verify", sent_verify(self.environment_id))

    def operate(self, number: int) -> httpx.Response:
        """One after another: the seed, five turns, the end and the score."""
        if number == 1:
            return self.seed()
        return {7: self.close, 8: self.verify}.get(number, self.step)(number)

    def document(self) -> Any:
        with self.server.client() as client:
            return client.get(f"{CONTROL}/{self.environment_id}").raise_for_status().json()

    def put(self, document: Any) -> httpx.Response:
        with self.server.client() as client:
            return client.put(f"{CONTROL}/{self.environment_id}", json=document)


def test_an_operation_that_is_delivered_twice_is_done_once(sandbox: Sandbox) -> None:
    environment = Environment(sandbox, "twice")
    for number in range(1, 9):
        first, again = (environment.operate(number) for _ in range(2))
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.content == again.content
        assert first.headers["operation-revision"] == str(number)
        assert again.headers["operation-revision"] == str(number)
        if number == 6:  # the agent looks for its message
            assert first.text.count(TEXT) == 1


def test_an_environment_is_exported_here_and_goes_on_elsewhere_under_its_id(
    sandbox: Sandbox, models: Models, folder: Path
) -> None:
    here = Environment(sandbox, "moved")
    here.seed()
    for number in range(2, 6):
        assert here.step(number).status_code == 200
    played_on = here.document()
    told = [here.step(number).json()["obs"] for number in (6, 7, 8)]
    here.close(9)
    closed = here.document()
    verdict = here.verify(10).json()
    assert verdict["reward"] == 1.0
    assert not here.document()["restart_only"]  # the score stays until it is given up

    elsewhere = Sandbox(folder, models)
    try:
        there = Environment(elsewhere, "moved")
        assert there.code(6, "step", step_of("moved", POLICY[4])) == "environment_unknown"
        for document, operate in ((played_on, True), (closed, False)):
            assert there.put(document).status_code == 201
            if operate:
                assert [there.step(number).json()["obs"] for number in (6, 7, 8)] == told
                there.close(9)
            assert there.verify(10).json() == verdict
            with elsewhere.client() as client:
                assert client.delete(f"{CONTROL}/moved").status_code == 204
    finally:
        assert elsewhere.stop() == ENDED


def test_a_state_of_other_versions_is_not_read_and_its_environment_is_lost(
    sandbox: Sandbox,
) -> None:
    environment = Environment(sandbox, "older")
    environment.seed()
    document = environment.document()
    made_with, _, pickled = base64.b64decode(document["state"]).partition(b"\n")
    assert {"dill", "nemo-gym", "polars", "python"} == json.loads(made_with).keys()
    state = made_with.replace(b"0.7.0", b"0.6.0") + b"\n" + pickled
    del document["sha256"]
    document |= {"environment_id": "newer", "state": base64.b64encode(state).decode()}
    document["sha256"] = digest(canonical(document))

    newer = Environment(sandbox, "newer")
    assert newer.put(document).status_code == 201
    assert newer.code(2, "step", step_of("newer", POLICY[0])) == "environment_lost"


def test_what_the_stock_server_answers_with_a_reward_of_zero_is_refused(sandbox: Sandbox) -> None:
    environment = Environment(sandbox, "refusing")
    assert environment.code(1, "verify", sent_verify("refusing")) == "environment_unknown"
    assert environment.code(1, "seed_session", {"task_idx": 1}) == "operation_invalid"
    assert environment.seed().json()["env_id"] == "refusing"
    assert environment.code(2, "verify", sent_verify("refusing")) == "environment_phase"
    assert environment.code(2, "verify", sent_verify("twice")) == "operation_invalid"
    assert environment.code(2, "close", {"env_id": "twice"}) == "operation_invalid"
    assert environment.step(2).headers["operation-revision"] == "2"  # nothing was done in between
    assert environment.close(3).json()["success"]
    for kind, body in (("step", step_of("refusing", "x")), ("close", {"env_id": "refusing"})):
        assert environment.code(4, kind, body) == "environment_phase"
    assert environment.verify(4).status_code == 200


def test_a_change_that_names_no_operation_is_refused_and_metrics_need_none(
    sandbox: Sandbox,
) -> None:
    with sandbox.client() as client:
        refused = client.post("/seed_session", json={"task_idx": 0})
        assert refused.json()["error"]["code"] == "operation_required"
        assert client.get("/reverify_mode").status_code == 200
        metrics = client.post("/aggregate_metrics", json={"verify_responses": []})
        assert metrics.status_code == 200
