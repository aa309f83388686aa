# SPDX-License-Identifier: Apache-2.0
"""The processes of a cell: an agent, an environment server, and the world outside.

    agent          started      in a call, before it is opened
                   begun        before an operation is sent, or the result is recorded
                   told         before, and taken: after its result was handed over
    environment    arrived      a request is here, and was not looked at
                   replied      it is done, and its answer has not left
    outside        arrived, replied    likewise

besides the points of their databases. A target is the number of an operation, or names the call.
Orders on the way: "lose" an answer, "refuse" or "park" a request, deliver it "twice" or "together",
or "late": before or after its repeat, or after the environment was forgotten.
"""

import asyncio
import importlib
import json
import socket
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from support.faults.control import Gated
from support.faults.points import PointedDatabase, Points, label
from support.faults.policy import sample
from support.receiving import asking

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.call import Call
from rollout_router.checkpoint import database, environments, journal, run, sessions, tool_session
from rollout_router.checkpoint.client import Caller
from rollout_router.checkpoint.effects import Performed
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.example import environment_app, loop
from rollout_router.checkpoint.example.environment import Worlds, create_environment
from rollout_router.checkpoint.replies import Reply, send_reply, whole_body
from rollout_router.checkpoint.wire import Operation

__all__ = ["agent", "environment", "outside"]

_ROLLOUT: Final = "r1"
_STORE: Final = "store"
_TASK: Final = {"scenario": "message", "seed": 7}
_PAID: Final = 3  # operations of the loop that pays
_EPOCHS: Final = 1000  # a mutant numbers its operations so: see mutants.py

_LABELS: Final = {
    "open_rollout": lambda *_: "open",
    "append": lambda _, row: str(row.sequence),
    "intend": lambda _, row: f"intent {row.sequence}",
    "complete": lambda *_: "complete",
    "acknowledge": lambda *_: "acknowledge",
    "restart": lambda *_: "restart",
}


def _built() -> tuple[FastAPI, Worlds]:
    """The environment's application, and all that processes would import or build when first used.

    Made once, before any of them is forked; the event loop is gone by then.
    """

    async def use_all() -> None:
        headers = {"content-type": "application/json"}
        more: dict[str, Any] = {
            "seed": {"scenario": "message", "seed": 1},
            "step": {"text": "Hm."},
        }
        for path in ("seed", "step", "close", "verify"):
            body = json.dumps({"environment_id": "none", **more.get(path, {})}).encode()
            await asking(app, f"/ng-rollout/{_ROLLOUT}/{path}", headers, body=body)

    for name in ("concurrent.futures.thread", "uvicorn.lifespan.off", "uvicorn.loops.asyncio"):
        importlib.import_module(name)
    app, worlds = create_environment()
    uvicorn.Config(app, log_config=None).load()
    asyncio.run(use_all())
    worlds.forget("none")
    return app, worlds


_BUILT: Final = _built()


def agent(points: Points, told: Mapping[str, Any]) -> None:
    """One worker of the agent server, under one claim epoch."""
    PointedDatabase.points = points
    vars(journal)["Database"] = PointedDatabase
    vars(run)["_PAUSE_S_MIN"] = 0.002  # processes start fast here
    vars(database)["BUSY_S"] = 0.1  # nobody else writes, but for one that is frozen
    for method, target_of in _LABELS.items():
        label(journal.Journal, method, target_of)

    class Begun(run.Run):
        async def op(self, *arguments: Any, **named: Any) -> Any:
            if not self.replaying:
                points.reach("begun", str(self.rollout.next))
            return await super().op(*arguments, **named)

        async def complete(self, payload: Any) -> Any:
            points.reach("begun", "complete")
            return await super().complete(payload)

    vars(sessions)["Run"] = Begun
    asyncio.run(_agent(points, told))


async def _agent(points: Points, told: Mapping[str, Any]) -> None:
    store_id = told.get("store_id", _STORE)
    steps = Gated(points, told) if "state_dir" in told else None
    call = Call(
        rollout_id=_ROLLOUT,
        claim_epoch=told["epoch"],
        worker_id="w",
        store_id=store_id,
        steps=steps,
    )
    async with AsyncExitStack() as stack:
        if (kept := _opened(points, told)) is None:
            return
        outside = await stack.enter_async_context(Caller(told["outside"]))
        player = await stack.enter_async_context(Caller(told["environment"]))

        async def release(environment_ids: Collection[str]) -> None:
            for environment_id in environment_ids:
                await player.forget(environment_id)

        async def play(run: run.Run, task: Any) -> Any:
            points.tell("opened", run.rollout.claim_epoch)
            if told["loop"] == "once":
                return await _pay(run, outside)
            return await loop.Player(outside, player).play(run, task)

        code = sessions.source_digest(loop, tool_session)
        playing = await stack.enter_async_context(
            sessions.Sessions(kept, play, loop_digest=code, release=release)
        )
        receipt, order = told["receipt"], "again"
        while order == "again":
            try:
                if receipt is None:
                    points.reach("started", "open")
                    receipt = await _deliver(points, playing, call)
                points.reach("started", "acknowledge")
                await playing.acknowledge(call, receipt)
            except CheckpointRefusal as refusal:
                order = points.tell("refused", refusal.code, str(refusal))
            else:
                order = points.tell("acknowledged")


def _opened(points: Points, told: Mapping[str, Any]) -> journal.Journal | None:
    def now() -> str:
        return (datetime.now(UTC) + timedelta(seconds=told["clock_s"])).isoformat()

    path = Path(told["folder"], "journal.sqlite3")
    while True:
        try:
            store_id = told.get("store_id", _STORE)
            return journal.Journal(path, instance="agent", run="run", store_id=store_id, now=now)
        except CheckpointRefusal as refusal:
            if points.tell("refused", refusal.code, str(refusal)) != "again":
                return None


async def _deliver(points: Points, playing: sessions.Sessions, call: Call) -> str:
    """The receipt of what was delivered twice."""
    done = await playing.run(call, _TASK)
    points.reach("told", "deliver")
    points.tell("delivered", done.receipt, done.payload)
    points.reach("taken", "deliver")
    done = await playing.run(call, _TASK)
    points.tell("delivered", done.receipt, done.payload)
    return done.receipt


async def _pay(run: run.Run, outside: Caller) -> Any:
    async def send(number: int, operation: Operation) -> Performed:
        answer = await outside.post(operation, "/pay", {"number": number})
        return Performed(value=answer.document)

    return [
        await run.op("pay", {"number": number}, partial(send, number), effect="once")
        for number in range(_PAID)
    ]


def environment(points: Points, told: Mapping[str, Any], listener: socket.socket) -> None:
    """The environment server."""
    PointedDatabase.points = points
    vars(environments)["Database"] = PointedDatabase
    label(environments.Environments, "record", lambda _, after: _name(after.last.sequence))
    label(environments.Environments, "raise_fence", lambda *_: "fence")
    label(environments.Environments, "forget", lambda *_: "forget")
    vars(environment_app)["create_environment"] = lambda: _BUILT
    app = environment_app.EnvironmentApp(
        {"TOOL_ENVIRONMENT_FILE": str(Path(told["folder"], "environments.sqlite3"))}
    )
    _serve(Wire(app, points), listener, lifespan="on")


class Wire:
    """What a request meets on its way to the application, and its answer on the way back."""

    def __init__(self, app: Any, points: Points) -> None:
        self._app = app
        self._points = points
        self._late: tuple[Scope, bytes] | None = None
        self._due = ("", "")  # when, and at which operation, the late request arrives

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        target = _target(scope)
        body = await whole_body(receive, bytes_max=1 << 20)
        if body is None:
            return
        await self._arrive_late("before", target)
        order, *when = self._points.reach("arrived", target).split()
        match order:
            case "park" | "refuse":
                await send_reply(_REFUSALS[order], send)
                return
            case "late":
                self._late = (scope, body)
                self._due = ("after", "forget") if when == ["forgotten"] else (when[0], target)
                await asyncio.Event().wait()  # its client is dead: nobody hears of this one
            case "twice":
                first = await self._through(scope, body)
                reply = await self._through(scope, body)
                self._points.tell("repeated", reply == first)
            case "together":
                async with asyncio.TaskGroup() as tasks:
                    both = [tasks.create_task(self._through(scope, body)) for _ in range(2)]
                reply = both[0].result()
                self._points.tell("repeated", reply == both[1].result())
            case _:
                reply = await self._through(scope, body)
        await self._arrive_late("after", target)
        if reply.status == 503:
            self._points.tell("unavailable", reply.body.decode())
        await _answer(self._points.reach("replied", target), reply, send)

    async def _arrive_late(self, when: str, target: str) -> None:
        if self._late is not None and (when, target) == self._due:
            late, self._late = self._late, None
            reply = await self._through(*late)
            told = json.loads(reply.body).get("error", {})
            self._points.tell("late", reply.status, told.get("code"))

    async def _through(self, scope: Scope, body: bytes) -> Reply:
        sent: list[Message] = []
        parts = [body]

        async def receive() -> Message:
            if not parts:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        start, *rest = sent
        return Reply(
            status=start["status"],
            headers=tuple((name.decode(), value.decode()) for name, value in start["headers"]),
            body=b"".join(message.get("body", b"") for message in rest),
        )


def outside(points: Points, listener: socket.socket) -> None:
    """The model, and a receiver that keeps no record of what it did; for all cells."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        target, cell = _target(scope), scope["path"].split("/")[1]
        document = json.loads(await whole_body(receive, bytes_max=1 << 20) or b"")
        order = points.tell("at", "arrived", target, cell)
        if order in _REFUSALS:
            await send_reply(_REFUSALS[order], send)
            return
        headers = [("content-type", "application/json")]
        if not scope["path"].endswith("/pay"):
            cookie = dict(scope["headers"]).get(b"cookie", b"turn=0").decode()
            turn = int(cookie.removeprefix("turn=")) + 1
            document = sample(document, turn)
            headers.append(("set-cookie", f"turn={turn}"))
        body = json.dumps(document).encode()
        headers.append(("content-length", str(len(body))))
        order = points.tell("at", "replied", target, cell)
        await _answer(order, Reply(status=200, headers=tuple(headers), body=body), send)

    _serve(app, listener, lifespan="off")


def _serve(app: Any, listener: socket.socket, *, lifespan: Any) -> None:
    uvicorn.Server(
        uvicorn.Config(
            app, loop="asyncio", log_config=None, access_log=False, ws="none", lifespan=lifespan
        )
    ).run([listener])


def _target(scope: Scope) -> str:
    named = dict(scope["headers"]).get(b"operation-id")
    return "forget" if named is None else _name(int(named.decode().rpartition("/")[2]))


def _name(sequence: int) -> str:
    return str(sequence % _EPOCHS)


def _error(status: int, code: str) -> Reply:
    body = json.dumps({"error": {"code": code, "message": "not now"}}).encode()
    headers = (("content-length", str(len(body))), ("retry-after", "0"))
    return Reply(status=status, headers=headers, body=body)


_REFUSALS: Final = {"park": _error(409, "checkpoint_parked"), "refuse": _error(503, "busy")}


async def _answer(order: str, reply: Reply, send: Send) -> None:
    if order == "lose":
        # The head and no body: the connection is closed before the answer ends.
        headers = [(name.encode(), value.encode()) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    else:
        await send_reply(reply, send)
