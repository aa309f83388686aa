# SPDX-License-Identifier: Apache-2.0
"""The clients of the hop do what their stages are named after. No test looks at a time."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from rollout_router.asgi import App, Receive, Scope, Send
from rollout_router.bench import hop, hop_owner
from rollout_router.bench.app import ANSWER, app
from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.hop_clients import WORKS
from rollout_router.bench.measure import Stage
from rollout_router.processes import Service
from rollout_router.routing.private import PrivateServer

CLIENTS = ["bare", "hop", "httpx"]
IN_FLIGHT = 64
GUARD_S = 60  # none waits for it
SIZES = {"5kb": 5_000, "1mb": 1_000_000, "5kb_in_flight": 5_000}


class Owner:
    """A worker's private server, and what its application saw."""

    def __init__(self, path: Path) -> None:
        self.app: App = app
        self.seen: list[int] = []  # bytes of each body
        self.together = asyncio.Barrier(1)  # so many calls wait for one another
        self.in_flight = self.most_in_flight = 0
        self.server = PrivateServer(path, self)

    @property
    def connections(self) -> set[Any]:
        return set(self.server._server.server_state.connections)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        size = 0

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        await self.together.wait()
        try:
            await self.app(scope, counted, send)
        finally:
            self.in_flight -= 1
            self.seen.append(size)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def runner(stack: ExitStack) -> asyncio.Runner:
    return stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))


@pytest.fixture
def owner(folder: Path, runner: asyncio.Runner, stack: ExitStack) -> Owner:
    owner = Owner(folder / "owner.sock")
    runner.run(owner.server.start())
    stack.callback(lambda: runner.run(owner.server.stop()))
    return owner


def stages_of(runner: asyncio.Runner, path: Path, stack: ExitStack) -> dict[str, Stage]:
    stages, notes = hop.hop_stages(runner, str(path), stack)
    assert notes == []
    return {stage.name: stage for stage in stages}


def test_a_stage_makes_its_calls_on_connections_that_are_kept(
    runner: asyncio.Runner, owner: Owner, stack: ExitStack
) -> None:
    stages = stages_of(runner, owner.server.path, stack)
    assert {name: stage.reference for name, stage in stages.items()} == {
        f"{client}_{work}": None if client == "bare" else f"bare_{work}"
        for work in SIZES
        for client in CLIENTS
    }
    for work in WORKS:
        in_flight = IN_FLIGHT if work.name == "5kb_in_flight" else 1
        for client in CLIENTS:
            owner.seen, owner.most_in_flight = [], 0
            owner.together = asyncio.Barrier(in_flight)
            stage = stages[f"{client}_{work.name}"]
            stage.prepare()()
            assert owner.seen == [SIZES[work.name]] * stage.calls
            assert owner.most_in_flight == in_flight
    kept = owner.connections
    assert len(kept) == len(CLIENTS) * IN_FLIGHT
    owner.together = asyncio.Barrier(1)
    for client in CLIENTS:
        stages[f"{client}_5kb"].prepare()()
    assert owner.connections == kept


async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 500, "headers": []})
    await send({"type": "http.response.body", "body": ANSWER})


async def cut(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"%d" % len(ANSWER))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER[:5], "more_body": True})
    raise RuntimeError("the answer cannot be finished")


async def mistake(_scope: Scope, _receive: Receive, send: Send) -> None:
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.mark.parametrize(
    ("wrong", "complaints"),
    [
        (refuse, ["answered .*500", "answered 500", "answered 500"]),
        (cut, ["broke", "broke", "broke"]),
        (mistake, ["TimeoutError", "answered 200", "answered 200"]),
    ],
)
def test_an_answer_that_is_not_the_expected_one_ends_the_benchmark(
    runner: asyncio.Runner,
    owner: Owner,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    *,
    wrong: App,
    complaints: list[str],
) -> None:
    stages = stages_of(runner, owner.server.path, stack)
    owner.app = wrong
    for client, complaint in zip(CLIENTS, complaints, strict=True):
        # The bare connection waits for the bytes that it knows, and they never come.
        monkeypatch.setattr(hop, "_WAIT_S", 0.1 if complaint == "TimeoutError" else GUARD_S)
        with pytest.raises(BenchFailed, match=complaint):
            stages[f"{client}_5kb"].prepare()()
    with pytest.raises(BenchFailed, match="5kb_in_flight"):
        stages["hop_5kb_in_flight"].prepare()()


def test_an_owner_that_is_gone_ends_the_benchmark(
    runner: asyncio.Runner, owner: Owner, stack: ExitStack
) -> None:
    stages = stages_of(runner, owner.server.path, stack)
    for client in CLIENTS:
        stages[f"{client}_5kb"].prepare()()
    runner.run(owner.server.stop())
    for client in CLIENTS:  # each by its kept connection or by a new one
        with pytest.raises(BenchFailed, match=f"{client}_5kb broke"):
            stages[f"{client}_5kb"].prepare()()


def test_where_httpx_is_not_installed_it_is_left_out_and_a_note_says_so(
    folder: Path, runner: asyncio.Runner, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    stages, notes = hop.hop_stages(runner, str(folder / "nowhere.sock"), stack)
    assert [stage.name for stage in stages] == [
        f"{client}_{work}" for work in SIZES for client in ("bare", "hop")
    ]
    assert notes == ["httpx is not installed: it is not among the clients of the hop"]


def test_the_owner_is_a_workers_private_server_and_says_nothing_of_a_call(folder: Path) -> None:
    path, log = folder / "owner.sock", folder / "log"
    command = [sys.executable, "-P", "-m", hop_owner.__name__, str(path)]
    owner = Service("the owner", command, log=log, apart=False)
    try:
        owner.wait_line(hop_owner.READY)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            assert client.post("http://owner/", content=b"body").content == ANSWER
            refused = client.get("http://owner/", headers={"X-Long": "a" * 128 * 1024})
        assert refused.json()["error"]["code"] == "request_head_too_large"  # not uvicorn's own
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        owner.stop()
    assert not path.exists()
    assert "POST" not in log.read_text()
