# SPDX-License-Identifier: Apache-2.0
"""Connections that move between two workers' real servers, between requests alone (R1, R2, R4)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import uvicorn
import uvloop
from support.routing import PATIENCE_S, AppCall, Application, Rig, answer
from support.wire import settle

from rollout_router.routing.hand_over import HOPS_IN_A_ROW, _datagrams
from rollout_router.routing.limits import Limits
from rollout_router.routing.movable_protocol import Movable, MovableProtocol, movable_protocol
from rollout_router.routing.worker import Worker
from rollout_router.routing.workers_protocol import Part

FIRST = 1 + HOPS_IN_A_ROW
"""Requests that still hop: the first one makes the hop's connection, in the router."""

fine = answer(b"fine", headers=[(b"content-length", b"4")])


def request(rollout_id: str = "r1", more: bytes = b"") -> bytes:
    return b"POST /sessions/%b/x HTTP/1.1\r\nHost: x\r\n%bContent-Length: 2\r\n\r\n{}" % (
        rollout_id.encode(),
        more,
    )


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def answer(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    async def ask(self, rollout_id: str = "r1", more: bytes = b"") -> bytes:
        self.writer.write(request(rollout_id, more))
        return await self.answer()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@dataclass
class Public:
    """A worker with its public port."""

    worker: Worker
    app: Application
    server: uvicorn.Server
    movable: Movable
    address: tuple[str, int]

    @property
    def connections(self) -> set[MovableProtocol]:
        return cast("set[MovableProtocol]", self.server.server_state.connections)

    async def connect(self) -> Client:
        return Client(*await asyncio.open_connection(*self.address))


class _Told:
    """Mixed into a protocol: says when something comes, or ends."""

    changed: ClassVar[asyncio.Event]

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self.changed.set()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        self.changed.set()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        self.changed.set()


@asynccontextmanager
async def public(rig: Rig, changed: asyncio.Event, **limits: Any) -> AsyncIterator[Public]:
    app = Application(fine)
    router, worker = await rig.start(app)
    bare = movable_protocol(changed.set, Limits(**limits), router)
    kind = type("Protocol", (_Told, bare), {"changed": changed})
    config = uvicorn.Config(router, http=kind, ws="none", lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    listener = socket.create_server(("127.0.0.1", 0))
    await server.startup(sockets=[listener])
    movable = Movable(worker, kind, server)
    try:
        yield Public(worker, app, server, movable, listener.getsockname())
    finally:
        await movable.stop()
        await server.shutdown(sockets=[listener])


@dataclass
class Both:
    """The forwarder, and the owner of "r1" and "r2"."""

    forwarder: Public
    owner: Public
    changed: asyncio.Event

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the connections of both show."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def have(self, forwarder: int, owner: int) -> None:
        """Wait until each has so many connections."""
        expected = (forwarder, owner)
        await self.until(
            lambda: (len(self.forwarder.connections), len(self.owner.connections)) == expected
        )

    async def waiting(self) -> tuple[Client, MovableProtocol, asyncio.Event]:
        """A client whose connection may move with the next answer, which the event lets go."""
        client, go = await self.forwarder.connect(), asyncio.Event()
        for _ in range(FIRST - 1):
            await client.ask()
        (protocol,) = self.forwarder.connections

        async def held(call: AppCall) -> None:
            await go.wait()
            await fine(call)

        self.owner.app.script = held
        client.writer.write(request())
        await self.until(lambda: protocol._begun is not None)
        return client, protocol, go

    async def moved(self, client: Client) -> None:
        """Ask until the connection has moved, and no longer."""
        while self.forwarder.connections:
            await client.ask()
            await settle()


Test = Callable[[Both], Awaitable[None]]


on_both_loops = pytest.mark.parametrize(
    "run",
    [asyncio.new_event_loop, uvloop.new_event_loop],
    ids=["asyncio", "uvloop"],
    indirect=True,
)


@pytest.fixture
def run(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Callable[..., None]]:
    """Run a test with both workers, whose owner has the limits given."""

    async def bounded(test: Test, limits: dict[str, Any]) -> None:
        try:
            changed = asyncio.Event()
            async with (
                asyncio.timeout(PATIENCE_S),
                public(rig, changed) as one,
                public(rig, changed, **limits) as two,
            ):
                both = Both(one, two, changed)
                own = await two.connect()
                for rollout_id in ("r1", "r2"):
                    await own.ask(rollout_id)
                await own.close()
                await both.have(0, 0)
                two.app.calls.clear()
                await test(both)
        finally:
            await rig.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    loop_factory = getattr(request, "param", uvloop.new_event_loop)  # that of ``serve``
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        yield lambda test, **limits: runner.run(bounded(test, limits))


@on_both_loops
def test_r2_a_connection_moves_after_hops_in_a_row_and_answers_stay_the_same(
    run: Callable[..., None],
) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()
        answers = [await client.ask() for _ in range(FIRST)]
        await both.have(0, 1)
        answers += [await client.ask() for _ in range(3)]
        assert not both.forwarder.connections
        assert len(both.owner.app.calls) == FIRST + 3
        assert both.forwarder.app.calls == []
        assert len(set(answers[1:])) == 1
        # The first answer passed the application server; it says the same in other words.
        assert sorted(answers[0].lower().split(b"\r\n")) == sorted(
            answers[-1].lower().split(b"\r\n")
        )
        await client.close()
        await both.have(0, 0)

    run(test)


def test_r2_pipelined_requests_are_answered_in_order_by_who_read_them(
    run: Callable[..., None],
) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()
        for _ in range(FIRST - 1):
            await client.ask()
        client.writer.write(request("r1", b"N: 1\r\n") + request("r2") + request("r1", b"N: 2\r\n"))
        for _ in range(3):
            assert (await client.answer()).endswith(b"fine")
        await settle()
        assert len(both.forwarder.connections) == 1
        paths = [call.scope["path"] for call in both.owner.app.calls[-3:]]
        assert paths == [f"/sessions/{name}/x" for name in ("r1", "r2", "r1")]
        await both.moved(client)
        await client.close()

    run(test)


@pytest.mark.parametrize("sent_bytes", [4, len(request())])
def test_r2_a_request_that_was_begun_before_the_answer_ends_where_it_was_begun(
    run: Callable[..., None], sent_bytes: int
) -> None:
    async def test(both: Both) -> None:
        client, protocol, go = await both.waiting()
        client.writer.write(request()[:sent_bytes])
        await both.until(lambda: protocol._part is Part.HEAD or len(protocol.pipeline) > 0)
        go.set()
        await client.answer()
        await settle()
        client.writer.write(request()[sent_bytes:])
        assert (await client.answer()).endswith(b"fine")
        assert len(both.owner.app.calls) == FIRST + 1
        await both.have(0, 1)
        assert (await client.ask()).endswith(b"fine")
        assert len(both.owner.app.calls) == FIRST + 2
        await client.close()

    run(test)


def test_r2_a_connection_does_not_go_to_who_lost_the_rollout_meanwhile(
    run: Callable[..., None], rig: Rig
) -> None:
    async def test(both: Both) -> None:
        client, _, go = await both.waiting()
        rig.force("r1")
        go.set()
        assert (await client.answer()).endswith(b"fine")
        await settle()
        assert len(both.forwarder.connections) == 1
        await client.close()

    run(test)


def test_r2_a_request_that_follows_at_once_runs_once(run: Callable[..., None]) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()

        async def read() -> None:
            for _ in range(50):
                await client.answer()
                if len(both.owner.app.calls) < 49:
                    client.writer.write(request())

        client.writer.write(request())
        client.writer.write(request())  # one is always on its way
        await read()
        assert len(both.owner.app.calls) == 50
        await client.close()

    run(test)


def test_r4_an_answer_that_its_client_has_not_taken_keeps_the_connection(
    run: Callable[..., None],
) -> None:
    async def test(both: Both) -> None:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(0)
        await asyncio.get_running_loop().sock_connect(slow, both.forwarder.address)
        client = Client(*await asyncio.open_connection(sock=slow, limit=1024))
        for _ in range(FIRST - 1):
            await client.ask()
        (protocol,) = both.forwarder.connections
        protocol.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
        )
        body = b"x" * 60_000
        both.owner.app.script = answer(body, headers=[(b"content-length", b"60000")])
        client.writer.write(request())
        await both.until(lambda: protocol.transport.get_write_buffer_size() > 0)
        assert not protocol._answering
        await settle()
        assert protocol.transport.get_write_buffer_size() > 0
        assert len(both.forwarder.connections) == 1
        assert (await client.answer()).endswith(b"\r\n\r\n" + body)
        both.owner.app.script = fine
        await both.moved(client)
        await client.close()

    run(test)


def test_a_connection_that_carries_several_rollouts_stays(run: Callable[..., None]) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()
        for number in range(4 * FIRST):
            await client.ask(f"r{1 + number % 2}")
            await settle()
        assert len(both.forwarder.connections) == 1
        await client.close()

    run(test)


def test_a_connection_moves_ever_more_seldom(run: Callable[..., None]) -> None:
    async def test(both: Both) -> None:
        other = await both.forwarder.connect()
        await other.ask("r3")  # of the forwarder now
        await other.close()
        await both.have(0, 0)
        client = await both.forwarder.connect()
        moves, at = 0, both.forwarder
        for number in range(40):
            for _ in range(2 * HOPS_IN_A_ROW):
                await client.ask("r3" if number % 2 else "r1")
                await settle()
                if not at.connections:
                    at = both.owner if at is both.forwarder else both.forwarder
                    moves += 1
        assert 2 <= moves <= 3
        await client.close()

    run(test)


def test_c7_who_has_as_many_connections_as_it_may_turns_a_moved_one_away(
    run: Callable[..., None],
) -> None:
    async def test(both: Both) -> None:
        kept, client = await both.owner.connect(), await both.forwarder.connect()
        await kept.ask()
        await both.moved(client)
        refused = await client.ask()
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b'"overloaded"' in refused
        assert await client.reader.read() == b""
        await client.close()
        assert (await kept.ask()).endswith(b"fine")
        await kept.close()

    run(test, connections_max=1)


@pytest.mark.parametrize("who", ["owner", "forwarder"])
def test_r2_who_leaves_neither_takes_nor_gives(run: Callable[..., None], who: str) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()
        leaver: Public = getattr(both, who)
        await leaver.movable.stop()
        for _ in range(3 * FIRST):
            assert (await client.ask()).endswith(b"fine")
            await settle()
        assert (len(both.forwarder.connections), len(both.owner.connections)) == (1, 0)
        await client.close()

    run(test)


@on_both_loops
def test_r2_what_was_given_to_a_leaver_is_among_its_connections(run: Callable[..., None]) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()
        asyncio.get_running_loop().remove_reader(both.owner.movable._hand_over._inbox.fileno())
        await both.moved(client)
        assert not both.owner.connections
        client.writer.write(request())
        await both.owner.movable.stop()
        assert len(both.owner.connections) == 1
        assert (await client.answer()).endswith(b"fine")
        await client.close()

    run(test)


def test_r2_what_was_given_to_one_that_died_ends_and_nothing_of_it_ran(
    run: Callable[..., None],
) -> None:
    async def test(both: Both) -> None:
        client = await both.forwarder.connect()
        inbox = both.owner.movable._hand_over._inbox
        asyncio.get_running_loop().remove_reader(inbox.fileno())
        await both.moved(client)
        ran = len(both.owner.app.calls)
        client.writer.write(request())
        inbox.close()  # as the kernel does with the end of its process
        both.owner.movable._hand_over._inbox = _datagrams()  # for the test's own end
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.answer()
        assert len(both.owner.app.calls) == ran
        client.writer.close()

    run(test)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@on_both_loops
def test_many_moves_leave_no_descriptor(run: Callable[..., None]) -> None:
    async def test(both: Both) -> None:
        async def move() -> None:
            client = await both.forwarder.connect()
            await both.moved(client)
            await client.close()
            await both.have(0, 0)

        await move()
        await settle()
        before = open_files()
        for _ in range(20):
            await move()
        await settle()
        assert open_files() == before

    run(test)
