# SPDX-License-Identifier: Apache-2.0
"""What switches the router on in NeMo Gym, and what Gym's own shutdown does to calls in flight."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.control import Control
from support.conversations import FRAME_HEADERS, digest, frame
from support.gateway import kept
from support.gym_server import ROUTE_ALWAYS, GymServer

from rollout_router.integrations.run_folder import leave_run, make_run

pytestmark = pytest.mark.timeout(300)

PATH = "/ng-rollout/r1/v1/responses"
BODY = b'{"model": "m", "input": "hello"}'
FLAG = {"history_delta_enabled": True}
Start = Callable[..., GymServer]


@pytest.fixture
def start(folder: Path, control: Control) -> Iterator[Start]:
    started: list[GymServer] = []

    def begin(**options: Any) -> GymServer:
        started.append(GymServer(folder, control, **options))
        return started[-1]

    yield begin
    for server in started:
        server.stop()


def test_r7_nothing_is_routed_while_the_flag_is_off(start: Start, control: Control) -> None:
    gym = start()
    for worker_id in gym.alive():
        with gym.client_at(worker_id) as client:
            answer = client.post(PATH, content=BODY)
            assert answer.status_code == 200
            assert not [name for name in answer.headers if name.startswith("rollout-")]
            sent = frame(b"", BODY * 9, deflate=True)
            refused = client.post(PATH, content=sent, headers=FRAME_HEADERS)
            assert refused.json()["error"]["code"] == "delta_unsupported"
    assert len({run.pid for run in control.runs("r1")}) == 2  # wherever a connection went
    assert len(gym.calls("r1")) == 2
    assert gym.claims() == {}


def test_r7_the_flag_of_an_agent_switches_its_one_worker_on(start: Start, control: Control) -> None:
    gym = start(workers=None, agent=FLAG)
    assert kept(gym.post("r1", BODY)) == digest(BODY)
    target = BODY.replace(b"hello", b"hello again, " * 30)
    answer = gym.post("r1", frame(BODY, target, deflate=True), headers=FRAME_HEADERS)
    assert kept(answer) == digest(target)
    assert [run.sha256 for run in control.runs("r1")] == [digest(BODY), digest(target)]
    (owner,) = gym.alive()
    assert gym.claims()["r1"]["worker_id"] == owner
    assert gym.claims()["r1"]["pid"] == gym.process.pid
    assert gym.stop() == -signal.SIGTERM  # uvicorn ends by it, so nothing of ours runs at the end
    assert len(gym.runs()) == 1
    leave_run(make_run("another"))
    assert gym.runs() == []


def test_r7_the_own_flag_of_a_server_goes_before_all_others(start: Start) -> None:
    gym = start(workers=None, top={"history_delta_enabled": False}, own=FLAG)
    assert kept(gym.post("r1", BODY)) == digest(BODY)
    assert list(gym.claims()) == ["r1"]


def test_r2_gyms_half_second_loses_what_is_in_flight_and_runs_nothing_again(
    start: Start, control: Control
) -> None:
    gym = start(environment={ROUTE_ALWAYS: "yes"})
    answer = gym.post("r1", BODY)
    assert kept(answer) is None  # routed without deltas
    owner = gym.claims()["r1"]["worker_id"]
    assert answer.headers["rollout-worker"] == owner
    (other,) = set(gym.alive()) - {owner}
    control.hold("r1")
    with (
        gym.client_at(owner) as direct,
        gym.client_at(other) as forwarded,
        ThreadPoolExecutor() as threads,
    ):
        waiting = []
        for client in (direct, forwarded):
            waiting.append(threads.submit(_post, client))
            control.next_call("r1")
        gym.process.send_signal(signal.SIGINT)  # as Gym ends its servers
        lost, gone = (done.result() for done in waiting)
    assert (lost.status_code, lost.json()) == (500, "Request was cancelled")  # Gym's own
    assert (gone.status_code, gone.json()["error"]["code"]) == (502, "owner_lost_in_flight")
    assert gym.wait_exit() == 0
    assert len(control.runs("r1")) == 3
    assert gym.runs() == []


def _post(client: httpx.Client) -> httpx.Response:
    return client.post(PATH, content=BODY)
