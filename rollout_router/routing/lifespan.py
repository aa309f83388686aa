# SPDX-License-Identifier: Apache-2.0
"""The worker's life inside the application's lifespan.

A server may import an application more than once; only the one whose lifespan runs is a worker.
The application starts first and stops last, so that it is there for every call the worker takes.
"""

import logging
from typing import Any, Protocol

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.claims import ClaimsError

__all__ = ["run_lifespan"]

_logger = logging.getLogger(__name__)


class _Living(Protocol):
    app: App
    state: dict[str, Any] | None

    async def start_worker(self) -> None: ...

    async def stop_worker(self) -> None: ...


async def run_lifespan(router: _Living, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application's lifespan with the worker's life inside it.

    A store that refuses fails the start-up with its message. An application without a lifespan of
    its own (it raises before it answers) gets ours alone.
    """
    router.state = scope.get("state")  # one mapping for the whole life: filled in as it starts
    asked = False  # the application took lifespan.startup
    answered = False  # and said what became of it

    async def inner_receive() -> Message:
        nonlocal asked
        asked = True
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            await router.stop_worker()
        return message

    async def inner_send(message: Message) -> None:
        nonlocal answered
        answered = True
        if message["type"] == "lifespan.startup.complete":
            message = await _start(router)
        await send(message)

    try:
        await router.app(scope, inner_receive, inner_send)
    except Exception as error:
        if answered:
            raise
        _logger.info("the application has no lifespan of its own: %r", error)
    if answered:
        return
    if not asked:
        await inner_receive()
    message = await _start(router)
    await send(message)
    if message["type"] == "lifespan.startup.complete":
        await inner_receive()
        await send({"type": "lifespan.shutdown.complete"})


async def _start(router: _Living) -> Message:
    try:
        await router.start_worker()
    except ClaimsError as error:
        return {"type": "lifespan.startup.failed", "message": str(error)}
    return {"type": "lifespan.startup.complete"}
