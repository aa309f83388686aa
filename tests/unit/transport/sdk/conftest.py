# SPDX-License-Identifier: Apache-2.0
"""Calls through each transport: of both libraries, from threads and from an event loop."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol

import httpx
import httpx2
import pytest
from unit.transport.sandbox.conftest import FakeGateway, gateway

import rollout_router.transport.httpx
import rollout_router.transport.httpx2

__all__ = ["Calls", "LoopCalls", "gateway"]

PATH = "/ng-rollout/r1/v1/chat/completions"
HEADERS = {"Content-Type": "application/json"}
PATIENCE_S = 30.0
LIBRARIES = {"httpx": httpx, "httpx2": httpx2}
TRANSPORTS = {
    "httpx": rollout_router.transport.httpx,
    "httpx2": rollout_router.transport.httpx2,
}


class Calls(Protocol):
    """A client with a transport of ours. Answers are those of its library."""

    hx: Any
    transport: Any
    client: Any

    def post(self, content: Any, path: str = PATH, **headers: str) -> Any:
        """One call, its answer read."""

    def stream(self, content: bytes, then: Callable[[bytes], None]) -> bytes:
        """One call; *then* is told each piece of its answer as it comes."""

    def together(self, bodies: Sequence[bytes]) -> list[Any]:
        """Calls at the same time."""

    def close(self) -> None:
        """Close all connections."""


class ThreadCalls:
    inner = "HTTPTransport"

    def __init__(self, hx: ModuleType, flavour: Any, url: str, **settings: Any) -> None:
        self.hx: Any = hx
        self.transport = flavour.DeltaTransport(**settings)
        self.client: Any = self.hx.Client(
            transport=self.transport, base_url=url, headers=HEADERS, timeout=PATIENCE_S
        )

    def post(self, content: Any, path: str = PATH, **headers: str) -> Any:
        return self.client.post(path, content=content, headers=_named(headers))

    def stream(self, content: bytes, then: Callable[[bytes], None]) -> bytes:
        seen = b""
        with self.client.stream("POST", PATH, content=content) as answer:
            for piece in answer.iter_raw():
                seen += piece
                then(piece)
        return seen

    def together(self, bodies: Sequence[bytes]) -> list[Any]:
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as threads:
            return list(threads.map(self.post, bodies))

    def close(self) -> None:
        self.client.close()


class LoopCalls:
    inner = "AsyncHTTPTransport"

    def __init__(self, hx: ModuleType, flavour: Any, url: str, **settings: Any) -> None:
        self.hx: Any = hx
        self.transport = flavour.AsyncDeltaTransport(**settings)
        self.runner = asyncio.Runner()
        self.client: Any = self.hx.AsyncClient(
            transport=self.transport, base_url=url, headers=HEADERS, timeout=PATIENCE_S
        )

    async def ask(self, content: Any, path: str = PATH, **headers: str) -> Any:
        return await self.client.post(path, content=content, headers=_named(headers))

    def post(self, content: Any, path: str = PATH, **headers: str) -> Any:
        if not isinstance(content, bytes):
            content = _as_it_comes(content)
        return self.runner.run(self.ask(content, path, **headers))

    def stream(self, content: bytes, then: Callable[[bytes], None]) -> bytes:
        async def read() -> bytes:
            seen = b""
            async with self.client.stream("POST", PATH, content=content) as answer:
                async for piece in answer.aiter_raw():
                    seen += piece
                    then(piece)
            return seen

        return self.runner.run(read())

    def together(self, bodies: Sequence[bytes]) -> list[Any]:
        async def ask_all() -> list[Any]:
            return await asyncio.gather(*map(self.ask, bodies))

        return self.runner.run(ask_all())

    def close(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()


async def _as_it_comes(pieces: Iterator[bytes]) -> Any:
    for piece in pieces:
        yield piece


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


KINDS = [(name, kind) for name in LIBRARIES for kind in (ThreadCalls, LoopCalls)]


@pytest.fixture(params=KINDS, ids=[f"{name}-{kind.__name__}" for name, kind in KINDS])
def start(request: pytest.FixtureRequest, gateway: FakeGateway) -> Iterator[Callable[..., Calls]]:
    """Make a client of the gateway with settings."""
    name, kind = request.param
    started: list[Calls] = []

    def make(**settings: Any) -> Calls:
        calls: Calls = _made(name, kind, gateway.url, **settings)
        started.append(calls)
        return calls

    yield make
    for calls in started:
        calls.close()


@pytest.fixture
def calls(start: Callable[..., Calls]) -> Calls:
    return start()


@pytest.fixture(params=LIBRARIES)
def loop_calls(request: pytest.FixtureRequest, gateway: FakeGateway) -> Iterator[LoopCalls]:
    made: LoopCalls = _made(request.param, LoopCalls, gateway.url)
    yield made
    made.close()


def _made(name: str, kind: Any, url: str, **settings: Any) -> Any:
    hx: Any = LIBRARIES[name]
    if "inner" not in settings:  # no certificates: reading them takes most of a test's time
        limits = hx.Limits(keepalive_expiry=None)  # a slow machine opens no connection more
        settings["inner"] = getattr(hx, kind.inner)(verify=False, limits=limits)
    return kind(hx, TRANSPORTS[name], url, **settings)
