# SPDX-License-Identifier: Apache-2.0
"""Hops that the public protocol begins below ASGI, against the router's own way (R1, R2, R4)."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from support.routing import Application, Client, Rig, ScriptedOwner, answer
from uvicorn.server import ServerState

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.claims import Owner, StoreUnavailable
from rollout_router.routing import Router, begun
from rollout_router.routing import worker as worker_module
from rollout_router.routing.begun import BEGUN_KEY, BegunHop, split
from rollout_router.routing.client import ClientGone
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.forward import (
    Target,
)
from rollout_router.routing.limits import Limits
from rollout_router.routing.public_protocol import PublicProtocol, public_protocol
from rollout_router.routing.route import route
from rollout_router.routing.worker import Worker
from rollout_router.transport.hop import Body

FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"
MOVED = b"HTTP/1.1 421 Misdirected Request\r\nrollout-hop: moved\r\ncontent-length: 0\r\n\r\n"
HOST = b"Host: gym\r\n"
CHUNKED = (
    b"PUT /sessions/r1/x HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
)
Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Port:
    """The public port of one worker; knows which way its requests took."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.off: set[str] = set()  # the ways that are closed
        self.went: list[str] = []  # what did not take the router's
        self.scopes: list[Scope] = []
        self.state = ServerState()
        self.routed = asyncio.Event()
        self.lost = asyncio.Event()  # set when a connection is; the test clears it
        self._config = uvicorn.Config(
            self, interface="asgi3", proxy_headers=False, ws="none", lifespan="off", log_config=None
        )
        self._config.load()
        self._kind = public_protocol(self.lost.set, Limits(), self)
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.routed.set()
        await self.router(scope, receive, send)

    def begin_hop(self, scope: Scope, body: Body, *, head: bytes | None) -> BegunHop | None:
        begun = None if "hop" in self.off else self.router.begin_hop(scope, body, head=head)
        self.went += ["hop"] * (begun is not None)
        return begun

    def begin_again(self, head: bytes, lines: bytes, body: Body) -> BegunHop | None:
        begun = None if "again" in self.off else self.router.begin_again(head, lines, body)
        self.went += ["again"] * (begun is not None)
        return begun

    @property
    def protocols(self) -> list[PublicProtocol]:
        """The server's ends of its connections."""
        return cast("list[PublicProtocol]", list(self.state.connections))

    def begin_anew(self) -> None:
        """Forget what was asked."""
        self.scopes.clear()
        self.went.clear()
        self.routed.clear()

    async def open(self) -> "Wire":
        """A connection to it."""
        reader, writer = await asyncio.open_connection(*self.address)
        self._writers.append(writer)
        return Wire(reader, writer)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Port"]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: self._kind(self._config, self.state, {}, _loop=loop), "127.0.0.1", 0
        )
        self.address = server.sockets[0].getsockname()
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            while self.state.connections:
                self.lost.clear()
                await self.lost.wait()
            await asyncio.gather(*self.state.tasks, return_exceptions=True)


class Wire:
    """One client's connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, raw: bytes) -> bytes:
        """Send a request; gives its answer as it came, which has a length."""
        self.writer.write(raw)
        return await self.answer()

    async def answer(self) -> bytes:
        """The next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head + await self.reader.readexactly(length)


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def asked(request: pytest.FixtureRequest) -> int:
    """How often an owner was asked before: its head is known from the second time on."""
    times: int = request.param
    return times


def post(body: bytes = b"{}", *lines: bytes, path: bytes = b"/sessions/r1/v1/x") -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"Host: gym", *lines, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def status(raw: bytes) -> int:
    return int(raw.split(b" ", 2)[1])


@asynccontextmanager
async def two_workers(rig: Rig, app: Application, **changes: Any) -> AsyncIterator[Port]:
    """The port of a worker, to another of which r1 belongs, and that has asked it before."""
    owner, _ = await rig.start(app)
    other, _ = await rig.start(Application(), **changes)
    async with Port(owner).listening() as own, Port(other).listening() as port:
        assert status(await (await own.open()).ask(post())) == 200
        assert status(await (await port.open()).ask(post())) == 200
        app.calls.clear()
        port.begin_anew()
        yield port


@asynccontextmanager
async def scripted_owner(
    rig: Rig, *replies: Reply, asked: int, **changes: Any
) -> AsyncIterator[tuple[Port, ScriptedOwner, Worker]]:
    """The port of a worker that has *asked* the owner of r1, whose next replies the test gives."""
    owner = rig.owner()
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(asked):
            await owner.request(reader)
            writer.write(FINE)
        while left:
            await owner.request(reader)
            await left.pop(0)(reader, writer)

    await owner.listen(serve)
    router, worker = await rig.start(Application(), **changes)
    async with Port(router).listening() as port:
        for _ in range(asked):
            assert status(await (await port.open()).ask(post())) == 200
        port.begin_anew()
        yield port, owner, worker


def says(*pieces: bytes) -> Reply:
    async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return reply


class Held:
    """A reply that is given when the test says so."""

    def __init__(self, reply: Reply) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self._reply = reply

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await self.go.wait()
        await self._reply(reader, writer)


async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def wait(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Until the forwarder gives up."""
    assert await reader.read() == b""


STRAIGHT: dict[str, bytes] = {
    "a small body": post(b'{"a": 1}', b"X-A: b", b"x-a: c"),
    "no body": b"GET /sessions/r1/v1/x?a=b%20c HTTP/1.1\r\n" + HOST + b"\r\n",
    "an empty body": post(b""),
    "chunks": CHUNKED,
    "a connection that is kept": post(b"{}", b"Connection: Keep-Alive"),
    "headers of ours": post(b"{}", b"Rollout-Hop: 1", b"rollout-expect-epoch: 9", b"Cookie: a=b"),
    "a body of one read": post(b"x" * 60_000),
    "a frame": post(b"{}", b"Content-Type: application/vnd.rollout-delta"),
}


@pytest.mark.parametrize("name", STRAIGHT)
async def test_r1_what_goes_straight_arrives_and_is_answered_as_what_the_router_sends(
    rig: Rig, name: str
) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4"), (b"x-b", b"c")]))
    async with two_workers(rig, app) as port:
        straight = await (await port.open()).ask(STRAIGHT[name])
        again = await (await port.open()).ask(STRAIGHT[name])
        assert port.went == ["hop", "again" if split(STRAIGHT[name]) else "hop"]
        assert port.scopes == []
        port.off = {"hop", "again"}
        routed = await (await port.open()).ask(STRAIGHT[name])
        assert len(port.scopes) == 1
    assert straight == again == routed
    assert status(straight) == (400 if name == "a frame" else 200)
    assert len({call.body for call in app.calls}) == (name != "a frame")
    for call in app.calls:
        host, port_of_client = call.scope["client"]
        call.scope["client"] = host, port_of_client > 0  # they differ, and what each was given
        del call.scope["rollout_router.call"], call.scope["rollout_router.gone"]
    assert all(call.scope == app.calls[0].scope for call in app.calls)
    assert len(app.calls) == (0 if name == "a frame" else 3)


async def test_r1_a_head_that_is_known_may_have_any_length_and_comes_from_its_own_client(
    rig: Rig,
) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        clients = [await port.open() for _ in range(2)]
        for size in (0, 1, 999, 40_000):
            for client in clients:
                assert status(await client.ask(post(b"x" * size, b"X-Content-Length: 7"))) == 200
        assert port.went == ["hop", *["again"] * 7]
        ports = [client.writer.get_extra_info("sockname")[1] for client in clients]
    assert [len(call.body) for call in app.calls] == [0, 0, 1, 1, 999, 999, 40_000, 40_000]
    assert [call.scope["client"][1] for call in app.calls] == ports * 4
    lengths = [
        value for call in app.calls for name, value in call.headers if name == b"content-length"
    ]
    assert lengths == [b"0", b"0", b"1", b"1", b"999", b"999", b"40000", b"40000"]


UNKNOWN: dict[str, bytes] = {
    "another path": post(path=b"/sessions/r1/v1/y"),
    "another header": post(b"{}", b"X-A: c"),
    "another case": post(b"{}", b"X-a: b"),
    "another method": post(b"{}", b"X-A: b").replace(b"POST", b"PUT"),
    "another order": post(b"{}", b"X-A: b").replace(b"Host: gym\r\nX-A: b", b"X-A: b\r\nHost: gym"),
}


@pytest.mark.parametrize("name", UNKNOWN)
async def test_r1_a_head_that_differs_in_anything_else_is_read(rig: Rig, name: str) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        for raw in (post(b"{}", b"X-A: b"), UNKNOWN[name]):
            assert status(await client.ask(raw)) == 200
        assert port.went == ["hop", "hop"]


async def test_c1_the_claim_of_a_known_head_is_looked_at_as_any(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        assert status(await client.ask(post())) == 200
        rig.force()  # and its owner takes it again, higher
        owner = rig.routers[0]
        assert (await Client().ask(owner)).status == 200
        assert status(await client.ask(post())) == 200
        assert status(await client.ask(post())) == 200
        assert port.went == ["hop", "hop", "again"]
    epochs = [call.routed.claim_epoch for call in app.calls if call.routed is not None]
    assert epochs == [epochs[0], *[rig.claim().claim_epoch] * 3]
    assert epochs == sorted(epochs, key=lambda epoch: epoch or 0)


async def test_the_head_that_was_not_met_for_the_longest_is_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "KNOWN_HEADS_MAX", 2)
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        for number in (1, 2, 1, 3, 1, 3, 2):
            assert status(await client.ask(post(b"{}", b"X: %d" % number))) == 200
        assert port.went == ["hop", "hop", "again", "hop", "again", "again", "hop"]


def long_post(body: bytes, head_bytes: int) -> bytes:
    """With a head of so many bytes up to its empty line, but for the digits of its length."""
    short = post(body, b"X: ")
    digits = len(b"%d" % len(body))
    return post(body, b"X: " + b"x" * (head_bytes - (len(short) - 4 - len(body) - digits)))


@pytest.mark.parametrize(
    ("over", "went"), [(0, ["hop", "again"]), (1, ["hop", "hop"])], ids=["at", "over"]
)
async def test_a_longer_head_is_read_each_time(rig: Rig, over: int, went: list[str]) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        for _ in range(2):
            raw = long_post(b"{}", begun.KNOWN_HEAD_BYTES_MAX + over)
            assert status(await client.ask(raw)) == 200
        assert port.went == went


async def test_r2_no_digit_makes_a_known_head_too_long(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        raw = post(b"12", b"X: ")
        room = Limits().head_bytes_max - (len(raw) - 4 - 2 - len(b"POST  HTTP/1.1\r\n"))
        fits = raw.replace(b"X: ", b"X: " + b"x" * (room - 2))
        assert status(await client.ask(fits)) == 200
        over = fits.replace(b"Content-Length: 2", b"Content-Length: 10") + b"34567890"
        client.writer.write(over)
        refused = await client.answer()
        assert (status(refused), b"Nothing of it happened" in refused) == (431, True)
        assert [call.body for call in app.calls] == [b"12"]


async def test_r2_what_the_parser_refuses_after_all_is_cut_and_never_said_not_to_have_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "STRAIGHT_S", 0.001)
    async with scripted_owner(rig, wait, asked=2) as (port, owner, worker):
        client = await port.open()
        port._kind.limits = Limits(headers_max=1)
        client.writer.write(post())
        assert await client.reader.read() == b""
        assert (worker.in_hand[False], port.scopes) == (0, [])
        port._kind.limits = Limits()
    assert len(owner.requests) == 3


async def test_stray_line_ends_between_known_requests_do_not_add_up(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        here = client.writer.get_extra_info("sockname")
        (protocol,) = [one for one in port.protocols if one.client == here]
        for _ in range(12):
            assert status(await client.ask(post())) == 200
            protocol.data_received(b"\r\n" * 4000)
        assert port.went.count("again") == 11


ROUTED: dict[str, tuple[int, list[bytes]]] = {
    "HEAD": (200, [b"HEAD /sessions/r1/v1/x HTTP/1.1\r\n" + HOST + b"\r\n"]),
    "HTTP/1.0": (200, [b"POST /sessions/r1/v1/x HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"]),
    "a connection that ends": (200, [post(b"{}", b"Connection: close")]),
    "a header of the connection": (
        200,
        [post(b"{}", b"Connection: keep-alive, x-a", b"X-A: b")],
    ),
    "an upgrade": (200, [post(b"", b"Connection: Upgrade", b"Upgrade: h2c")]),
    "a websocket": (426, [post(b"", b"Upgrade: websocket")]),
    "a body in two reads": (200, [post(b"abcd")[:-2], b"cd"]),
    "an invalid rollout": (200, [post(path=b"/sessions/%41/x")]),
    "a rollout that is new": (200, [post(path=b"/sessions/r2/x")]),
    "no rollout": (200, [post(path=b"/x")]),
}


@pytest.mark.parametrize("name", ROUTED)
async def test_all_else_takes_the_way_of_the_router(rig: Rig, name: str) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        expected, (first, *rest) = ROUTED[name]
        client.writer.write(first)
        if rest:
            await port.routed.wait()  # the first part was read
            client.writer.write(rest[0])
        head = await client.reader.readuntil(b"\r\n\r\n")
    assert (status(head), len(port.scopes)) == (expected, 1)


async def test_a_body_that_came_without_being_asked_for_is_not_asked_for(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        raw = await (await port.open()).ask(post(b"{}", b"Expect: 100-continue"))
        assert (status(raw), port.scopes) == (200, [])
    assert [call.body for call in app.calls] == [b"{}"]


async def test_stages_are_timed_by_the_router(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app, server_timing=True) as port:
        assert status(await (await port.open()).ask(post())) == 200
        assert len(port.scopes) == 1


async def test_a_call_too_many_is_refused_by_the_router(rig: Rig, asked: int) -> None:
    first = Held(says(FINE))
    async with scripted_owner(rig, first, calls_max=1, asked=asked) as (port, owner, worker):
        one, two = await port.open(), await port.open()
        one.writer.write(post())
        await first.asked.wait()
        assert status(await two.ask(post())) == 503
        first.go.set()
        assert status(await one.answer()) == 200
        assert worker.in_hand[False] == 0
    assert len(owner.requests) == asked + 1


async def test_r4_two_requests_in_one_read_are_answered_in_order(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        client.writer.write(post(b"one") + post(b"two"))
        assert [status(await client.answer()) for _ in range(2)] == [200, 200]
    assert [call.body for call in app.calls] == [b"one", b"two"]
    assert len(port.scopes) == 2


async def test_r4_a_request_behind_one_that_is_under_way_is_answered_after_it(
    rig: Rig, asked: int
) -> None:
    first = Held(says(FINE.replace(b"fine", b"1st.")))
    async with scripted_owner(rig, first, says(FINE), asked=asked) as (port, owner, worker):
        client = await port.open()
        client.writer.write(post(b"one"))
        await first.asked.wait()
        assert worker.in_hand[False] == 1
        client.writer.write(post(b"two") + b"what is this\r\n\r\n")
        first.go.set()
        assert (await client.answer()).endswith(b"1st.")
        assert (await client.answer()).endswith(b"fine")
        assert await client.reader.read() == b""
    assert worker.in_hand[False] == 0
    assert [request[-3:] for request in owner.requests[asked:]] == [b"one", b"two"]


CHUNKS = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"4\r\nfine\r\n0\r\n\r\n"]
PIECES: dict[str, list[bytes]] = {
    "chunks": CHUNKS,
    "chunks in one read": [b"".join(CHUNKS)],
    "a head, and later its body": [FINE[:-4], FINE[-4:]],
    "a part of a head": [FINE[:20], FINE[20:]],
    "an interim answer": [b"HTTP/1.1 102 Processing\r\n\r\n", FINE],
}


@pytest.mark.parametrize("name", PIECES)
async def test_r4_an_answer_that_is_not_whole_or_has_no_length_is_the_routers(
    rig: Rig, asked: int, name: str
) -> None:
    begin, rest = PIECES[name][0], b"".join(PIECES[name][1:])

    async def reply(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await port.routed.wait()
        writer.write(rest)

    async with scripted_owner(rig, reply, asked=asked) as (port, owner, worker):
        client = await port.open()
        client.writer.write(post())
        head = await client.reader.readuntil(b"\r\n\r\n")
        end = b"fine" if b"content-length: 4" in head else b"4\r\nfine\r\n0\r\n\r\n"
        assert await client.reader.readexactly(len(end)) == end
        assert (len(port.scopes), worker.in_hand[False]) == (1, 0)
    assert len(owner.requests) == asked + 1


async def test_r2_an_owner_that_sends_us_away_ran_nothing_and_the_claim_is_read_again(
    rig: Rig,
    asked: int,
) -> None:
    async def move(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rig.force()
        writer.write(MOVED)

    async with scripted_owner(rig, move, asked=asked) as (port, owner, worker):
        client = await port.open()
        assert status(await client.ask(post(b"again"))) == 200
        app = port.router.app
        assert isinstance(app, Application)
        assert [call.body for call in app.calls] == [b"again"]
        assert worker.in_hand[False] == 0
    assert len(owner.requests) == asked + 1


@pytest.mark.parametrize("started", [b"", FINE[:30]])
async def test_r2_an_owner_lost_under_way_is_502_and_nothing_is_sent_again(
    rig: Rig, asked: int, started: bytes
) -> None:
    async def die(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(started)
        writer.close()

    async with scripted_owner(rig, die, asked=asked) as (port, owner, worker):
        raw = await (await port.open()).ask(post())
        assert status(raw) == 502
        assert b"owner_lost_in_flight" in raw
        assert b"rollout-claim-epoch: %d" % rig.claim().claim_epoch in raw
        assert worker.in_hand[False] == 0
    assert len(owner.requests) == asked + 1


async def test_r2_a_worker_past_its_deadline_says_that_the_call_may_have_run(
    rig: Rig, asked: int
) -> None:
    death = Held(cut)
    async with scripted_owner(rig, death, asked=asked) as (port, _, worker):
        client = await port.open()
        client.writer.write(post())
        await death.asked.wait()
        worker.closed = True
        death.go.set()
        raw = await client.answer()
        worker.closed = False
    assert (status(raw), b"owner_lost_in_flight" in raw) == (502, True)


async def test_r2_a_client_that_leaves_gives_its_hop_up_and_its_owner_is_told(
    rig: Rig, asked: int
) -> None:
    waiting, told = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader) -> None:
        waiting.set()
        assert await reader.read() == b""
        told.set()

    owner = rig.owner()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(asked):
            await owner.request(reader)
            writer.write(FINE)
        await owner.request(reader)
        await serve(reader)

    await owner.listen(script)
    router, worker = await rig.start(Application())
    async with Port(router).listening() as port:
        for _ in range(asked):
            assert status(await (await port.open()).ask(post())) == 200
        client = await port.open()
        client.writer.write(post())
        await waiting.wait()
        port.lost.clear()
        client.writer.transport.abort()
        await port.lost.wait()
        assert worker.in_hand[False] == 0
        await told.wait()
        assert len(port.scopes) == 1  # the first


async def test_c3_an_answer_that_takes_its_time_is_the_routers_which_watches_its_owner(
    rig: Rig, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "STRAIGHT_S", 0.001)
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0.001)
    async with scripted_owner(rig, wait, asked=asked) as (port, owner, worker):
        client = await port.open()
        client.writer.write(post())
        await port.routed.wait()
        assert (worker.in_hand[False], BEGUN_KEY in port.scopes[0]) == (1, True)
        owner.life.close()  # and something else keeps its connection open
        raw = await client.answer()
        assert (status(raw), b"owner_lost_in_flight" in raw) == (502, True)
        assert worker.in_hand[False] == 0


async def test_an_owner_that_gives_no_answer_in_time_is_504(
    rig: Rig, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(begun, "STRAIGHT_S", 0.001)
    async with scripted_owner(rig, wait, owner_timeout_s=0.2, asked=asked) as (port, _, worker):
        raw = await (await port.open()).ask(post())
        assert (status(raw), b"owner_timeout" in raw) == (504, True)
        assert worker.in_hand[False] == 0


async def test_a_worker_that_leaves_has_its_application_answer(rig: Rig, asked: int) -> None:
    late = Held(says(FINE))
    async with scripted_owner(rig, late, asked=asked) as (port, _, worker):
        client = await port.open()
        client.writer.write(post())
        await late.asked.wait()
        worker.leave()
        late.go.set()
        assert status(await client.answer()) == 200
        assert BEGUN_KEY in port.scopes[0]


async def test_r4_garbage_behind_a_hop_ends_the_connection_after_its_answer(
    rig: Rig, asked: int
) -> None:
    late = Held(says(FINE))
    async with scripted_owner(rig, late, asked=asked) as (port, _, worker):
        client = await port.open()
        client.writer.write(post())
        await late.asked.wait()
        (protocol,) = [one for one in port.protocols if one._begun]
        protocol.data_received(b"what is this\r\n\r\n")
        late.go.set()
        assert status(await client.answer()) == 200
        assert await client.reader.read() == b""
        assert worker.in_hand[False] == 0


async def test_r4_a_client_that_does_not_read_has_its_application_answer(
    rig: Rig, asked: int
) -> None:
    late = Held(says(FINE))
    async with scripted_owner(rig, late, asked=asked) as (port, _, _):
        client = await port.open()
        client.writer.write(post())
        await late.asked.wait()
        (protocol,) = [one for one in port.protocols if one._begun]
        protocol.flow.pause_writing()
        late.go.set()
        await port.routed.wait()
        protocol.flow.resume_writing()
        assert status(await client.answer()) == 200


async def test_r5_what_an_owner_tells_its_forwarder_alone_goes_no_further(rig: Rig) -> None:
    told = FINE.replace(b"\r\n\r\n", b"\r\nrollout-hop: moved\r\nrollout-stages: app;dur=1\r\n\r\n")
    async with scripted_owner(rig, says(told), asked=1) as (port, _, _):
        assert await (await port.open()).ask(post()) == FINE
        assert port.went == ["hop"]


async def test_an_odd_status_is_the_routers_to_pass_on_or_to_fail(rig: Rig, asked: int) -> None:
    odd = says(FINE.replace(b"200 OK", b"600 Odd"))
    async with scripted_owner(rig, odd, asked=asked) as (port, _, worker):
        client = await port.open()
        client.writer.write(post())
        await client.reader.read()
        assert (len(port.scopes), worker.in_hand[False]) == (1, 0)


async def test_r2_a_call_that_was_sent_away_and_is_given_up_then_did_not_run(
    rig: Rig, asked: int
) -> None:
    async def move(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rig.force()
        writer.write(MOVED)

    async with scripted_owner(rig, move, asked=asked) as (port, _, worker):
        pause = rig.pause_claims(worker).pause("take")
        client = await port.open()
        client.writer.write(post())
        await pause.reached.wait()
        for task in list(port.state.tasks):
            task.cancel()
        raw = await client.answer()
        pause.go()
    assert (status(raw), b"draining" in raw) == (503, True)


@pytest.mark.parametrize("why", ["calls", "closed", "store", "child"])
async def test_what_the_router_refuses_is_not_sent(
    rig: Rig, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: str) -> None:
        raise StoreUnavailable("reading", errno.EIO)

    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        assert status(await (await port.open()).ask(post())) == 200
        worker = port.router.worker
        assert worker is not None
        if why == "calls":
            worker.in_hand[False] = worker.settings.calls_max
        elif why == "closed":
            worker.closed = True
        elif why == "child":
            monkeypatch.setattr(worker, "pid", worker.pid + 1)
        else:
            monkeypatch.setattr(worker.store, "read", fail)
        assert status(await (await port.open()).ask(post())) == 503
        assert status(await (await port.open()).ask(post(b"{}", b"X: y"))) == 503
        worker.in_hand[False], worker.closed = 0, False
        assert port.went == ["hop"]
    assert len(app.calls) == 1


async def test_within_a_framework_the_router_alone_forwards(rig: Rig) -> None:
    router = Router(Application(), rig.settings(), outermost=Application())
    await router.start_worker()
    try:
        scope = Client().scope
        assert router.begin_hop(scope, b"{}", head=None) is None
    finally:
        await router.stop_worker()


async def test_a_connection_that_is_idle_holds_no_body(rig: Rig) -> None:
    app = Application(answer(b"fine", headers=[(b"content-length", b"4")]))
    async with two_workers(rig, app) as port:
        client = await port.open()
        for _ in range(2):
            assert status(await client.ask(post(b"x" * 60_000))) == 200
            for protocol in port.protocols:
                assert not protocol._unread
                assert not getattr(protocol.cycle, "body", b"")
        assert port.went == ["hop", "again"]


class _Gone:
    """A client that left before its router began."""

    def __init__(self) -> None:
        self.scope = Client().scope

    async def receive(self) -> Message:
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        raise AssertionError(message)


async def test_r2_a_client_that_leaves_as_its_router_takes_over_gives_the_hop_up(rig: Rig) -> None:
    closed: list[bool] = []

    class Begun:
        target = Target(owner=Owner(nonce="owner", inode=1), socket="/nowhere", claim_epoch=7)

        def close(self) -> None:
            closed.append(True)

    _, worker = await rig.start(Application())
    gone = _Gone()
    gone.scope[BEGUN_KEY] = Begun()
    exchange = Exchange.of("r1", gone.scope, gone.receive, gone.send, deltas=False)
    with pytest.raises(ClientGone):
        await route(Application(), worker, exchange)
    assert closed == [True]
    assert exchange.progress.dispatched
