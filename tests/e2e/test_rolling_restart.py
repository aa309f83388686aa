# SPDX-License-Identifier: Apache-2.0
"""All workers are drained in turn under load: no call is lost, and none runs twice (R2).

Their clients are those that exist: httpx with its pool, the shim, and bare connections, new for
each call or kept. A kept connection is told that it ends before it does.
"""

import hashlib
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.control import Control
from support.gateway import COMMAND, Gateway, Shim, alone, wait_until
from support.load import Caller, Load, Outcome, Sent, assert_each_ran_as_known, totals

ROLLOUTS = 12
PAUSE_S = 0.2  # between calls, as for tools: so a drain finds most kept connections idle


def through(client: httpx.Client) -> Callable[[str, bytes], Sent]:
    """Calls of an httpx client, as a harness makes them."""

    def call(rollout_id: str, body: bytes) -> Sent:
        sent = Sent(rollout_id, hashlib.sha256(body).hexdigest(), Outcome.CUT)
        try:
            answer = client.post(f"/sessions/{rollout_id}/x", content=body)
        except httpx.TransportError as error:
            return sent._replace(code=repr(error))
        if answer.status_code != 200:
            return sent._replace(code=answer.text)
        return sent._replace(outcome=Outcome.ANSWERED, worker=answer.headers["rollout-worker"])

    return call


@pytest.mark.parametrize(
    ("workers", "clients_each"),
    [(2, 2), pytest.param(4, 8, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
def test_r2_a_rolling_restart_under_load_loses_no_call_and_runs_none_twice(
    serve: Callable[..., Gateway],
    shim: Callable[..., Shim],
    folder: Path,
    *,
    workers: int,
    clients_each: int,
) -> None:
    executions = folder / "executions"
    gateway = serve(
        *("--app", "support.app:counted"),
        workers=workers,
        environment={"TEST_EXECUTIONS": str(executions), "TEST_THINKING_S": "0.05"},
    )
    address = gateway.url.removeprefix("http://")
    before = sorted(present(gateway))
    calls = []
    with ExitStack() as stack:
        keeping = [stack.enter_context(Caller(lambda: address, keeps=True)) for _ in before]
        for worker, caller in zip(before, keeping, strict=True):
            with alone(gateway, worker):
                calls.append(caller.call(f"first-{worker}", worker.encode()))
        assert [call.worker for call in calls] == before, "each worker has a client that stays"
        threads = stack.enter_context(ThreadPoolExecutor(workers + 3 * clients_each))
        pooling = stack.enter_context(gateway.client())
        shimmed = stack.enter_context(shim(gateway.url).client())
        fresh = [Caller(lambda: address, keeps=False) for _ in range(clients_each)]
        load = Load(
            threads,
            [
                *(caller.call for caller in (*keeping, *fresh)),
                *[through(pooling), through(shimmed)] * clients_each,
            ],
            rollouts=ROLLOUTS,
            pause_s=PAUSE_S,
        )
        try:
            for worker in before:
                drain(gateway, worker)
                gateway.wait_replaced()
        finally:
            calls += load.stop()

    print(f"\n{totals(calls, executions)}")  # noqa: T201 - for pytest -s
    wait_until(lambda: present(gateway).isdisjoint(before), "other workers are ready")
    assert [call for call in calls if call.outcome is not Outcome.ANSWERED] == []
    assert_each_ran_as_known(calls, executions)
    assert {call.worker for call in calls} > {*before}
    # Those that stayed with a worker were told once at least, and no end came untold.
    assert [caller.untold for caller in keeping] == [0] * workers
    assert min(caller.told for caller in keeping) > 0


def test_r2_a_service_that_stops_refuses_connections_while_it_finishes(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve(control=control.path)
    control.hold("r")
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(gateway.post, "r", b"in hand")
        call = control.next_call("r")
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refuses(gateway), "nothing waits for a worker that will not come")
        call.answer()
        assert asked.result().status_code == 200
    assert gateway.wait_exit() == 0


def refuses(gateway: Gateway) -> bool:
    """Whether a new connection is refused."""
    try:
        gateway.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def present(gateway: Gateway) -> set[str]:
    """The workers of the ready file."""
    return {str(worker["id"]) for worker in gateway.ready["workers"]}


def drain(gateway: Gateway, worker: str) -> None:
    """Have a worker leave, and wait until it is gone."""
    subprocess.run(
        [*(COMMAND, "workers", "drain", worker), "--wait", "60", "--state-dir", gateway.state_dir],
        check=True,
        stdout=subprocess.DEVNULL,
    )
