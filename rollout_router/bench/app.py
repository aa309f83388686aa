# SPDX-License-Identifier: Apache-2.0
"""The application of the benchmark: it reads the body and answers, so that no model is measured.

It answers with a small JSON document; where the path ends in ``/stream``, with a stream of events,
each in a turn of the loop of its own, as a model gives them.
"""

import asyncio
from typing import Final

from rollout_router.asgi import Receive, Scope, Send

__all__ = ["ANSWER", "EVENTS", "STREAM_PATH", "app"]

ANSWER: Final = b'{"ok":true}'
STREAM_PATH: Final = "/stream"
EVENTS: Final = [
    *(b'data: {"n":%03d,"delta":"%b"}\n\n' % (number, b"token " * 12) for number in range(199)),
    b"data: [DONE]\n\n",
]
"""200 events of some 100 bytes, about as much as a model's chunk with little text in it."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 once the body is complete."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    while (message := await receive())["type"] == "http.request":
        if not message.get("more_body", False):
            break
    else:
        return  # nobody waits
    if scope["path"].endswith(STREAM_PATH):
        await _stream(send)
        return
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(ANSWER)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def _stream(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in EVENTS:
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})
