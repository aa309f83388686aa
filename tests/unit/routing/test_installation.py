# SPDX-License-Identifier: Apache-2.0
"""Putting the router around an application."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from support.routing import Application, Client, Rig

from rollout_router import install
from rollout_router.asgi import App, Message
from rollout_router.routing import Router, Settings

SETTINGS = Settings(state_dir=Path("/s"), run_dir=Path("/r"))


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_a_starlette_application_is_changed_in_place(kind: type[Starlette]) -> None:
    app = kind()

    assert install(app, SETTINGS) is app
    (layer,) = app.user_middleware
    assert layer.cls is cast("object", Router)
    assert layer.kwargs == {"settings": SETTINGS, "outermost": app}


def test_any_other_application_is_wrapped() -> None:
    app = Application()

    wrapped = install(app, SETTINGS)

    assert isinstance(wrapped, Router)
    assert wrapped.app is app


@pytest.mark.parametrize("make", [FastAPI, Starlette, Application])
def test_installing_twice_raises_and_changes_nothing(make: Callable[[], App]) -> None:
    app = install(make(), SETTINGS)
    layers = len(app.user_middleware) if isinstance(app, Starlette) else None

    with pytest.raises(ValueError, match="already installed"):
        install(app, SETTINGS)

    assert layers is None or (isinstance(app, Starlette) and len(app.user_middleware) == layers)


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
