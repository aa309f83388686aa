# SPDX-License-Identifier: Apache-2.0
"""Putting the router around an application."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.middleware.base import RequestResponseEndpoint
from support.routing import Application, Client, Rig

from rollout_router import install
from rollout_router.asgi import App, Message
from rollout_router.errors import ResponseCut
from rollout_router.routing import Router, Settings

SETTINGS = Settings(state_dir=Path("/s"), run_dir=Path("/r"))


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_a_starlette_application_is_changed_in_place(kind: type[Starlette]) -> None:
    app = kind()

    assert install(app, SETTINGS) is app
    assert isinstance(app.build_middleware_stack(), Router)


def test_any_other_application_is_wrapped() -> None:
    app = Application()

    wrapped = install(app, SETTINGS)

    assert isinstance(wrapped, Router)
    assert wrapped.app is app


@pytest.mark.parametrize("make", [FastAPI, Starlette, Application])
def test_installing_twice_raises_and_changes_nothing(make: Callable[[], App]) -> None:
    app = install(make(), SETTINGS)

    with pytest.raises(ValueError, match="already installed"):
        install(app, SETTINGS)

    if isinstance(app, Starlette):
        router = app.build_middleware_stack()
        assert isinstance(router, Router)
        assert not isinstance(router.app, Router)


async def test_an_application_that_has_started_is_refused() -> None:
    app = Starlette()
    await Client().ask(app)

    with pytest.raises(RuntimeError, match="has started"):
        install(app, SETTINGS)


async def test_an_installed_fastapi_application_routes_through_its_lifespan(rig: Rig) -> None:
    app = FastAPI()

    @app.post("/sessions/{rollout_id}/v1/responses")
    async def respond(rollout_id: str) -> dict[str, str]:
        return {"to": rollout_id}

    install(app, rig.settings())
    started: list[Message] = []
    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> Message:
        message = {"type": next(messages)}
        if message["type"] == "lifespan.shutdown":
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
                answer = await client.post("/sessions/r1/v1/responses", json={})
            assert answer.json() == {"to": "r1"}
            assert int(answer.headers["rollout-claim-epoch"]) == rig.claim().claim_epoch
            assert answer.headers["rollout-worker"] == rig.claim().owner.nonce
        return message

    async def send(message: Message) -> None:
        started.append(message)

    await app({"type": "lifespan"}, receive, send)

    assert [m["type"] for m in started] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert rig.store.read("r1") is None  # the leaver gave it back


async def test_r4_a_layer_that_is_added_later_ends_no_answer_that_was_cut(rig: Rig) -> None:
    app = FastAPI()
    install(app, rig.settings())

    @app.middleware("http")
    async def pass_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    owner = rig.owner()

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await owner.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()

    await owner.listen(cut)
    app.middleware_stack = router = app.build_middleware_stack()
    assert isinstance(router, Router)
    await router.start_worker()
    rig.routers.append(router)
    client = Client()

    with pytest.raises(ResponseCut):
        await client.ask(app)

    assert client.status == 200
    assert not client.complete


async def test_a_lifespan_that_never_started_answers_503_for_what_would_be_routed(
    rig: Rig,
) -> None:
    app = Application()
    router = install(app, rig.settings())

    client = await Client().ask(router)
    untouched = await Client(path="/health").ask(router)

    assert (client.status, client.value(b"retry-after")) == (503, b"1")
    assert b'"draining"' in client.content
    assert untouched.status == 200
    assert [call.scope["path"] for call in app.calls] == ["/health"]
