# SPDX-License-Identifier: Apache-2.0
"""Closing admission and draining a worker by command, while calls are in flight (R6)."""

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from support.control import Control
from support.conversations import body_of, conversation
from support.gateway import COMMAND, Gateway

BODY = body_of(conversation(2))


def command(gateway: Gateway, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, *arguments, "--state-dir", str(gateway.state_dir)],
        check=False,
        capture_output=True,
        text=True,
    )


def test_r6_close_waits_for_calls_in_flight_and_names_what_is_in_the_way(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    close = ("admission", "close", "--why", "a checkpoint", "--json")
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(gateway.post, "r", BODY)
        call = control.next_call("r")

        early = command(gateway, *close)
        waiting = threads.submit(command, gateway, *close, "--wait", "60")
        refused = gateway.post("other", BODY)
        call.answer()

        assert asked.result().status_code == 200
        late = waiting.result()
    (blocker,) = json.loads(early.stdout)["blockers"]
    assert (early.returncode, blocker["rollout_id"]) == (1, "r")
    assert blocker["claim_epoch"] == call.claim_epoch
    assert refused.json()["error"]["code"] == "admission_closed"
    assert (late.returncode, json.loads(late.stdout)["blockers"]) == (0, [])
    assert control.runs("other") == []
    assert command(gateway, "admission", "open").returncode == 0


def test_c6_a_drained_worker_finishes_gives_its_rollouts_back_and_is_replaced(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(gateway.post, "r", BODY)
        call = control.next_call("r")
        owner = gateway.claims()["r"]["worker_id"]
        draining = threads.submit(command, gateway, "workers", "drain", owner, "--wait", "60")
        call.answer()
        assert asked.result().status_code == 200
        drained = draining.result()
    assert (drained.returncode, drained.stdout) == (0, f"worker {owner} is gone\n")
    control.unhold("r")
    after = gateway.post("r", BODY)
    assert after.status_code == 200
    assert after.headers["rollout-worker"] != owner


def test_a_worker_that_is_not_there_cannot_be_drained(shared: Gateway) -> None:
    done = command(shared, "workers", "drain", "nobody")

    assert done.returncode == 1
    assert "there is no worker nobody" in done.stderr
