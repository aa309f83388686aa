# SPDX-License-Identifier: Apache-2.0
"""Workers are killed in turn under load: nothing is left (C3, C6), and nothing runs twice (R2).

Two of three workers are killed again and again; the third lives through all of it, so that whatever
the deaths of its peers cost a worker adds up in it.
"""

import json
import re
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.gateway import Gateway, kill_and_wait, open_files, wait_until
from support.load import Caller, Load, Outcome, Sent, assert_each_ran_as_known

CLIENTS = 6
ROLLOUTS = 4


@pytest.mark.parametrize(
    "kills", [8, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_c3_of_workers_killed_under_load_nothing_is_left_and_r2_no_call_ran_twice(
    serve: Callable[..., Gateway], folder: Path, kills: int
) -> None:
    executions = folder / "executions"
    gateway = serve(
        *("--app", "support.app:counted", "--sweep-seconds", "0.2"),
        *("--history-rollouts", "1"),  # so that claims are given back and taken all the time
        workers=3,
        environment={"TEST_EXECUTIONS": str(executions)},
    )
    address = gateway.url.removeprefix("http://")
    survivor, *victims = (worker["pid"] for worker in gateway.ready["workers"])
    supervisor = gateway.process.pid
    before = {pid: descriptors(pid) for pid in (supervisor, survivor)}
    turns = deque(victims)
    with ThreadPoolExecutor(CLIENTS) as threads:
        # On a connection of its own each, so that any worker may take it.
        callers = [Caller(lambda: address, keeps=False) for _ in range(CLIENTS)]
        load = Load(threads, [caller.call for caller in callers], rollouts=ROLLOUTS)
        try:
            for _ in range(kills):
                kill_and_wait(turns.popleft())
                turns.append(serving_pid(gateway.wait_line(" serves model at ")))
        finally:
            calls = load.stop()

    living = {str(worker["id"]) for worker in gateway.ready["workers"]}
    for _ in range(3 * kills):  # of earlier passes too there are lines
        if not left_behind(gateway, living):
            break
        gateway.wait_line("swept ")
    assert left_behind(gateway, living) == []
    # What a peer's death costs is given back. Idle connections between workers are soon closed.
    expected = [*before.items(), (turns[-1], before[survivor])]
    wait_until(
        lambda: all(descriptors(pid) <= known for pid, known in expected),
        "nothing more is open than before",
    )
    assert_each_ran_as_known(calls, executions)
    assert_recorded(gateway, calls)
    assert gateway.stop() == 0
    assert "Traceback" not in "".join(gateway.log)


def serving_pid(line: str) -> int:
    """The process that logged this line."""
    return int(json.loads(line)["pid"])


def left_behind(gateway: Gateway, living: set[str]) -> list[str]:
    """What names a worker that is not one of the living, and temporary files."""
    run = gateway.folder / "run"
    names = [path.name for path in (gateway.state_dir / "owners").iterdir()]
    names += [path.stem for path in run.iterdir() if path.is_socket()]
    names += [str(claim["worker_id"]) for claim in gateway.claims().values()]
    temporary = [path for path in gateway.folder.rglob("*") if re.search(r"\.(tmp|new)", path.name)]
    return [name for name in names if name not in living] + [str(path) for path in temporary]


def descriptors(pid: int) -> Counter[str]:
    """What a process has open: files by path, its own owner file and all else by their kind."""
    return Counter(re.sub(r":\[\d+\]$|(?<=/owners/)\w+$", "", name) for name in open_files(pid))


def assert_recorded(gateway: Gateway, calls: list[Sent]) -> None:
    """Each answered call left one record, no call left two, and epochs never fall (F1, F2)."""
    recorded: Counter[str] = Counter()
    for rollout_id in {call.rollout_id for call in calls}:
        records = gateway.records(rollout_id)
        recorded.update(record["request_sha256"] for record in records)
        epochs = [record["claim_epoch"] for record in records]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) > 1
    assert {call.sha256 for call in calls if call.outcome is Outcome.ANSWERED} <= set(recorded)
    assert max(recorded.values()) == 1
