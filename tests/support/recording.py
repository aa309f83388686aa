# SPDX-License-Identifier: Apache-2.0
"""A world for agent loops: a journal, a gate, and servers that keep their half of the contract."""

import asyncio
import functools
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from rollout_router.call import Call, Steps
from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.effects import Performed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal, Opened
from rollout_router.checkpoint.rows import Rollout
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.sessions import Sessions
from rollout_router.checkpoint.tool_session import Next, SessionTask, ToolSession
from rollout_router.checkpoint.wire import Operation

STORE = "store-1"
TASK = {"scenario": "s", "seed": 7}
DIGESTS = {"loop_digest": "l", "configuration_digest": "c"}
_P = ParamSpec("_P")


def on_a_loop(test: Callable[_P, Awaitable[None]]) -> Callable[_P, None]:
    """A test that is a coroutine, on a loop of its own; it must leave no task behind."""

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(10):
                await test(*args, **kwargs)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left

        asyncio.run(bounded())

    return run


def journal_in(
    folder: Path, *, instance: str = "agent", run: str = "run-1", store_id: str = STORE
) -> Journal:
    path = folder / "journal.sqlite3"
    return Journal(path, instance=instance, run=run, store_id=store_id, now=lambda: "then")


def begun(rollout_id: str) -> Rollout:
    """A rollout of claim epoch 1 that recorded nothing."""
    return Rollout.begun(rollout_id, 1, task="{}", **DIGESTS, at="then")


async def opened(journal: Journal, epoch: int = 1, rollout_id: str = "r") -> Opened:
    found = await journal.open_rollout(rollout_id, epoch, task=TASK, **DIGESTS)
    assert isinstance(found, Opened)
    return found


def call(epoch: int | None = 1, rollout_id: str = "r", steps: Steps | None = None) -> Call:
    return Call(
        rollout_id=rollout_id, claim_epoch=epoch, worker_id="w", store_id=STORE, steps=steps
    )


def sql(folder: Path, statement: str, *values: object) -> list[Any]:
    """What somebody else does to the journal."""
    with closing(sqlite3.connect(folder / "journal.sqlite3")) as db, db:
        return db.execute(statement, values).fetchall()


def dump(folder: Path) -> dict[str, list[Any]]:
    """All that the journal holds."""
    tables = ("meta", "rollout", "operation", "outbox", "checkpoint")
    return {table: sql(folder, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables}  # noqa: S608 - our names


async def refused(code: str, work: Awaitable[Any]) -> CheckpointRefusal:
    """The refusal that *work* ends with."""
    with pytest.raises(CheckpointRefusal) as refusal:
        await work
    assert refusal.value.code == code
    return refusal.value


def sessions_of(journal: Journal, loop: Any, **named: Any) -> Sessions:
    return Sessions(journal, loop, **{"loop_digest": "l", **named})


async def one(operation: Operation) -> Performed:
    return Performed(value=1, revision=1 if operation.environment_id else None)


def act(run: Run, kind: str = "act", send: Any = one, **named: Any) -> Coroutine[Any, Any, Any]:
    """One operation of a loop."""
    return run.op(kind, None, send, **{"effect": "keyed", **named})


class Server:
    """Answers what it is told to, one after the other, and remembers what it was sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.sent = list(answers), list[Operation]()
        self.asked = asyncio.Event()

    async def __call__(self, operation: Operation) -> Performed:
        self.sent.append(operation)
        self.asked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        return answer if isinstance(answer, Performed) else Performed(value=answer)


class Gate:
    """Steps of a gate that a test turns."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.opens, self.waits = asyncio.Event(), asyncio.Event()
        self.in_hand = 0
        if is_open:
            self.opens.set()

    def begin(self) -> bool:
        self.in_hand += self.opens.is_set()
        return self.opens.is_set()

    def end(self) -> None:
        self.in_hand -= 1
        assert self.in_hand >= 0

    async def wait_open(self) -> None:
        self.waits.set()
        await self.opens.wait()


class Died(Exception):  # noqa: N818 - what became of the process
    """The process is thrown away here."""


class Deaths:
    """Where the process dies, once each: points are counted as they are passed."""

    def __init__(self, *at: int) -> None:
        self.left, self.passed = list(at), 0

    def point(self) -> None:
        self.passed += 1
        if self.left and self.passed == self.left[0]:
            self.left.pop(0)
            self.passed = 0
            raise Died


class DyingJournal(Journal):
    """A journal whose process may die before and after each write."""

    def __init__(self, folder: Path, deaths: Deaths) -> None:
        super().__init__(folder / "journal.sqlite3", instance="agent", run="run-1", store_id=STORE)
        self.deaths = deaths

    async def append(self, *args: Any) -> Any:
        self.deaths.point()
        done = await super().append(*args)
        self.deaths.point()
        return done

    async def complete(self, *args: Any) -> Any:
        self.deaths.point()
        done = await super().complete(*args)
        self.deaths.point()
        return done


CALL = {"type": "function_call", "name": "look", "arguments": "{}"}
SAID: tuple[list[dict[str, Any]], ...] = (
    [{**CALL, "call_id": "a"}, {**CALL, "call_id": "b"}],
    [{"type": "message", "content": [{"type": "output_text", "text": "hello"}]}],
    [],
)
"""What the model says: two calls, then text, then nothing."""


def said_after(items: list[Any], said: tuple[list[Any], ...] = SAID) -> dict[str, Any]:
    """The model's answer to a conversation: a matter of what it was sent alone."""
    turn = sum(item["type"] == "turn" for item in items)
    return {
        "id": f"call-{turn}",
        "output": [{"type": "turn"}, *said[turn]],
        "usage": {"input_tokens": 10, "output_tokens": turn + 1},
    }


class World:
    """A model and an environment that answers a repeat from the last reply that it kept."""

    def __init__(self, deaths: Deaths | None = None) -> None:
        self.deaths = deaths or Deaths()
        self.received: list[Operation] = []
        self.applied: Counter[str] = Counter()
        self.environments: dict[str, tuple[int, str, Performed]] = {}
        self.samples = 0
        self.forgotten: list[str] = []

    async def release(self, environment_ids: Any) -> None:
        self.forgotten += sorted(environment_ids)

    async def perform(self, asked: Next, operation: Operation) -> Performed:
        self.received.append(operation)
        self.deaths.point()
        if asked.kind == "model":
            self.samples += 1
            answer = said_after(list(asked.request["body"]["input"]))
            cookies = {answer["id"]: "x"}
            done = Performed(value={"status": 200, "response": answer, "cookies": cookies})
        else:
            done = self.act(asked, operation)
        self.deaths.point()
        return done

    def act(self, asked: Next, operation: Operation) -> Performed:
        environment_id, asked_text = operation.environment_id or "", canonical(asked.request)
        sequence, text, reply = self.environments.get(
            environment_id, (0, "", Performed(value=None, revision=0))
        )
        if operation.sequence == sequence:
            assert text == asked_text
            return reply
        assert operation.sequence > sequence
        self.applied[operation.id] += 1
        reply = Performed(value=_REPLIES[asked.kind](asked), revision=(reply.revision or 0) + 1)
        self.environments[environment_id] = (operation.sequence, asked_text, reply)
        return reply

    async def loop(self, run: Run, document: Any) -> Any:
        """A tool-using session, as its example plays it."""
        session = ToolSession.begin(SessionTask.from_document(document), run.environment_id)
        while (asked := session.next()) is not None:
            value = await run.op(
                asked.kind,
                asked.request,
                partial(self.perform, asked),
                effect=asked.effect,
                environment_id=None if asked.kind == "model" else run.environment_id,
            )
            session = session.after(asked.kind, value)
        return session.result()


_REPLIES: Mapping[str, Callable[[Next], Any]] = {
    "seed": lambda _: {"observation": [{"type": "message", "content": []}], "tools": ["look"]},
    "step": lambda asked: {"observation": [{"type": "seen", "of": asked.request}], "done": False},
    "close": lambda _: {},
    "verify": lambda _: {"reward": 0.5, "details": {"why": "seen"}},
}
