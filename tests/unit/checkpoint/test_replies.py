# SPDX-License-Identifier: Apache-2.0
import asyncio

import pytest

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.checkpoint.replies import collect

TYPED = [(b"Content-Type", b"x")]
CHUNKED = [(b"Transfer-Encoding", b"chunked"), (b"connection", b"close")]


@pytest.mark.parametrize(
    ("method", "status", "headers", "body", "kept"),
    [
        ("POST", 200, TYPED, b"four", [("Content-Type", "x"), ("content-length", "4")]),
        ("POST", 200, CHUNKED, b"four", [("content-length", "4")]),
        ("POST", 200, [(b"Content-Length", b"4")], b"four", [("Content-Length", "4")]),
        ("POST", 204, [], b"", []),
        ("HEAD", 200, TYPED, b"", [("Content-Type", "x")]),
    ],
)
def test_an_answer_is_kept_with_its_own_headers_and_a_length(  # noqa: PLR0917 - a table's columns
    method: str,
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    kept: list[tuple[str, str]],
) -> None:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        assert scope["extensions"] == {}
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    scope = {"method": method, "extensions": {"http.response.trailers": {}}}
    reply = asyncio.run(collect(app, scope, b"", bytes_max=4))
    assert (reply.status, list(reply.headers), reply.body) == (status, kept, body)


def test_an_application_hears_of_a_disconnect_after_its_answer_alone() -> None:
    heard: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> None:
            heard.append((await receive())["type"])
            heard.append((await receive())["type"])

        async with asyncio.TaskGroup() as group:
            group.create_task(listen())
            await send({"type": "http.response.start", "status": 200})
            while not heard:  # noqa: ASYNC110 - until the body was taken
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert heard == ["http.request"]
            await send({"type": "http.response.body", "body": b""})

    asyncio.run(collect(app, {"method": "POST"}, b"", bytes_max=4))
    assert heard == ["http.request", "http.disconnect"]
