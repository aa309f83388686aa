# SPDX-License-Identifier: Apache-2.0
"""A small environment server, and how it is asked without a network between."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.checkpoint.wire import Operation

__all__ = ["Answered", "Notebook", "asking", "creates", "named"]


def creates(scope: Scope) -> bool:
    return str(scope["path"]) == "/make"


def named(
    sequence: int,
    *,
    epoch: int = 1,
    store: str = "store",
    rollout: str = "r1",
    environment: str = "e1",
) -> dict[str, str]:
    """The headers of an operation."""
    return Operation(
        rollout_id=rollout,
        sequence=sequence,
        store_id=store,
        claim_epoch=epoch,
        environment_id=environment,
    ).headers()


@dataclass
class Notebook:
    """Environments that are lists of lines; each operation adds its body, and answers them all.

    ``/raise`` and ``/fail`` add it too, and then do not answer it. ``/wait`` waits after adding.
    While ``busy`` is set, each is refused with its status, headers and body, though added.
    """

    pages: dict[str, list[str]] = field(default_factory=dict)
    applied: list[tuple[str, str]] = field(default_factory=list)  # in the life of this process
    forgotten: list[str] = field(default_factory=list)
    busy: tuple[int, list[tuple[bytes, bytes]], bytes] | None = None
    working: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        environment_id = dict(scope["headers"]).get(b"operation-environment", b"").decode()
        line = (await receive()).get("body", b"").decode()
        if path == "/make":
            self.pages[environment_id] = []
        if path != "/read":
            self.pages[environment_id].append(line)
            self.applied.append((environment_id, line))
        if path == "/wait":
            self.working.set()
            await self.go_on.wait()
        if path == "/raise":
            raise RuntimeError("the world broke")
        if self.busy is not None:
            status, headers, body = self.busy
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        status = {"/fail": 503, "/refuse": 422}.get(path, 200)
        headers = [(b"content-type", b"application/json"), (b"x-two", b"1"), (b"x-two", b"\xe9")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        body = json.dumps(self.pages.get(environment_id)).encode()
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        if path == "/cut":
            return
        await send({"type": "http.response.body", "body": body[1:]})
        if path == "/end":
            del self.pages[environment_id]

    def export(self, environment_id: str) -> bytes | None:
        page = self.pages.get(environment_id)
        return None if page is None else json.dumps(page).encode()

    def restore(self, environment_id: str, state: bytes) -> None:
        self.pages[environment_id] = json.loads(state)

    def forget(self, environment_id: str) -> None:
        self.forgotten.append(environment_id)
        self.pages.pop(environment_id, None)


@dataclass(frozen=True)
class Answered:
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    @property
    def code(self) -> str:
        """Of a refusal; empty for an answer of the application's."""
        return str(json.loads(self.body)["error"]["code"]) if self.status >= 400 else ""

    @property
    def revision(self) -> int:
        return int(dict(self.headers)[b"operation-revision"])


async def asking(
    app: Any,
    path: str,
    headers: dict[str, str] | None = None,
    *,
    method: str = "POST",
    body: bytes = b"",
    query: bytes = b"",
) -> Answered:
    """Send one request and take its answer."""
    sent: list[Message] = []
    parts = [body[:3], body[3:]]

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
    }
    await app(scope, receive, send)
    start, *rest = sent
    whole = b"".join(message.get("body", b"") for message in rest)
    return Answered(start["status"], list(start["headers"]), whole)
