# SPDX-License-Identifier: Apache-2.0
"""Against real servers on loopback: what goes out, what comes back, and what a cut looks like."""

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import rollout_router.gateway.upstream as upstream_module
from rollout_router.errors import ResponseCut
from rollout_router.gateway.app import create_app
from rollout_router.gateway.capture import Capture
from rollout_router.gateway.model import Dialect, ModelRequest
from rollout_router.gateway.sink import CaptureSink
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
            assert len(server.bodies) == 1

    asyncio.run(scenario())


def named(url: str, userinfo: str = "") -> str:
    """*url* with a host name: no cookie jar and no proxy setting passes it over."""
    return url.replace("127.0.0.1", f"{userinfo}localhost")


def test_the_cookies_of_one_call_are_not_sent_with_the_next() -> None:
    reply = OK.replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=1; Path=/\r\n\r\n")

    async def scenario() -> None:
        async with peer(replying(reply)) as server, Upstream(named(server.url)) as model:
            for _ in range(2):
                assert (await ask(model, asking()))[1][b"set-cookie"] == b"a=1; Path=/"
                assert server.header(b"cookie") == []
            assert len(server.bodies) == 2

    asyncio.run(scenario())


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither its proxies nor its netrc: a call goes to the upstream that was named, as it came."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine localhost login user password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def scenario() -> None:
        async with peer(replying(OK)) as proxy, peer(replying(OK)) as server:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            async with Upstream(named(server.url)) as model:
                assert (await ask(model, asking()))[2] == b"ok"
            assert (len(server.heads), proxy.heads) == (1, [])
            assert server.header(b"authorization") == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("userinfo", "credentials"),
    [
        ("user:pw@", b"user:pw"),
        ("us%20er:p%40w:%C3%A9@", "us er:p@w:é".encode()),
        ("user@", b"user:"),
        (":pw@", b":pw"),
    ],
)
def test_credentials_of_the_url_replace_those_of_the_caller(
    userinfo: str, credentials: bytes
) -> None:
    basic = b"Basic " + base64.b64encode(credentials)
    headers = [(b"Authorization", b"Bearer x"), (b"x-api-key", b"y")]

    async def scenario() -> None:
        async with (
            peer(replying(OK)) as server,
            Upstream(named(server.url, userinfo) + "/v1") as model,
        ):
            for sent in (headers, []):
                assert (await ask(model, asking(headers=sent)))[2] == b"ok"
                assert server.header(b"authorization") == [basic]
                assert server.header(b"host") == [named(server.url).encode()[len("http://") :]]
                assert server.heads[-1].startswith(b"POST /v1/responses HTTP/1.1")
            assert server.header(b"x-api-key") == []

    asyncio.run(scenario())


def test_without_credentials_in_the_url_the_callers_pass_through() -> None:
    async def scenario() -> None:
        async with peer(replying(OK)) as server, Upstream(server.url) as model:
            await ask(model, asking(headers=[(b"authorization", b"Bearer x")]))
            assert server.header(b"authorization") == [b"Bearer x"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "reply",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"],
)
def test_no_password_is_told_or_logged(reply: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def scenario() -> None:
        async with (
            peer(replying(reply, close=True)) as server,
            Upstream(named(server.url, "user:secret@")) as model,
        ):
            status, _, body = await ask(model, asking())
        assert status == 502
        assert b"localhost" in body
        assert b"secret" not in body

    asyncio.run(scenario())
    assert "localhost" in caplog.text
    assert "secret" not in caplog.text


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


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
CUT_JSON = [
    JSON + b"content-length: 9\r\n\r\n",
    JSON + b'content-length: 9\r\n\r\n{"a":',
    JSON + b'transfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\n',
    JSON + b'transfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\nx\r\n',
]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("reply", CUT_JSON)
def test_f2_r4_a_json_answer_that_is_cut_before_it_began_is_502_and_recorded_as_failed(
    reply: bytes, dialect: Dialect, drive: Any, tmp_path: Path
) -> None:
    sink = CaptureSink(tmp_path, store_id="store-1")
    call = drive(
        path=f"/sessions/r1{dialect.value}", body=b'{"model":"m","input":"x","messages":[{}]}'
    )

    async def scenario() -> None:
        async with peer(replying(reply, close=True)) as server, Upstream(server.url) as model:
            await call.run(Capture(create_app(model), sink))
            assert len(server.bodies) == 1

    asyncio.run(scenario())
    document = json.loads(call.content)
    assert (call.status, document["error"]["code"]) == (502, "upstream_disconnected")
    assert "may have run" in document["error"]["message"]
    assert (document.get("type") == "error") is (dialect is Dialect.MESSAGES)
    assert call.complete
    (line,) = (tmp_path / "r1.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["outcome"], record["status"]) == ("failed", 502)
    assert record["response"].encode() == call.content


def test_r4_a_json_answer_that_has_begun_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "JSON_WHOLE_BYTES_MAX", 4)
    go_on = asyncio.Event()

    async def reply(_: Peer, writer: asyncio.StreamWriter) -> None:
        writer.write(JSON + b'content-length: 9\r\n\r\n{"a":')
        await go_on.wait()
        writer.close()

    async def scenario() -> None:
        async with (
            peer(reply) as server,
            Upstream(server.url) as model,
            model.answer(asking()) as answer,
        ):
            assert (answer.status, await anext(answer.parts)) == (200, b'{"a":')
            go_on.set()
            with pytest.raises(ResponseCut):
                await anext(answer.parts)

    asyncio.run(scenario())


@pytest.mark.parametrize("bytes_max", [0, 3, 4 << 20])
def test_h1_a_json_answer_is_passed_on_as_it_was_sent(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream_module, "JSON_WHOLE_BYTES_MAX", bytes_max)
    body = b'{ "a" : "' + b"x" * 300_000 + b'"}'
    reply = JSON + b"content-length: %d\r\n\r\n" % len(body) + body

    async def scenario() -> None:
        async with peer(replying(reply)) as server, Upstream(server.url) as model:
            for _ in range(2):
                status, headers, got = await ask(model, asking())
                assert (status, got) == (200, body)
                assert headers[b"content-length"] == str(len(body)).encode()
            assert server.connections == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        b"HELLO\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconte",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header: 1\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"\0\0\x12\4\0\0\0\0\0",
    ],
)
def test_an_upstream_that_speaks_no_http_is_502(reply: bytes) -> None:
    async def scenario() -> None:
        async with peer(replying(reply, close=True)) as server, Upstream(server.url) as model:
            status, _, body = await ask(model, asking())
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_disconnected")

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


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:80",
        "ftp://user:secret@x",
        "http://",
        "http://user:secret@",
        "http://user:secret@x/?a=b",
        "http://[::1",
        "http://user:secret@[::1",
        "http://user:secret@a b/",
        "http://a b/",
        "http://a\tb/",
        "http://a/b c",
        "http://x:99999",
        "http://user:secret/@x",
        "http://user:secret@℀.com",
        "http://user:secret@a..b",
        "http://" + "a" * 64,
        "http://us%3Aer:secret@x",
        "user:secret@x",
    ],
)
def test_what_is_no_base_url_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="the upstream has to be an http or https URL") as refused:
        Upstream(url)

    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize("url", ["http://[::1]:80/v1", "https://ä.example", "http://a_b:8000/x/"])
def test_what_is_a_base_url_is_taken(url: str) -> None:
    Upstream(url)
