# SPDX-License-Identifier: Apache-2.0
"""A stock NeMo Gym model server with two workers, its flag on, and one call in it.

The real package, its own uvicorn supervisor, its own capture of calls and of training tokens. One
server serves all tests; names of rollouts tell them apart, and a test that kills waits until Gym's
supervisor has put another worker in place. ``docs/nemo-gym.md`` says what each one stands for.
"""

import json
import queue
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor as Threads
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support.control import Control
from support.conversations import FRAME_HEADERS, conversation, digest, frame
from support.folders import private_folder
from support.gateway import PATIENCE_S, Shim, kept
from support.gym_server import GymServer

pytestmark = pytest.mark.timeout(300)  # the server takes 15 seconds to start where it is alone

TURNS = 6
DIALECTS = {"responses": "input", "chat/completions": "messages", "messages": "messages"}
TRAINING = "/training-token-capture/v1/chat/completions"


@pytest.fixture(scope="module")
def control() -> Iterator[Control]:
    with private_folder() as folder:
        control = Control(folder / "control.sock")
        yield control
        control.close()


@pytest.fixture
def threads() -> Iterator[Threads]:
    with Threads() as threads:
        yield threads


@dataclass(frozen=True)
class Owned:
    """A rollout whose calls wait, and a client at its owner and at the other worker."""

    name: str
    claim: dict[str, Any]
    direct: httpx.Client
    forwarded: httpx.Client

    @property
    def path(self) -> str:
        return f"/ng-rollout/{self.name}"


@pytest.fixture(scope="module")
def gym(control: Control) -> Iterator[GymServer]:
    with private_folder() as folder:
        server = GymServer(folder, control, top={"history_delta_enabled": True})
        yield server
        assert server.stop() == 0
        assert server.runs() == []


def bodies(dialect: str, *, stream: bool = False, turns: int = TURNS) -> list[bytes]:
    """What a harness sends, call by call: the whole conversation, each time longer."""
    fields: dict[str, Any] = {"model": "m", **({"stream": True} if stream else {})}
    if dialect == "messages":
        fields["max_tokens"] = 9
    return [
        json.dumps({**fields, DIALECTS[dialect]: conversation(turn)}).encode()
        for turn in range(1, turns + 1)
    ]


def play(client: httpx.Client, path: str, sent: list[bytes]) -> list[httpx.Response]:
    headers = {"content-type": "application/json"}
    answers = [client.post(path, content=body, headers=headers) for body in sent]
    assert {answer.status_code for answer in answers} == {200}
    return answers


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_r5_every_connection_reaches_the_one_owner(
    gym: GymServer, dialect: str, *, stream: bool
) -> None:
    rollout_id = f"one-{dialect[:4]}-{stream}"
    (body,) = bodies(dialect, stream=stream, turns=1)
    answers = [gym.post(rollout_id, body, path=f"/v1/{dialect}") for _ in range(8)]
    claim = gym.claims()[rollout_id]
    assert {a.status_code for a in answers} == {200}
    assert {a.headers["rollout-worker"] for a in answers} == {claim["worker_id"]}
    assert {a.headers["rollout-claim-epoch"] for a in answers} == {str(claim["claim_epoch"])}
    assert {kept(a) for a in answers} == {digest(body)}
    streamed = {a.headers["content-type"].startswith("text/event-stream") for a in answers}
    assert streamed == {stream}
    assert len({json.dumps(call) for call in gym.calls(rollout_id)}) == 1
    assert len(gym.calls(rollout_id)) == 8


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_h1_gym_captures_the_same_with_and_without_deltas(
    gym: GymServer,
    control: Control,
    shim: Callable[..., Shim],
    dialect: str,
    *,
    stream: bool,
) -> None:
    sent = bodies(dialect, stream=stream)
    names = [f"{how}-{dialect[:4]}-{stream}" for how in ("full", "delta")]
    sandbox = shim(gym.url)
    for name, client in zip(names, (gym.client(), sandbox.client()), strict=True):
        with client:
            play(client, f"/ng-rollout/{name}/v1/{dialect}", sent)
    counted = sandbox.stop_and_count()[names[1]]
    assert (counted["calls"], counted["resyncs"]) == (TURNS, 0)
    assert counted["bytes_sent"] < counted["bytes_full"] / 3
    full, delta = (gym.calls(name) for name in names)
    assert full == delta
    assert [call["request"] for call in delta] == [json.loads(body) for body in sent]
    assert not [call for call in delta if "request_raw" in call]
    for name in names:  # and the bytes that the handlers were given
        assert [run.sha256 for run in control.runs(name)] == [digest(body) for body in sent]


def test_s1_a_killed_owner_costs_one_resync_and_no_record(
    gym: GymServer, control: Control, shim: Callable[..., Shim]
) -> None:
    sent = bodies("chat/completions")
    sandbox = shim(gym.url)
    with sandbox.client() as client:
        before = play(client, f"/ng-rollout/killed{TRAINING}", sent[:3])
        owner = gym.claims()["killed"]
        gym.kill_worker(owner["worker_id"])
        after = play(client, f"/ng-rollout/killed{TRAINING}", sent[3:])
    heir = gym.claims()["killed"]
    assert heir["worker_id"] != owner["worker_id"]
    assert heir["claim_epoch"] > owner["claim_epoch"]
    assert sandbox.stop_and_count()["killed"]["resyncs"] == 1
    assert [run.sha256 for run in control.runs("killed")] == [digest(body) for body in sent]
    assert [call["request"] for call in gym.calls("killed")] == [json.loads(body) for body in sent]
    tokens = gym.tokens_of("killed")
    assert [entry["response_id"] for entry in tokens] == [a.json()["id"] for a in before + after]
    assert "killed.tokens.incomplete" not in gym.traces("killed")
    gym.wait_workers(2)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_f2_a_whole_answer_is_one_that_gym_has_captured(gym: GymServer, *, stream: bool) -> None:
    # A client may hang up with the last byte, and Gym then gives up what it has not written yet.
    rollout_id = f"whole-{stream}"
    (body,) = bodies("responses", stream=stream, turns=1)
    captured = 0
    for worker_id in gym.alive():  # the first becomes the owner, the other forwards
        with gym.client_at(worker_id) as client:
            for _ in range(3):
                play(client, f"/ng-rollout/{rollout_id}/v1/responses", [body])
                captured += 1
                assert len(gym.calls(rollout_id)) == captured
    assert {call["error_category"] for call in gym.calls(rollout_id)} == {None}


def test_r6_a_resync_leaves_no_trace_in_gyms_captures(gym: GymServer) -> None:
    first, second = bodies("chat/completions", turns=2)
    answer = gym.post("resync", frame(first, second), path=TRAINING, headers=FRAME_HEADERS)
    assert (answer.status_code, answer.headers["rollout-history"]) == (409, "resync")
    assert gym.traces("resync") == set()
    for body in (first, frame(first, second)):
        headers = FRAME_HEADERS if body is not first else None
        assert gym.post("resync", body, path=TRAINING, headers=headers).status_code == 200
    assert [call["request"] for call in gym.calls("resync")] == [*map(json.loads, (first, second))]
    assert len(gym.tokens_of("resync")) == 2
    assert "resync.tokens.incomplete" not in gym.traces("resync")


def test_r7_what_names_no_rollout_is_untouched(gym: GymServer) -> None:
    for worker_id in gym.alive():
        with gym.client_at(worker_id) as client:
            for path in ("/livez", "/readyz", "/healthz", "/health", "/"):
                assert_untouched(client.get(path))
            for path in ("", "/ng-control/rollouts/r1", "/ng-rollout/a~b"):
                answer = client.post(f"{path}/v1/responses", content=bodies("responses")[0])
                assert_untouched(answer)
    assert set(gym.claims()).isdisjoint({"rollouts", "r1", "a~b"})


def assert_untouched(answer: httpx.Response) -> None:
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("rollout-")]


def test_gyms_own_refusals_pass_through(gym: GymServer) -> None:
    body = json.dumps({"model": "m", "input": "x", "no such key": 1}).encode()
    assert gym.post("refused", body).status_code == 422
    assert gym.post("refused", b"{}", path="/v1/models").status_code == 404


@pytest.fixture
def owned(gym: GymServer, control: Control, request: pytest.FixtureRequest) -> Iterator[Owned]:
    gym.wait_workers(2)
    name = request.node.name
    assert gym.post(name, b"{}", path="/scripted/").status_code == 200
    owner = gym.claims()[name]
    (other,) = (one for one in gym.alive() if one != owner["worker_id"])
    control.hold(name)
    with gym.client_at(owner["worker_id"]) as direct, gym.client_at(other) as forwarded:
        yield Owned(name, owner, direct, forwarded)


def test_r2_a_call_in_flight_is_lost_with_its_owner_and_run_once(
    gym: GymServer, control: Control, owned: Owned, threads: Threads
) -> None:
    (body,) = bodies("responses", turns=1)
    waiting = []
    for client in (owned.direct, owned.forwarded):
        waiting.append(threads.submit(_outcome, client, f"{owned.path}/v1/responses", body))
        control.next_call(owned.name)
    gym.kill_worker(owned.claim["worker_id"])
    assert [done.result() for done in waiting] == [None, (502, "owner_lost_in_flight")]
    assert len(control.runs(owned.name)) == 3  # with the first, that made the claim
    assert gym.calls(owned.name) == []  # Gym writes a record when a call is over
    control.unhold(owned.name)
    answer = gym.post(owned.name, body)
    assert answer.status_code == 200
    assert int(answer.headers["rollout-claim-epoch"]) > owned.claim["claim_epoch"]
    assert len(control.runs(owned.name)) == 4
    gym.wait_workers(2)
    for worker_id in gym.alive():
        with gym.client_at(worker_id) as client:
            (again,) = play(client, f"{owned.path}/v1/responses", [body])
            assert again.headers["rollout-worker"] == answer.headers["rollout-worker"]


def _outcome(client: httpx.Client, path: str, body: bytes) -> tuple[int, str] | None:
    """Status and code of a refusal; None where the connection broke."""
    try:
        answer = client.post(path, content=body)
    except httpx.RemoteProtocolError:
        return None
    return answer.status_code, answer.json()["error"]["code"]


def test_a_call_whose_client_leaves_is_ended_at_its_owner(
    gym: GymServer, control: Control, owned: Owned, threads: Threads
) -> None:
    (body,) = bodies("responses", turns=1)
    for client in (owned.direct, owned.forwarded):
        connection = client.get("/livez").extensions["network_stream"].get_extra_info("socket")
        waiting = threads.submit(_outcome, client, f"{owned.path}/v1/responses", body)
        call = control.next_call(owned.name)
        connection.shutdown(socket.SHUT_RDWR)
        call.wait_gone()
        assert waiting.result() is None
    # Stock Gym may be cancelled itself before it has written the record of a cancelled call.
    assert {call["error_category"] for call in gym.calls(owned.name)} <= {"cancelled"}
    assert len(control.runs(owned.name)) == 3  # with the first, that made the claim


def test_r4_a_stream_that_is_cut_is_never_ended_cleanly(
    gym: GymServer, control: Control, owned: Owned, threads: Threads
) -> None:
    begun: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    waiting = []
    for client in (owned.direct, owned.forwarded):
        waiting.append(threads.submit(_read, client, f"{owned.path}/scripted/", begun))
        call = control.next_call(owned.name)
        call.begin()
        call.send("first")
        assert begun.get(timeout=PATIENCE_S) == b"first"
    gym.kill_worker(owned.claim["worker_id"])
    assert [done.result() for done in waiting] == ["cut", "cut"]
    control.unhold(owned.name)


def _read(client: httpx.Client, path: str, begun: queue.SimpleQueue[bytes]) -> str:
    with client.stream("POST", path, content=b"{}") as answer:
        try:
            for chunk in answer.iter_raw():
                begun.put(chunk)
        except httpx.RemoteProtocolError:
            return "cut"
    return "whole"
