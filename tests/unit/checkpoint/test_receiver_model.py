# SPDX-License-Identifier: Apache-2.0
"""Random lives of environments against a model: each operation is done once, each reply is one.

Two server processes over one file, either of which may die at any time. The environment answers
every line that it was ever given, so a step that was done twice, lost, half done or done on an old
copy is in all later answers.
"""

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from support.receiving import Answered, Notebook, asking, creates, named

from rollout_router.checkpoint import environments as environments_module
from rollout_router.checkpoint import receiver as receiver_module
from rollout_router.checkpoint.environment_control import CONTROL_PATH
from rollout_router.checkpoint.environments import Environment, Environments
from rollout_router.checkpoint.held import Held
from rollout_router.checkpoint.receiver import Apply, Receiver, Repeat

IDS = st.sampled_from(["e1", "e2"])
PROCESSES = st.sampled_from([0, 1])
FAILING = st.sampled_from(["/raise", "/fail", "/cut"])


@dataclass
class Life:
    """What the model knows of an environment."""

    there: bool = False
    lines: list[str] = field(default_factory=list)
    sequence: int = 0
    epoch: int = 1
    path: str = ""  # of the last operation


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "environments.sqlite")
        self.lives = {"e1": Life(), "e2": Life()}
        self.processes = [self.started(), self.started()]

    def started(self) -> tuple[Receiver, Environments]:
        book, environments = Notebook(), Environments(self.path)
        one = Receiver(book, environments, state=book, creates=creates, held_max=1)
        return one, environments

    def teardown(self) -> None:
        for _, environments in self.processes:
            environments.close()
        self.runner.close()
        self.folder.cleanup()

    def ask(self, process: int, path: str, *arguments: Any, **more: Any) -> Answered:
        return self.runner.run(asking(self.processes[process][0], path, *arguments, **more))

    def send(
        self, process: int, environment: str, path: str, *, ahead: int = 0, later: int = 0
    ) -> Answered:
        """Send an operation; its sequence and its claim epoch are told from the last ones."""
        life = self.lives[environment]
        sequence = life.sequence + ahead
        headers = named(sequence, epoch=life.epoch + later, environment=environment)
        return self.ask(process, path, headers, body=str(sequence).encode())

    def did(self, environment: str, answer: Answered) -> None:
        """What an answered operation must have been answered."""
        life = self.lives[environment]
        assert answer.status == 200, answer
        assert json.loads(answer.body) == life.lines
        assert answer.revision == len(life.lines)

    def applied(self, environment: str, path: str, *, ahead: int, later: int) -> None:
        life = self.lives[environment]
        life.sequence += ahead
        life.epoch += later
        life.path = path
        life.lines = [*life.lines, str(life.sequence)]

    @initialize()
    def begin(self) -> None:
        for process, environment in enumerate(self.lives):
            self.make(process, environment, ahead=1, later=0)

    @rule(process=PROCESSES, environment=IDS, ahead=st.integers(1, 3), later=st.integers(0, 1))
    def make(self, process: int, environment: str, ahead: int, later: int) -> None:
        answer = self.send(process, environment, "/make", ahead=ahead, later=later)
        life = self.lives[environment]
        if life.there:
            assert answer.code == "environment_exists"
            return
        life.there, life.lines = True, []
        self.applied(environment, "/make", ahead=ahead, later=later)
        self.did(environment, answer)

    @rule(
        by=st.lists(PROCESSES, min_size=1, max_size=5),
        environment=IDS,
        ahead=st.integers(1, 3),
        later=st.integers(0, 1),
    )
    def step(self, by: list[int], environment: str, ahead: int, later: int) -> None:
        for process in by:
            answer = self.send(process, environment, "/step", ahead=ahead, later=later)
            if not self.lives[environment].there:
                assert answer.code == "environment_unknown"
                return
            self.applied(environment, "/step", ahead=ahead, later=later)
            self.did(environment, answer)

    @rule(process=PROCESSES, environment=IDS, path=FAILING)
    def fail(self, process: int, environment: str, path: str) -> None:
        there = self.lives[environment].there
        answer = self.send(process, environment, path, ahead=1)
        assert answer.code == ("environment_failed" if there else "environment_unknown")

    @rule(process=PROCESSES, environment=IDS, later=st.integers(0, 1))
    def repeat(self, process: int, environment: str, later: int) -> None:
        life = self.lives[environment]
        if life.there:
            self.did(environment, self.send(process, environment, life.path, later=later))
            life.epoch += later
        elif life.sequence:
            answer = self.send(process, environment, life.path, later=later)
            assert answer.code == "stale_operation"

    @rule(process=PROCESSES, environment=IDS, path=st.sampled_from(["/make", "/step"]))
    def late(self, process: int, environment: str, path: str) -> None:
        life = self.lives[environment]
        if life.sequence > 1:
            answer = self.send(process, environment, path, ahead=-1)
            assert answer.code == "stale_operation"
        if life.sequence and life.epoch > 1:
            for ahead in (0, 1):
                answer = self.send(process, environment, life.path, ahead=ahead, later=-1)
                assert answer.code == "stale_attempt"

    @rule(process=PROCESSES)
    def die(self, process: int) -> None:
        self.processes[process][1].close()
        self.processes[process] = self.started()

    @rule(process=PROCESSES, environment=IDS)
    def forget(self, process: int, environment: str) -> None:
        answer = self.ask(process, CONTROL_PATH + environment, method="DELETE")
        assert answer.status == 204
        self.lives[environment].there = False

    @rule(process=PROCESSES, target_process=PROCESSES, environment=IDS)
    def move(self, process: int, target_process: int, environment: str) -> None:
        path = CONTROL_PATH + environment
        document = self.ask(process, path, method="GET")
        if not self.lives[environment].there:
            assert document.code == "environment_unknown"
            return
        assert self.ask(process, path, method="DELETE").status == 204
        for status in (201, 204):
            put = self.ask(target_process, path, method="PUT", body=document.body)
            assert put.status == status


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="rollout_router.checkpoint")


def lived(examples: int) -> None:
    run_state_machine_as_test(
        Lives,
        settings=settings(
            max_examples=examples, stateful_step_count=15, deadline=None, database=None
        ),
    )


def a_life() -> None:
    """One life that meets everything, whatever chance says."""
    lives = Lives()
    try:
        lives.begin()
        lives.step([0, 1, 0], "e1", ahead=1, later=0)
        lives.repeat(1, "e1", later=1)
        lives.late(0, "e1", "/make")
        for path in ("/raise", "/fail", "/cut"):
            lives.fail(0, "e1", path)
            lives.step([0, 1], "e1", ahead=2, later=0)
        lives.die(0)
        lives.repeat(0, "e1", later=0)
        lives.move(0, 1, "e1")
        lives.step([1, 0], "e1", ahead=1, later=1)
        lives.forget(0, "e1")
        lives.repeat(1, "e1", later=0)
        lives.late(0, "e1", "/make")
        lives.make(1, "e1", ahead=1, later=0)
        lives.step([0], "e2", ahead=1, later=0)
    finally:
        lives.teardown()


def test_f1_one_long_life_is_as_the_model_says() -> None:
    a_life()


def test_f1_each_operation_is_done_once_and_has_one_reply() -> None:
    lived(8)


@pytest.mark.long
def test_f1_each_operation_is_done_once_and_has_one_reply_in_many_lives() -> None:
    lived(1500)


def without_the_last_reply(patch: pytest.MonkeyPatch) -> None:
    decide = receiver_module.decide

    def mutant(*found: Any, **more: Any) -> Repeat | Apply:
        what = decide(*found, **more)
        return Apply(recorded=what.recorded) if isinstance(what, Repeat) else what

    patch.setattr(receiver_module, "decide", mutant)


def without_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiver_module, "_check_owner", lambda *_: None)


def without_raising_the_fence(patch: pytest.MonkeyPatch) -> None:
    async def mutant(*_: Any) -> None:
        pass

    patch.setattr(Environments, "raise_fence", mutant)


def without_the_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(receiver_module, "_check_order", lambda *_, **__: None)


def without_dropping_a_failed_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Held, "drop", lambda *_: None)


def without_comparing_what_is_held(patch: pytest.MonkeyPatch) -> None:
    bring_back = Held.bring_back

    def mutant(self: Held, environment: Environment) -> None:
        if self.known(environment.environment_id) is None:
            bring_back(self, environment)

    patch.setattr(Held, "bring_back", mutant)


def without_remembering_the_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(environments_module, "_REMEMBER", "SELECT ?")


@pytest.mark.parametrize(
    "mutate",
    [
        without_the_last_reply,
        without_the_fence,
        without_raising_the_fence,
        without_the_order,
        without_dropping_a_failed_copy,
        without_comparing_what_is_held,
        without_remembering_the_removed,
    ],
)
def test_a_receiver_that_does_less_does_not_live_as_the_model(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        a_life()
