# SPDX-License-Identifier: Apache-2.0
"""The model and the environment server of a :class:`~support.trio.Trio`, under a test's control.

Each call of a rollout reports to the control named by ``TEST_CONTROL`` before it happens, and again
as ``<path>#done`` when it has and its answer is about to leave. An order of status 200 lets it go
on; any other is its answer instead: a refusal, or an answer that was lost.

    model         the policy; each of its samples is a line in ``TEST_SAMPLES``
    environment   the example's environment server
"""

import json
import os
from http.cookies import SimpleCookie
from typing import Any

from support.app import next_order
from support.policy import sampled

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.call import CALL_KEY
from rollout_router.checkpoint.example import environment_app
from rollout_router.checkpoint.replies import Reply, send_reply, whole_body

__all__ = ["environment", "model"]

_BYTES_MAX = 1 << 24


def _held(app: App) -> App:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if CALL_KEY not in scope:  # a lifespan, or a control path
            await app(scope, receive, send)
            return
        if (body := await whole_body(receive, bytes_max=_BYTES_MAX)) is None:
            return
        if (reply := await _instead(scope, body)) is not None:
            await send_reply(reply, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        answer: list[Message] = []

        async def next_message() -> Message:
            return messages.pop() if messages else await receive()

        async def keep(message: Message) -> None:
            answer.append(message)

        await app({**scope, "extensions": {}}, next_message, keep)
        reply = await _instead({**scope, "path": f"{scope['path']}#done"}, body)
        if reply is not None:
            await send_reply(reply, send)
            return
        for message in answer:
            await send(message)

    return served


async def _instead(scope: Scope, body: bytes) -> Reply | None:
    """What the control has it answer; None: what it answers by itself."""
    order = await next_order(scope, body)
    if order is None or order["status"] == 200:
        return None
    return _json(order["status"], json.loads(order["body"]), list(order["headers"].items()))


async def _policy(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    body = await whole_body(receive, bytes_max=_BYTES_MAX)
    headers = dict(scope["headers"])
    told = SimpleCookie(headers.get(b"cookie", b"").decode())
    cookies = {name: morsel.value for name, morsel in told.items()}
    response, set_now = sampled(json.loads(body or b"null"), cookies)
    line = {"rollout_id": scope[CALL_KEY].rollout_id, "id": response["id"], "cookies": cookies}
    file = os.open(os.environ["TEST_SAMPLES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")  # one write, whole or not at all
    finally:
        os.close(file)
    setting = [("set-cookie", f"{name}={value}; Path=/") for name, value in set_now.items()]
    await send_reply(_json(200, response, setting), send)


def _json(status: int, document: Any, headers: list[tuple[str, str]]) -> Reply:
    body = json.dumps(document).encode()
    own = [("content-type", "application/json"), ("content-length", str(len(body)))]
    return Reply(status=status, headers=(*own, *headers), body=body)


model = _held(_policy)
environment = _held(environment_app.app)
