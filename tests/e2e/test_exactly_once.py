# SPDX-License-Identifier: Apache-2.0
"""What ran at the application is what the clients know, but for what they know is uncertain (R2).

Meanwhile workers are killed, drained by command and ended by signal, clients leave in the middle of
a call, and the whole service is stopped and started again. ``pytest -s`` prints the totals.
"""

import itertools
import json
import os
import random
import secrets
import select
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.gateway import COMMAND, PATIENCE_S, Gateway, wait_dead
from support.load import Caller, Outcome, Sent, assert_each_ran_as_known, forwarded, totals

ROLLOUTS = 30
THINKING_S = 0.2  # so that each kill finds calls in hand, about four at each of three workers


class Clients:
    """Clients of which every other one keeps its connection, and some leave before the answer."""

    def __init__(self, address: Callable[[], str], seed: str, calls_min: int) -> None:
        self._address = address
        self._seed = seed
        self._calls_min = calls_min
        self._numbers = itertools.count()
        self._begun = 0
        self._changed = threading.Condition()
        self.up = threading.Event()  # cleared while the service is down or closed
        self.up.set()
        self.cut = threading.Event()  # set when a call was
        self.enough = threading.Event()  # set when no more disturbances come

    def wait_begun(self, number: int) -> None:
        """Wait until so many calls were begun."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._begun >= number, 2 * PATIENCE_S):
                raise TimeoutError(f"{self._begun} calls of {number} were begun")

    def run(self, client: int) -> list[Sent]:
        """One client; its calls, when there were enough disturbances and calls of all clients."""
        dice = random.Random(f"{self._seed} {client}")  # noqa: S311 - repeatable, nothing secret
        sent: list[Sent] = []
        with Caller(self._address, keeps=client % 2 == 0) as caller:
            while (number := next(self._numbers)) < self._calls_min or not self.enough.is_set():
                with self._changed:
                    self._begun = max(self._begun, number)
                    self._changed.notify_all()
                sent.append(self._call(caller, number, dice))
                if sent[-1].outcome in {Outcome.CUT, Outcome.LOST}:
                    self.cut.set()
                turned_away = sent[-1].outcome in {Outcome.NOT_SENT, Outcome.REFUSED}
                if turned_away and not self.up.wait(2 * PATIENCE_S):
                    raise TimeoutError("the service did not come back")
        return sent

    def _call(self, caller: Caller, number: int, dice: random.Random) -> Sent:
        rollout_id = f"r{dice.randrange(ROLLOUTS)}"
        body = f"call {number} of {self._seed}".encode()
        fate = dice.random()
        if fate < 0.02:
            return caller.call(rollout_id, body, part=dice.random())
        if fate < 0.06:
            leave_after_s = max(0, dice.uniform(-0.3, 1)) * THINKING_S
            return caller.call(rollout_id, body, leave_after_s=leave_after_s)
        return caller.call(rollout_id, body)


class Disturber:
    """Ends workers, one way or another, and restarts the service.

    A worker is known by a pidfd from when it serves, so that no other process is ever hit.
    """

    def __init__(self, start: Callable[[Path | None], Gateway], dice: random.Random) -> None:
        self._start = start
        self._dice = dice
        self._watches: dict[str, int] = {}
        self._leaving: set[str] = set()
        self._owed = 0  # workers that the supervisor will start
        self.gateways: list[Gateway] = []
        self.address = ""  # of the service as it runs now, or as it last ran
        self._serve(None)

    @property
    def gateway(self) -> Gateway:
        """The service that was started last."""
        return self.gateways[-1]

    def do(self, step: str) -> None:
        """Do it. What follows from it goes on beside the calls, and beside the next step."""
        match step:
            case "restart":  # as an operator does it
                assert self.gateway.stop() == 0, "".join(self.gateway.log)
                self.forget()
                self._serve(self.gateway.state_dir.parent)
            case "close":  # admission, until every worker has heard it
                self._command("admission", "close", "--why", "a test", codes={0, 1})  # 1: in hand
                assert self.gateway.post("r0", b"nobody runs this").status_code == 503
                self._command("admission", "open")
            case _:
                self._end_worker(step)

    def _end_worker(self, step: str) -> None:
        staying = self._staying()
        while self._owed and (len(staying) < 2 or self._dice.random() < 0.3):
            self._meet(self.gateway.wait_line(" serves model at "))
            self._owed -= 1
            staying = self._staying()
        # One that leaves may be killed as it does.
        worker = self._dice.choice(sorted(self._watches) if step == "kill" else staying)
        match step:
            case "kill":
                signal.pidfd_send_signal(self._watches[worker], signal.SIGKILL)
                wait_dead(self._watches.pop(worker))
            case "terminate":
                signal.pidfd_send_signal(self._watches[worker], signal.SIGTERM)
            case "drain":
                self._command("workers", "drain", worker)
            case _:
                raise ValueError(step)
        self._owed += worker not in self._leaving
        self._leaving.add(worker)

    def forget(self) -> None:
        """Forget every worker."""
        for watch in self._watches.values():
            os.close(watch)
        self._watches.clear()
        self._owed = 0

    def _command(self, *arguments: str, codes: Collection[int] = (0,)) -> None:
        done = subprocess.run(
            [COMMAND, *arguments, "--state-dir", self.gateway.state_dir],
            check=False,
            capture_output=True,
        )
        assert done.returncode in codes, done.stderr

    def _serve(self, state: Path | None) -> None:
        self.gateways.append(self._start(state))
        self.address = self.gateway.url.removeprefix("http://")
        for worker in self.gateway.ready["workers"]:
            self._watches[worker["id"]] = os.pidfd_open(worker["pid"])

    def _meet(self, line: str) -> None:
        """Know the worker that logged that it serves."""
        said = json.loads(line)
        words = said["message"].split()
        self._watches[words[words.index("worker") + 1]] = os.pidfd_open(said["pid"])

    def _staying(self) -> list[str]:
        """Workers that were not told to go; those that are gone are forgotten."""
        for worker in self._leaving & self._watches.keys():
            if select.select([self._watches[worker]], [], [], 0)[0]:
                os.close(self._watches.pop(worker))
        return sorted(self._watches.keys() - self._leaving)


@pytest.mark.parametrize(
    ("calls_min", "callers", "plan"),
    [
        (250, 12, {"kill": 4, "drain": 1, "terminate": 1, "restart": 1, "close": 1}),
        pytest.param(
            *(10_000, 32, {"kill": 30, "drain": 10, "terminate": 10, "restart": 3, "close": 5}),
            marks=[pytest.mark.long, pytest.mark.timeout(1200)],
        ),
    ],
    ids=["250 calls", "10000 calls"],
)
def test_r2_the_executions_are_those_that_the_clients_know_of(
    serve: Callable[..., Gateway],
    folder: Path,
    *,
    calls_min: int,
    callers: int,
    plan: dict[str, int],
) -> None:
    executions = folder / "executions"

    def start(state: Path | None) -> Gateway:
        return serve(
            *("--app", "support.app:counted", "--no-history-delta", "--route-always"),
            *("--history-rollouts", "6", "--sweep-seconds", "0.2"),  # so that claims come and go
            workers=3,
            state=state,
            environment={"TEST_EXECUTIONS": str(executions), "TEST_THINKING_S": str(THINKING_S)},
        )

    seed = secrets.token_hex(4)
    dice = random.Random(seed)  # noqa: S311 - repeatable, nothing secret
    steps = list(Counter(plan).elements())
    dice.shuffle(steps)
    disturber = Disturber(start, dice)
    load = Clients(lambda: disturber.address, seed, calls_min)
    with ThreadPoolExecutor(callers) as threads:
        clients = [threads.submit(load.run, client) for client in range(callers)]
        try:
            for number, step in enumerate(steps, 1):
                load.wait_begun(calls_min * number // (len(steps) + 1))
                load.up.clear()
                disturber.do(step)
                load.up.set()
            while not load.cut.is_set():  # no kill found a call in hand, which is rare
                disturber.do("kill")
        finally:
            load.up.set()
            load.enough.set()
            disturber.forget()
        calls = [sent for client in clients for sent in client.result()]

    print(f"\nseed {seed}: {plan}\n{totals(calls, executions)}")  # noqa: T201 - for pytest -s
    assert_each_ran_as_known(calls, executions, f"seed {seed}")
    assert forwarded(calls) > 0
    happened = {call.outcome for call in calls}
    assert {Outcome.ANSWERED, Outcome.LEFT, Outcome.LEFT_EARLY} <= happened
    assert disturber.gateway.stop() == 0
    assert "Traceback" not in "".join(line for one in disturber.gateways for line in one.log)
