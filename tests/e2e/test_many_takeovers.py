# SPDX-License-Identifier: Apache-2.0
"""Many workers take over many rollouts of one dead worker at once: one owner each (C4, R2)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.gateway import Gateway, alone, kill_and_wait, stopped
from support.load import Caller, Outcome, Sent, assert_each_ran_as_known

CALLS_EACH = 4


@pytest.mark.parametrize(
    ("workers", "rollouts"),
    [(4, 60), pytest.param(8, 1000, marks=[pytest.mark.long, pytest.mark.timeout(600)])],
)
def test_c4_rollouts_of_one_dead_worker_get_one_owner_each_and_r2_no_call_is_lost(
    serve: Callable[..., Gateway], folder: Path, workers: int, rollouts: int
) -> None:
    executions = folder / "executions"
    gateway = serve(
        *("--app", "support.app:counted", "--sweep-seconds", "600"),  # calls alone take over
        workers=workers,
        environment={"TEST_EXECUTIONS": str(executions), "TEST_THINKING_S": "0"},
    )
    address = gateway.url.removeprefix("http://")
    doomed = gateway.ready["workers"][0]
    names = [f"r{number}" for number in range(rollouts)]
    with alone(gateway, doomed["id"]), Caller(lambda: address, keeps=True) as caller:
        before = {name: caller.call(name, f"first of {name}".encode()) for name in names}
    assert {call.worker for call in before.values()} == {doomed["id"]}

    def call(name: str, number: int) -> Sent:
        with Caller(lambda: address, keeps=False) as caller:
            return caller.call(name, f"call {number} of {name}".encode())

    with stopped(gateway.process.pid), ThreadPoolExecutor(32) as threads:  # nobody is replaced
        kill_and_wait(doomed["pid"])
        asked = {
            name: [threads.submit(call, name, number) for number in range(CALLS_EACH)]
            for name in names
        }
        after = {name: [one.result() for one in calls] for name, calls in asked.items()}

    calls = [*before.values(), *(call for calls in after.values() for call in calls)]
    assert {call.outcome for call in calls} == {Outcome.ANSWERED}
    assert_each_ran_as_known(calls, executions)
    for name, answers in after.items():
        ((owner, epoch),) = {(call.worker, call.claim_epoch) for call in answers}
        assert owner != doomed["id"]
        assert epoch > before[name].claim_epoch
    owners = {call.worker for calls in after.values() for call in calls}
    print(f"\n{rollouts} rollouts, {len(calls)} calls, {len(owners)} new owners")  # noqa: T201 - for pytest -s
    assert len(owners) > 1, "they were taken over by several workers"
