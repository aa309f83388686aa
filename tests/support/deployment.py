# SPDX-License-Identifier: Apache-2.0
"""An agent server and its environment server without processes: files, and what works on them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.receiving import Notebook, asking, creates

from rollout_router.checkpoint.control import Checkpoints
from rollout_router.checkpoint.effects import Performed, Send
from rollout_router.checkpoint.environment_server import EnvironmentServer
from rollout_router.checkpoint.environments import Environments
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Completed, Journal, Opened
from rollout_router.checkpoint.phases import ACTIVE
from rollout_router.checkpoint.receiver import Receiver
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.tables import outbox_of, rollout_of, rows_of
from rollout_router.checkpoint.wire import Operation
from rollout_router.claims import FileClaimStore, Moment, read_gate

__all__ = ["DIGESTS", "Clock", "Deploy", "Deployment", "Local", "asked", "code_of"]

DIGESTS = {"loop_digest": "loop", "configuration_digest": "configuration"}


def code_of(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The code with which *call* refuses."""
    with pytest.raises(CheckpointRefusal) as caught:
        call(*arguments, **named)
    return caught.value.code


class Clock:
    """The present moment, which a test moves."""

    def __init__(self) -> None:
        self.moment = Moment.now()

    def __call__(self) -> Moment:
        return self.moment

    def forward(self, seconds: float) -> None:
        self.moment = self.moment.later(seconds)

    def reboot(self) -> None:
        self.moment = Moment(boot_id="another", seconds=1.0)


class Local(EnvironmentServer):
    """An environment server that is asked without a network between, from any thread."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__("http://environments")
        self.receiver = receiver
        self.loop: asyncio.AbstractEventLoop | None = None  # where the receiver works, if it does
        self.down = False
        self.asked: list[str] = []

    def _sent(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if self.down:
            raise ConnectionRefusedError
        self.asked.append(method)
        path, _, query = path.partition("?")
        request = asking(self.receiver, path, method=method, body=body or b"", query=query.encode())
        if self.loop is None:
            answered = asyncio.run(request)
        else:
            answered = asyncio.run_coroutine_threadsafe(request, self.loop).result()
        return answered.status, answered.body


class Deployment:
    """One of each, in *folder*; archives are beside them unless they are named."""

    def __init__(
        self,
        folder: Path,
        *,
        state: Path | None = None,
        archives: Path | None = None,
        instance: str = "agent",
        run: str = "run-1",
        clock: Clock | None = None,
    ) -> None:
        folder.mkdir(0o700, exist_ok=True)
        self.state = state or folder / "state"
        self.archives = archives or folder / "archives"
        self.clock = clock or Clock()
        there = self.state.exists()
        find = FileClaimStore.inspect if there else partial(FileClaimStore.open, service="agent")
        store = find(self.state)
        self.journal = Journal(
            folder / "journal", instance=instance, run=run, store_id=store.store_id
        )
        self.environments = Environments(folder / "environments")
        self.notebook = Notebook()
        self.receiver = Receiver(
            self.notebook, self.environments, state=self.notebook, creates=creates
        )
        self.server = Local(self.receiver)
        self.checkpoints = Checkpoints(self.journal, self.state, now=self.clock)

    def close(self) -> None:
        self.journal.close()
        self.environments.close()

    def sending(self, path: str, line: str) -> Send:
        """An operation on an environment."""

        async def send(operation: Operation) -> Performed:
            answered = await asking(self.receiver, path, operation.headers(), body=line.encode())
            if answered.status != 200:
                raise CheckpointRefusal(answered.code, f"{operation.id}: {answered.body!r}")
            return Performed(value=json.loads(answered.body), revision=answered.revision)

        return send

    async def one(self, run: Run, number: int) -> Any:
        """The *number*-th operation of a loop: it makes its environment, and then adds to it."""
        kind, path = ("seed", "/make") if number == 0 else ("step", "/line")
        return await run.op(
            kind,
            number,
            self.sending(path, f"{run.rollout_id} {number}"),
            effect="keyed",
            environment_id=run.environment_id,
        )

    async def opened(self, rollout_id: str, epoch: int) -> Run | Completed:
        opened = await self.journal.open_rollout(rollout_id, epoch, task="task", **DIGESTS)
        if isinstance(opened, Opened):
            return Run(self.journal, opened.rollout, opened.rows)
        return opened

    def play(self, rollout_id: str, operations: int, *, epoch: int = 1, ends: bool = False) -> Any:
        """Begin or continue a rollout up to so many operations, and perhaps to its end."""

        async def played() -> Any:
            run = await self.opened(rollout_id, epoch)
            if isinstance(run, Completed):
                return json.loads(run.payload)
            value = None
            for number in range(operations):
                value = await self.one(run, number)
            return json.loads((await run.complete(value)).payload) if ends else value

        return asyncio.run(played())

    def act(self, work: Callable[[Run], Awaitable[Any]], rollout_id: str, epoch: int = 1) -> Any:
        """Do something with the run of an open rollout."""

        async def acted() -> Any:
            run = await self.opened(rollout_id, epoch)
            assert isinstance(run, Run)
            return await work(run)

        return asyncio.run(acted())

    def acknowledge(self, rollout_id: str, epoch: int = 1) -> None:
        receipt, _ = self.outbox(rollout_id) or ("", "")
        asyncio.run(self.journal.acknowledge(rollout_id, epoch, receipt))

    def outbox(self, rollout_id: str) -> tuple[str, str | None] | None:
        return self.journal.database.read(lambda db: outbox_of(db, rollout_id))

    def rollout(self, rollout_id: str) -> Any:
        return self.journal.database.read(lambda db: rollout_of(db, rollout_id))

    def rows(self, rollout_id: str) -> Any:
        return self.journal.database.read(lambda db: rows_of(db, rollout_id))

    def lines(self, environment_id: str) -> Any:
        """What is recorded of an environment."""
        found = asyncio.run(self.environments.look(environment_id))
        state = getattr(found, "state", None)
        return None if state is None else json.loads(state)

    def dump(self) -> list[str]:
        """All that its journal says, but for when."""

        def look(db: Any) -> list[str]:
            tables = ("rollout", "operation", "outbox", "checkpoint")
            return [repr(row) for table in tables for row in db.execute(f"SELECT * FROM {table}")]  # noqa: S608 - our names

        return self.journal.database.read(look)

    @property
    def gate_open(self) -> bool:
        return read_gate(self.state, now=self.clock).open

    @property
    def phases(self) -> dict[str, str]:
        return {one.checkpoint_id: one.phase for one in self.checkpoints.known()}

    def check_gate(self) -> None:
        """O5: the gate is open unless a checkpoint holds it."""
        assert self.gate_open == (not ACTIVE & set(self.phases.values())), self.phases

    def prepare(self, name: str = "c1", *, budget_s: float = 60.0) -> Any:
        return self.checkpoints.prepare(name, budget_s=budget_s, wait_s=0)

    def commit(self, name: str = "c1", scope: list[str] | None = None) -> Any:
        return self.checkpoints.commit(name, self.archives, environments=self.server, scope=scope)

    def restore(self, name: str = "c1", *, budget_s: float = 60.0) -> Any:
        return self.checkpoints.restore(
            name, self.archives, environments=self.server, budget_s=budget_s, wait_s=0
        )

    def taken(self, name: str = "c1", scope: list[str] | None = None) -> Any:
        """A whole checkpoint."""
        self.prepare(name)
        manifest = self.commit(name, scope)
        self.checkpoints.resume(name)
        return manifest


Deploy = Callable[..., Deployment]


async def asked(run: Run, number: int = 0) -> Any:
    """An operation that acts on no environment."""

    async def send(_: Operation) -> Performed:
        return Performed(value=[run.rollout_id, number])

    return await run.op("model", number, send, effect="resample")
