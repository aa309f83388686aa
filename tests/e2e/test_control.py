# SPDX-License-Identifier: Apache-2.0
"""Closing admission and draining a worker while calls are in flight, or between steps (R6)."""

import json
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
from support.control import Control
from support.conversations import body_of, conversation
from support.gateway import COMMAND, Gateway, wait_dead, wait_until
from support.stepping_app import STEPS

from rollout_router.claims import FileClaimStore
from rollout_router.operate import hold_admission, release_admission, status_of

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


def test_r6_a_call_that_works_in_steps_stands_still_behind_a_closed_gate(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(
        *("--app", "support.stepping_app:app", "--route-always"),
        environment={"TEST_CONTROL": str(control.path)},
    )
    hold = partial(hold_admission, gateway.state_dir, by="nightly", why="a checkpoint")
    control.hold("r")

    def park() -> str | None:
        """Hold the gate and let the step end that is in hand; the rollout that was in the way."""
        step = control.next_call("r")
        (blocker,) = hold(budget_s=600)
        step.answer()
        assert hold(budget_s=600, wait_s=60) == ()
        return blocker.rollout_id

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(gateway.post, "r", BODY)
        assert park() == "r"
        claim, held = gateway.claims()["r"], gateway.json("admission", "status")
        owner = FileClaimStore.inspect(gateway.state_dir).owner(claim["worker_id"])
        assert owner is not None
        status = status_of(owner)
        runs = len(control.runs("r"))
        assert release_admission(gateway.state_dir, by="nightly")

        assert park() == "r"  # the second step; its budget ends, and nobody releases it
        hold(budget_s=0.01)
        control.next_call("r").answer()
        answer = asked.result()

    assert (held["by"], 0 < held["seconds_left"] <= 600) == ("nightly", True)
    assert ([each["rollout_id"] for each in status["parked"]], status["in_flight"]) == (["r"], [])
    assert (runs, len(control.runs("r"))) == (1, STEPS)
    assert (answer.status_code, answer.text) == (200, "all steps")


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


def test_r2_a_leaver_has_kept_connections_close_by_an_answer_and_not_under_a_request(
    serve: Callable[..., Gateway],
) -> None:
    gateway = serve("--keep-alive-grace-seconds", "60", "--drain-seconds", "60")
    with gateway.client(limits=httpx.Limits(keepalive_expiry=None)) as client:
        post = partial(client.post, "/sessions/r/v1/responses", content=BODY)
        before = post()
        owner = before.headers["rollout-worker"]
        ended = os.pidfd_open(gateway.pid_of(owner))
        identity = FileClaimStore.inspect(gateway.state_dir).owner(owner)
        assert identity is not None
        assert command(gateway, "workers", "drain", owner).returncode == 0
        wait_until(lambda: bool(status_of(identity)["leaving"]), "it leaves")

        last = post()  # on the connection that was kept
        wait_dead(ended)  # long before its grace is over: no client is left
        after = post()
    assert (before.status_code, last.status_code, after.status_code) == (200, 200, 200)
    assert "connection" not in before.headers
    assert (last.headers["rollout-worker"], last.headers["connection"]) == (owner, "close")
    assert after.headers["rollout-worker"] != owner


def test_a_worker_that_is_not_there_cannot_be_drained(shared: Gateway) -> None:
    done = command(shared, "workers", "drain", "nobody")

    assert done.returncode == 1
    assert "there is no worker nobody" in done.stderr
