# SPDX-License-Identifier: Apache-2.0
"""An application that streams server-sent events, half of them once its gate is opened.

``/sessions/ID/stream`` is answered with ``EVENTS`` events, each naming the rollout. The streams of
a process wait in the middle until ``/open`` is asked for there. Any other path answers how many do.

``/sessions/ID/flood/PIECES`` is answered with as many pieces of 64 KiB, and ``/flooded`` with how
many of them left this process.
"""

import asyncio

from rollout_router.asgi import Receive, Scope, Send

__all__ = ["EVENTS", "PIECE", "app", "event"]

EVENTS = 6
PIECE = bytes(64 * 1024)

_opened = asyncio.Event()
_held = 0
_flooded = 0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Stream, say how many streams wait, or let them go on."""
    global _held  # noqa: PLW0603 - of this process, on one loop
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    while (await receive()).get("more_body", False):
        pass
    path: str = scope["path"]
    if "/flood/" in path:
        await _flood(int(path.rpartition("/")[2]), send)
        return
    if not path.endswith("/stream"):
        if path == "/open":
            _opened.set()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        number = _flooded if path == "/flooded" else _held
        await send({"type": "http.response.body", "body": b"%d" % number})
        return
    rollout_id = path.split("/")[2]
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for number in range(EVENTS):
        if number == EVENTS // 2:
            _held += 1
            await _opened.wait()
            _held -= 1
        body = event(rollout_id, number)
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _flood(pieces: int, send: Send) -> None:
    global _flooded  # noqa: PLW0603 - as above
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(pieces):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        _flooded += 1
    await send({"type": "http.response.body", "body": b""})


def event(rollout_id: str, number: int) -> bytes:
    """One event of a rollout's stream; a page of tokens is about as long."""
    return b"data: %s %d %s\n\n" % (rollout_id.encode(), number, b"." * 500)
