# SPDX-License-Identifier: Apache-2.0
"""The application under test: a bare ASGI callable that does what the test's control tells it.

Served by ``rollout-router serve --app support.app:app`` with ``TEST_CONTROL`` naming the socket.
"""

import asyncio
import hashlib
import json
import os
from typing import Any

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.call import CALL_KEY

__all__ = ["app"]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Report the call, then obey."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    reader, writer = await asyncio.open_unix_connection(os.environ["TEST_CONTROL"])
    try:
        writer.write(json.dumps(_report(scope, body)).encode() + b"\n")
        await _obey(reader, send)
    finally:
        writer.close()


async def _obey(reader: asyncio.StreamReader, send: Send) -> None:
    while line := await reader.readline():
        order = json.loads(line)
        if order["do"] in {"answer", "begin"}:
            await send(_start(order))
        if order["do"] == "answer":
            await send({"type": "http.response.body", "body": order["body"].encode()})
            return
        if order["do"] == "send":
            chunk = order["chunk"].encode()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if order["do"] == "end":
            await send({"type": "http.response.body", "body": b""})
            return
        if order["do"] == "fail":
            raise RuntimeError("the test told this call to fail")


def _start(order: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json", **order["headers"]}
    if order["do"] == "answer":
        headers["content-length"] = str(len(order["body"].encode()))
    return {
        "type": "http.response.start",
        "status": order["status"],
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


def _report(scope: Scope, body: bytes) -> dict[str, Any]:
    call = scope.get(CALL_KEY)
    return {
        "pid": os.getpid(),
        "path": scope["path"],
        "rollout_id": call.rollout_id if call else None,
        "claim_epoch": call.claim_epoch if call else None,
        "sha256": hashlib.sha256(body).hexdigest(),
        "headers": {key.decode(): value.decode("latin-1") for key, value in scope["headers"]},
    }
