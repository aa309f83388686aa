# SPDX-License-Identifier: Apache-2.0
"""An ASGI server in memory, and a real one on loopback."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.call import CALL_KEY, Call

STORE = "store-1"


@dataclass
class Drive:
    """One HTTP request to an ASGI application, without a server."""

    scope: Scope
    body: list[Message]
    sent: list[Message] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # set it: the client goes away
    on_send: Callable[[Message], None] | None = None

    async def run(self, app: App) -> "Drive":
        await app(self.scope, self.receive, self.send)
        return self

    async def receive(self) -> Message:
        if self.body:
            return self.body.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if self.on_send is not None:
            self.on_send(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class DriveFactory:
    def __call__(
        self,
        *,
        body: bytes | list[bytes] = b"{}",
        method: str = "POST",
        path: str = "/sessions/r1/v1/responses",
        epoch: int | None = 5,
        routed: bool = True,
        rollout_id: str = "r1",
        http_version: str = "1.1",
        **more: Any,
    ) -> Drive:
        parts = [body] if isinstance(body, bytes) else body
        last = len(parts) - 1
        messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": number < last}
            for number, part in enumerate(parts)
        ]
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": http_version,
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            **more,
        }
        if routed:
            scope[CALL_KEY] = Call(
                rollout_id=rollout_id, claim_epoch=epoch, worker_id="w1", store_id=STORE
            )
        return Drive(scope=scope, body=messages)


class Answering:
    """An application that reads its request and answers with given parts."""

    def __init__(
        self,
        *parts: bytes,
        status: int = 200,
        content_type: str = "application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        ends: bool = True,
        error: Exception | None = None,
    ) -> None:
        self.parts = parts
        self.head = {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", content_type.encode()), *headers],
        }
        self.ends = ends
        self.error = error
        self.calls = 0
        self.bodies: list[bytes] = []

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        await send(self.head)
        for part in self.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.error is not None:
            raise self.error
        if self.ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def serving(app: App) -> Iterator[str]:
    """Serve *app* on a free port of loopback; gives the URL."""
    server = _Server(
        uvicorn.Config(
            app,
            port=0,
            loop="asyncio",
            http="httptools",
            ws="none",
            lifespan="auto",
            log_config=None,
            timeout_graceful_shutdown=5,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.ready.wait(20)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(name="serving", scope="session")
def serving_fixture() -> Callable[[App], AbstractContextManager[str]]:
    return serving


@pytest.fixture
def drive() -> DriveFactory:
    return DriveFactory()


@pytest.fixture
def answering() -> type[Answering]:
    return Answering


@pytest.fixture
def collect() -> Callable[[AsyncIterator[bytes]], Any]:
    async def collected(parts: AsyncIterator[bytes]) -> bytes:
        return b"".join([part async for part in parts])

    return collected
