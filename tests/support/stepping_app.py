# SPDX-License-Identifier: Apache-2.0
"""An application whose calls work in steps; each ends when the test's control says anything."""

from typing import Final

from support.app import next_order

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.call import CALL_KEY, Steps

__all__ = ["STEPS", "app"]

STEPS: Final = 3


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Take the steps, parked wherever the gate is closed between them, and answer."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    await receive()
    steps: Steps = scope[CALL_KEY].steps
    for _ in range(STEPS):
        while not steps.begin():
            await steps.wait_open()
        try:
            await next_order(scope, b"")
        finally:
            steps.end()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"all steps"})
