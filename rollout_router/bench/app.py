# SPDX-License-Identifier: Apache-2.0
"""The application of the benchmark: it reads the body and answers, so that no model is measured."""

from typing import Final

from rollout_router.asgi import Receive, Scope, Send

__all__ = ["ANSWER", "app"]

ANSWER: Final = b'{"ok":true}'


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 once the body is complete."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    while (message := await receive())["type"] == "http.request":
        if not message.get("more_body", False):
            break
    else:
        return  # nobody waits
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(ANSWER)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})
