# SPDX-License-Identifier: Apache-2.0
"""The sandbox side in front of a running gateway: a harness notices nothing of it (S1-S5)."""

import concurrent.futures
from collections.abc import Callable

import httpx
import pytest
from support.control import Control
from support.conversations import body_of, conversation, digest
from support.gateway import Gateway, Shim

TURNS = [body_of(conversation(turns)) for turns in range(1, 9)]
StartShim = Callable[..., Shim]
Serve = Callable[..., Gateway]


def _play(shim: Shim, rollout_id: str, turns: list[bytes]) -> None:
    """Each turn's answer shows that the model was given the bytes that were written (H1)."""
    for body in turns:
        answer = shim.post(rollout_id, body)
        assert answer.status_code == 200
        assert answer.headers["scripted-request-sha256"] == digest(body)
        assert "rollout-history" not in answer.headers


def test_s4_a_conversation_costs_little_more_than_what_is_new(
    shared: Gateway, shim: StartShim
) -> None:
    helper = shim(shared.url)
    _play(helper, "conversation", TURNS)
    counted = helper.stop_and_count()["conversation"]
    assert counted["calls"] == len(TURNS)
    assert counted["resyncs"] == 0
    assert counted["bytes_full"] == sum(map(len, TURNS))
    assert counted["bytes_sent"] < counted["bytes_full"] / 3


def test_s1_an_owner_killed_between_calls_costs_one_resync_that_nobody_sees(
    gateway: Gateway, shim: StartShim
) -> None:
    helper = shim(gateway.url)
    _play(helper, "r", TURNS[:4])
    before = gateway.claims()["r"]
    gateway.kill_worker(before["worker_id"])
    _play(helper, "r", TURNS[4:])
    after = gateway.claims()["r"]
    assert after["claim_epoch"] > before["claim_epoch"]
    counted = helper.stop_and_count()["r"]
    assert (counted["calls"], counted["resyncs"]) == (len(TURNS), 1)
    records = gateway.records("r")
    assert [record["request_text"].encode() for record in records] == TURNS


def test_h1_an_owner_killed_between_calls_and_a_direct_full_request_need_no_resync(
    gateway: Gateway, shim: StartShim
) -> None:
    helper = shim(gateway.url)
    _play(helper, "r", TURNS[:2])
    gateway.kill_worker(gateway.claims()["r"]["worker_id"])
    direct = gateway.post("r", TURNS[2])
    assert direct.headers["scripted-request-sha256"] == digest(TURNS[2])
    assert helper.stop_and_count()["r"]["resyncs"] == 0


def test_s3_an_owner_killed_during_a_call_is_an_error_and_the_retry_is_one_resync(
    serve: Serve, control: Control, shim: StartShim
) -> None:
    gateway = serve(control=control.path)
    helper = shim(gateway.url)
    assert helper.post("r", TURNS[0]).status_code == 200
    control.hold("r")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(_outcome, helper, "r", TURNS[1])
        control.next_call("r")
        gateway.kill_worker(gateway.claims()["r"]["worker_id"])
        assert waiting.result() in {502, "cut"}
    assert len(control.runs("r")) == 2
    control.unhold("r")
    assert helper.post("r", TURNS[1]).status_code == 200
    assert [call.sha256 for call in control.runs("r")] == [
        digest(TURNS[0]),
        digest(TURNS[1]),
        digest(TURNS[1]),
    ]
    assert helper.stop_and_count()["r"]["resyncs"] == 1


def test_s2_two_rollouts_in_parallel_do_not_wait_for_each_other(
    serve: Serve, control: Control, shim: StartShim
) -> None:
    gateway = serve(control=control.path)
    helper = shim(gateway.url)
    control.hold("slow")
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        slow = threads.submit(helper.post, "slow", TURNS[0])
        call = control.next_call("slow")
        for body in TURNS:
            assert helper.post("quick", body).status_code == 200
        call.answer()
        assert slow.result().status_code == 200
    assert [run.sha256 for run in control.runs("quick")] == [digest(body) for body in TURNS]


def test_s4_a_gateway_without_deltas_is_sent_full_bodies(serve: Serve, shim: StartShim) -> None:
    gateway = serve("--no-history-delta", "--route-always")
    helper = shim(gateway.url)
    _play(helper, "r", TURNS)
    counted = helper.stop_and_count()["r"]
    assert counted["bytes_sent"] == counted["bytes_full"]


def test_s4_a_shim_without_deltas_passes_everything_through(
    shared: Gateway, shim: StartShim
) -> None:
    helper = shim(shared.url, "--no-delta")
    _play(helper, "through", TURNS)
    assert [record["request_text"].encode() for record in shared.records("through")] == TURNS


def test_s1_the_openai_sdk_streams_through_it(shared: Gateway, shim: StartShim) -> None:
    openai = pytest.importorskip("openai", reason="the extra 'demo' is not installed")
    helper = shim(shared.url)
    with openai.OpenAI(
        base_url=f"{helper.url}/sessions/sdk/v1", api_key="unused", max_retries=0
    ) as client:
        events = [
            event.type
            for event in client.responses.create(model="scripted", input="hello", stream=True)
        ]
        answer = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "hello"}]
        )
    assert events[-1] == "response.completed"
    assert answer.choices[0].finish_reason == "stop"
    assert len(shared.records("sdk")) == 2


def test_s4_models_are_listed_through_it(shared: Gateway, shim: StartShim) -> None:
    helper = shim(shared.url)
    with helper.client() as client:
        listed = client.get("/sessions/r/v1/models")
    assert listed.status_code == 200
    assert listed.json()["data"]


def _outcome(helper: Shim, rollout_id: str, body: bytes) -> int | str:
    try:
        return helper.post(rollout_id, body).status_code
    except httpx.TransportError:
        return "cut"
