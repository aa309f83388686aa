# SPDX-License-Identifier: Apache-2.0
"""The worker's life inside the application's lifespan."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.claims import StoreRefused
from rollout_router.routing.lifespan import run_lifespan

SCOPE = {"type": "lifespan"}


class Living:
    """What the lifespan needs of a router, writing down what became of it."""

    def __init__(self, app: App, log: list[str], *, refuses: bool = False) -> None:
        self.app = app
        self.state: dict[str, Any] | None = None
        self._log = log
        self._refuses = refuses

    async def start_worker(self) -> None:
        if self._refuses:
            raise StoreRefused("chmod 700 it")
        self._log.append("worker starts")

    async def stop_worker(self) -> None:
        self._log.append("worker stops")


async def life(living: Living, log: list[str]) -> list[Message]:
    """Start, then shut down as soon as the start is answered; gives what was sent."""
    sent: list[Message] = []
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    inbox.put_nowait({"type": "lifespan.startup"})

    async def send(message: Message) -> None:
        sent.append(message)
        log.append(message["type"].removeprefix("lifespan."))
        if message["type"] == "lifespan.startup.complete":
            inbox.put_nowait({"type": "lifespan.shutdown"})
        elif message["type"] == "lifespan.startup.failed":
            inbox.put_nowait({"type": "the test has no more"})

    await run_lifespan(living, SCOPE, inbox.get, send)
    return sent


def speaking(log: list[str]) -> App:
    """An application with a lifespan of its own."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] == "lifespan.startup":
            log.append("app starts")
            await send({"type": "lifespan.startup.complete"})
        if log[-1] == "startup.failed":
            return
        log.append("app stops")
        await send({"type": "lifespan.shutdown.complete"})

    return app


ORDER = [
    "app starts",
    "worker starts",
    "startup.complete",
    "worker stops",
    "app stops",
    "shutdown.complete",
]


async def test_the_application_starts_first_and_stops_last() -> None:
    log: list[str] = []

    await life(Living(speaking(log), log), log)

    assert log == ORDER


async def test_so_it_is_with_a_starlette_application() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        log.append("app starts")
        yield
        log.append("app stops")

    await life(Living(Starlette(lifespan=lifespan), log), log)

    assert log == ORDER


async def refuses_before_it_asks(scope: Scope, receive: Receive, send: Send) -> None:
    _ = receive, send
    raise RuntimeError(f"what is {scope['type']}?")


async def refuses_after_it_asked(scope: Scope, receive: Receive, send: Send) -> None:
    _ = scope, send
    await receive()
    raise RuntimeError("no lifespan")


async def returns_at_once(scope: Scope, receive: Receive, send: Send) -> None:
    _ = scope, receive, send


async def returns_after_it_asked(scope: Scope, receive: Receive, send: Send) -> None:
    _ = scope, send
    await receive()


@pytest.mark.parametrize(
    "app",
    [refuses_before_it_asks, refuses_after_it_asked, returns_at_once, returns_after_it_asked],
)
async def test_an_application_without_a_lifespan_gets_the_workers_alone(
    app: Callable[[Scope, Receive, Send], Awaitable[None]],
) -> None:
    log: list[str] = []

    await life(Living(app, log), log)

    assert log == ["worker starts", "startup.complete", "worker stops", "shutdown.complete"]


@pytest.mark.parametrize("has_lifespan", [True, False])
async def test_a_store_that_refuses_fails_the_start_with_its_message(*, has_lifespan: bool) -> None:
    log: list[str] = []
    app = speaking(log) if has_lifespan else returns_at_once

    sent = await life(Living(app, log, refuses=True), log)

    assert sent == [{"type": "lifespan.startup.failed", "message": "chmod 700 it"}]
    assert "worker stops" not in log


async def test_an_application_that_fails_to_start_starts_no_worker() -> None:
    log: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no model"})

    sent = await life(Living(app, log), log)

    assert sent == [{"type": "lifespan.startup.failed", "message": "no model"}]
    assert log == ["startup.failed"]


async def test_an_error_after_the_start_is_the_applications_own() -> None:
    log: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        raise LookupError("later")

    with pytest.raises(LookupError, match="later"):
        await life(Living(app, log), log)
