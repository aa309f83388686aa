# SPDX-License-Identifier: Apache-2.0
"""Against real servers on loopback: what goes out, what comes back, and what a cut looks like."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollout_router.errors import ResponseCut
from rollout_router.gateway.model import Dialect, ModelRequest
from rollout_router.gateway.upstream import Upstream

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Peer:
    """A server that keeps what it was sent and replies with raw bytes."""

    url: str = ""
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client closed its connection

    def header(self, name: bytes) -> list[bytes]:
        lines = self.heads[-1].split(b"\r\n")[1:]
        pairs = [line.partition(b": ")[::2] for line in lines if line]
        return [value for key, value in pairs if key.lower() == name]


@asynccontextmanager
async def peer(
    reply: Callable[[Peer, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[Peer]:
    kept = Peer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                kept.heads.append(head)
                length = kept.header(b"content-length")
                kept.bodies.append(await reader.readexactly(int(length[0]) if length else 0))
                await reply(kept, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            kept.gone.set()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048)
    async with server:
        kept.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield kept


def replying(content: bytes, *, close: bool = False) -> Callable[[Peer, asyncio.StreamWriter], Any]:
    async def reply(_: Peer, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        if close:
            await writer.drain()
            writer.close()

    return reply


def asking(body: bytes = b"{}", **more: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "method": "POST",
        "path": "/v1/responses",
        "query": b"",
        "headers": [],
        "dialect": Dialect.RESPONSES,
        "document": None,
        **more,
    }
    return ModelRequest(body=body, **fields)


async def ask(model: Upstream, request: ModelRequest) -> tuple[int, dict[bytes, bytes], bytes]:
    async with model.answer(request) as answer:
        body = b"".join([part async for part in answer.parts])
        return answer.status, dict(answer.headers), body


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/openai/v1"])
def test_h1_the_body_goes_out_as_it_came(base: str) -> None:
    body = b'{"a" : "\xff"}'

    async def scenario() -> None:
        async with peer(replying(OK)) as server, Upstream(server.url + base) as model:
            request = asking(
                body,
                path="/v1/x%2Fy/~%7e",
                query=b"a=%62&c",
                headers=[
                    (b"content-type", b"application/json"),
                    (b"authorization", b"Bearer x"),
                    (b"x-twice", b"1"),
                    (b"x-twice", b"\xc3\xa9"),
                    (b"host", b"elsewhere"),
                    (b"content-length", b"999"),
                    (b"transfer-encoding", b"chunked"),
                    (b"connection", b"keep-alive, x-hop"),
                    (b"x-hop", b"1"),
                    (b"expect", b"100-continue"),
                    (b"accept-encoding", b"gzip"),
                    (b"rollout-history", b"keep"),
                    (b"Rollout-Hop", b"1"),
                ],
            )
            assert (await ask(model, request))[2] == b"ok"

            prefix = base.rstrip("/").removesuffix("/v1").encode()
            first = server.heads[0].split(b"\r\n")[0]
            assert first == b"POST " + prefix + b"/v1/x%2Fy/~%7e?a=%62&c HTTP/1.1"
            assert server.bodies == [body]
            names = {line.partition(b":")[0].lower() for line in server.heads[0].split(b"\r\n")[1:]}
            assert names == {
                b"host", b"content-length", b"content-type", b"authorization", b"x-twice",
                b"accept-encoding", b"",
            }  # fmt: skip
            assert server.header(b"x-twice") == [b"1", b"\xc3\xa9"]
            assert server.header(b"host") == [server.url.removeprefix("http://").encode()]
            assert server.header(b"accept-encoding") == [b"identity"]

    asyncio.run(scenario())


def test_h1_a_large_body_goes_out_as_it_came() -> None:
    body = b"x" * (3 << 20)

    async def scenario() -> None:
        async with peer(replying(OK)) as server, Upstream(server.url) as model:
            await ask(model, asking(body))
            assert server.bodies == [body]

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [307, 400, 409, 410, 429, 500, 503])
def test_the_answers_of_the_upstream_are_its_own(status: int) -> None:
    reply = (
        b"HTTP/1.1 %d Whatever\r\nContent-Length: 3\r\nRetry-After: 7\r\nLocation: /x\r\n"
        b"Set-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Encoding: gzip\r\nRollout-Worker: evil\r\n"
        b"Connection: X-Hop\r\nX-Hop: 1\r\n\r\n\x1f\x8b!" % status
    )

    async def scenario() -> None:
        async with peer(replying(reply)) as server, Upstream(server.url) as model:
            async with model.answer(asking()) as answer:
                assert answer.status == status
                assert list(answer.headers) == [
                    (b"content-length", b"3"),
                    (b"retry-after", b"7"),
                    (b"location", b"/x"),
                    (b"set-cookie", b"a=1"),
                    (b"set-cookie", b"b=2"),
                    (b"content-encoding", b"gzip"),
                ]
                assert [part async for part in answer.parts] == [b"\x1f\x8b!"]
            await ask(model, asking())
            assert server.header(b"cookie") == []
            assert len(server.bodies) == 2

    asyncio.run(scenario())


def test_parts_arrive_while_the_upstream_still_writes() -> None:
    more = asyncio.Event()

    async def reply(_: Peer, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await more.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")

    async def scenario() -> None:
        async with (
            peer(reply) as server,
            Upstream(server.url) as model,
            model.answer(asking()) as answer,
        ):
            assert b"transfer-encoding" not in dict(answer.headers)
            assert await anext(answer.parts) == b"one"
            more.set()
            assert [part async for part in answer.parts] == [b"two"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "head", [b"transfer-encoding: chunked\r\n\r\n3\r\n", b"content-length: 9\r\n\r\n"]
)
def test_r4_an_answer_that_is_cut_is_never_whole(head: bytes) -> None:
    reply = replying(b"HTTP/1.1 200 OK\r\n" + head + b"one", close=True)

    async def scenario() -> None:
        async with peer(reply) as server, Upstream(server.url) as model:
            with pytest.raises(ResponseCut, match=r"http://127.0.0.1"):
                await ask(model, asking())
            assert len(server.bodies) == 1

    asyncio.run(scenario())


def test_r4_a_reset_is_a_cut_also_where_only_the_end_of_the_connection_ends_the_answer() -> None:
    async def reply(_: Peer, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none")
        await writer.drain()
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await reset.wait()
        writer.transport.abort()

    reset = asyncio.Event()

    async def scenario() -> None:
        async with (
            peer(reply) as server,
            Upstream(server.url) as model,
            model.answer(asking()) as answer,
        ):
            assert await anext(answer.parts) == b"one"
            reset.set()
            with pytest.raises(ResponseCut):
                await anext(answer.parts)

    asyncio.run(scenario())


def test_an_answer_that_ends_with_its_connection_is_whole() -> None:
    reply = replying(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none", close=True)

    async def scenario() -> None:
        async with peer(reply) as server, Upstream(server.url) as model:
            assert (await ask(model, asking()))[2] == b"one"

    asyncio.run(scenario())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize("dialect", [Dialect.CHAT, Dialect.MESSAGES, None])
def test_an_upstream_that_is_not_there_is_502(dialect: Dialect | None) -> None:
    async def scenario() -> None:
        url = f"http://user:secret@127.0.0.1:{free_port()}"
        async with Upstream(url) as model:
            status, _, body = await ask(model, asking(dialect=dialect))
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (502, "upstream_unreachable")
        assert "127.0.0.1" in error["message"]
        assert "nothing ran" in error["message"]
        assert "secret" not in error["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_r2_a_call_is_never_sent_twice(method: str) -> None:
    """Also not on a kept connection that breaks, where client libraries like to try again."""

    async def reply(kept: Peer, writer: asyncio.StreamWriter) -> None:
        if len(kept.bodies) == 1:
            writer.write(OK)
        else:
            writer.close()

    async def scenario() -> None:
        async with peer(reply) as server, Upstream(server.url) as model:
            assert (await ask(model, asking(method=method)))[0] == 200
            status, _, body = await ask(model, asking(method=method))
            error = json.loads(body)["error"]
            assert (status, error["code"]) == (502, "upstream_disconnected")
            assert "may have run" in error["message"]
            assert (len(server.heads), server.connections) == (2, 1)

    asyncio.run(scenario())


def test_a_call_that_is_given_up_closes_its_connection() -> None:
    asked = asyncio.Event()

    async def reply(_: Peer, __: asyncio.StreamWriter) -> None:
        asked.set()

    async def scenario() -> None:
        async with peer(reply) as server, Upstream(server.url) as model:
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(ask(model, asking()))
                await asked.wait()
                task.cancel()
            assert task.cancelled()
            async with asyncio.timeout(30):
                await server.gone.wait()

    asyncio.run(scenario())


def test_a_stream_that_is_given_up_closes_its_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"

    async def scenario() -> None:
        async with peer(replying(head)) as server, Upstream(server.url) as model:
            async with model.answer(asking()) as answer:
                assert await anext(answer.parts) == b"one"
            async with asyncio.timeout(30):
                await server.gone.wait()

    asyncio.run(scenario())


def test_a_thousand_calls_are_in_flight_at_once() -> None:
    calls = 1000
    release = asyncio.Event()
    waiting = 0

    async def reply(_: Peer, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == calls:
            release.set()  # only when all of them are here
        await release.wait()
        writer.write(OK)

    async def scenario() -> None:
        async with peer(reply) as server, Upstream(server.url) as model, asyncio.timeout(100):
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(ask(model, asking())) for _ in range(calls)]
            assert {task.result()[2] for task in running} == {b"ok"}
            assert server.connections == calls

    asyncio.run(scenario())


@pytest.mark.parametrize("url", ["", "127.0.0.1:80", "ftp://x", "http://", "http://x/?a=b"])
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Upstream(url)
