# SPDX-License-Identifier: Apache-2.0
"""The owner is killed before, between and during calls, through real processes (C3, C4, R2, S1)."""

import concurrent.futures
import hashlib
import json
from collections.abc import Callable

import httpx
from support.control import Control
from support.gateway import Gateway, connections, kept, wait_until

from rollout_router.transport.sandbox.frame import encode_frame
from rollout_router.transport.sandbox.wire import CONTENT_TYPE

BODY = json.dumps({"model": "m", "input": "hello " * 500}).encode()


def test_r5_every_routed_answer_names_worker_and_claim_epoch(shared: Gateway) -> None:
    answers = [shared.post("r1", BODY) for _ in range(8)]
    claim = shared.claims()["r1"]
    assert {a.status_code for a in answers} == {200}
    assert {a.headers["rollout-worker"] for a in answers} == {claim["worker_id"]}
    assert {a.headers["rollout-claim-epoch"] for a in answers} == {str(claim["claim_epoch"])}
    assert {kept(a) for a in answers} == {hashlib.sha256(BODY).hexdigest()}


def test_c3_a_dead_owner_is_replaced_with_a_higher_epoch(gateway: Gateway) -> None:
    before = gateway.post("r1", BODY).headers
    gateway.kill_worker(before["rollout-worker"])
    after = gateway.post("r1", BODY)
    assert after.status_code == 200
    assert after.headers["rollout-worker"] != before["rollout-worker"]
    assert int(after.headers["rollout-claim-epoch"]) > int(before["rollout-claim-epoch"])
    assert len(gateway.records("r1")) == 2


def test_r2_an_owner_killed_during_a_call_is_502_and_nothing_is_run_again(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    owner = gateway.post("r1", BODY).headers["rollout-worker"]
    control.hold("r1")
    private = gateway.claims()["r1"]["socket"]
    wait_until(lambda: not connections(private), "what the listing connected is gone")
    with concurrent.futures.ThreadPoolExecutor(64) as threads:
        waiting = []
        while not connections(private):  # until the worker that is not the owner has got one
            waiting.append(threads.submit(_status, gateway, "r1"))
            control.next_call("r1")
        runs = len(control.runs("r1"))
        gateway.kill_worker(owner)
        statuses = [done.result() for done in waiting]
    assert len(control.runs("r1")) == runs
    assert set(statuses) <= {502, None}
    assert 502 in statuses


def _status(gateway: Gateway, rollout_id: str) -> int | None:
    """The status of one call; None where the connection broke, as it does to a killed worker's."""
    try:
        return gateway.post(rollout_id, BODY).status_code
    except httpx.TransportError:
        return None


def test_s1_after_a_take_over_a_delta_gets_one_resync(gateway: Gateway) -> None:
    before = gateway.post("r1", BODY)
    gateway.kill_worker(before.headers["rollout-worker"])
    target = BODY + b" "
    frame = encode_frame(
        hashlib.sha256(BODY).hexdigest(),
        target,
        BODY,
        content_type="application/json",
        deflate=True,
    )
    assert frame is not None
    answer = gateway.post("r1", frame, keep=False, headers={"content-type": CONTENT_TYPE})
    assert answer.status_code == 409
    assert answer.headers["rollout-history"] == "resync"
    assert answer.json()["error"]["code"] == "gym_history_resync"
    assert kept(gateway.post("r1", target)) == hashlib.sha256(target).hexdigest()
