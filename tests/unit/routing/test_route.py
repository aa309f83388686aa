# SPDX-License-Identifier: Apache-2.0
"""From the public port to the owner: hops, take-overs, losses (C3, C4, R1, R2, R4)."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.metrics import counted
from support.routing import AppCall, Application, Client, Rig, ScriptedOwner, answer, never

from rollout_router.claims import Gate, Grant, Owner, OwnerIdentity, write_gate
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.routing import worker as worker_module
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.forward import HELD_BODY_BYTES_MAX, Hop, Target
from rollout_router.transport.hop import HopClient, HopLost, HopRequest, HopResponse

MOVED = b"HTTP/1.1 421 Misdirected Request\r\nrollout-hop: moved\r\ncontent-length: 0\r\n\r\n"
FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"
TARGET = Target(owner=Owner(nonce="owner", inode=1), socket="/nowhere", claim_epoch=7)
ONE_READ_BYTES = 64 * 1024
LONG = b"0123456789abcdef" * (HELD_BODY_BYTES_MAX // 16 + 1)

SPOIL: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "unreadable": lambda file: file.write_bytes(b"?"),
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def replying(owner: ScriptedOwner, *replies: bytes) -> Serve:
    """Read a request, send a reply, and again, until the replies are used up; then close."""
    left = list(replies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            await owner.request(reader)
            writer.write(left.pop(0))
            await writer.drain()
        if not replies:
            await owner.request(reader)

    return serve


async def test_r1_a_request_that_reaches_another_worker_takes_one_hop_to_the_owner(
    rig: Rig,
) -> None:
    app, idle = Application(answer(b"from the owner", headers=[(b"x-a", b"b")])), Application()
    owner_router, owner = await rig.start(app)
    other, _ = await rig.start(idle)
    first = await Client().ask(owner_router)

    second = await Client(b"second", headers=[(b"x-c", b"d")], query=b"a=b%20c").ask(other)

    assert (second.status, second.content) == (200, b"from the owner")
    assert second.value(b"x-a") == b"b"
    assert second.epoch == first.epoch
    assert second.value(b"rollout-worker") == owner.id.encode()
    assert second.value(b"rollout-hop") is None
    assert idle.calls == []
    assert app.calls[1].body == b"second"
    assert app.calls[1].scope["query_string"] == b"a=b%20c"
    assert (b"x-c", b"d") in app.calls[1].headers
    assert not [key for key, _ in app.calls[1].headers if key.startswith(b"rollout-")]


@pytest.mark.parametrize("with_length", [True, False])
async def test_a_long_body_is_streamed_to_the_owner_whole(rig: Rig, *, with_length: bool) -> None:
    app = Application()
    owner_router, _ = await rig.start(app)
    other, _ = await rig.start(Application())
    await Client().ask(owner_router)
    length = [(b"Content-Length", str(2 * len(LONG)).encode())] if with_length else []
    client = Client(None, headers=length)
    client.write(LONG, more=True)
    client.write(LONG)

    await client.ask(other)

    assert client.status == 200
    assert app.calls[1].body == LONG + LONG


async def test_r1_private_headers_of_the_public_side_go_nowhere(rig: Rig) -> None:
    owner = rig.owner()
    await owner.listen(replying(owner, FINE))
    router, _ = await rig.start(Application())
    forged = [
        (b"Rollout-Hop", b"7"),
        (b"ROLLOUT-EXPECT-EPOCH", b"1"),
        (b"Rollout-Client", b"1.2.3.4 5"),
        (b"Connection", b"x-gone, x-session-id"),
    ]

    await Client(headers=[*forged, (b"X-Gone", b"a"), (b"Expect", b"100-continue")]).ask(router)

    lines = owner.requests[0].lower().split(b"\r\n")
    assert [line for line in lines if line.startswith(b"rollout-")] == [
        b"rollout-hop: 1",
        b"rollout-expect-epoch: %d" % rig.claim().claim_epoch,
        b"rollout-scheme: http",
    ]
    assert not [line for line in lines if line.startswith((b"x-gone", b"connection", b"expect"))]


async def test_r1_private_headers_do_not_make_a_public_request_a_hop(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)
    forged = [(b"Rollout-Hop", b"1"), (b"Rollout-Expect-Epoch", b"1")]

    client = await Client(headers=forged).ask(router)

    assert client.status == 200
    assert app.calls[0].headers == []


async def test_r6_a_closed_gate_of_the_forwarder_forwards(rig: Rig) -> None:
    app = Application()
    owner_router, _ = await rig.start(app)
    await Client().ask(owner_router)
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    other, _ = await rig.start(Application())  # starts closed; the owner has not looked yet

    assert (await Client().ask(other)).status == 200
    assert len(app.calls) == 2


@pytest.mark.parametrize("body", [b"short", LONG])
async def test_r6_an_open_gate_of_the_forwarder_lets_nothing_in_that_the_owner_refuses(
    rig: Rig, body: bytes
) -> None:
    app, idle = Application(), Application()
    owner_router, owner = await rig.start(app)
    other, forwarder = await rig.start(idle)
    first = await Client().ask(owner_router)
    owner.admission.close_own(by="ada", why="upkeep")

    client = Client(None, headers=[(b"rollout-history", b"keep")])
    client.write(body, more=body is LONG)  # the rest of a long one is never asked for
    await client.ask(other)

    assert forwarder.admission.gate.open
    assert (client.status, client.mark, client.epoch) == (503, b"none", first.epoch)
    assert b'"admission_closed"' in client.content
    assert client.value(b"retry-after") == b"1"
    assert (len(app.calls), len(idle.calls)) == (1, 0)
    assert owner.history.statistics().bases == 0


async def test_c3_a_dead_owner_is_replaced_under_a_higher_epoch(rig: Rig) -> None:
    dead, app = Application(), Application()
    owner_router, owner = await rig.start(dead)
    first = await Client().ask(owner_router)
    await rig.kill(owner)
    other, worker = await rig.start(app)

    client = await Client(b"again").ask(other)

    assert client.status == 200
    assert client.value(b"rollout-worker") == worker.id.encode()
    assert first.epoch is not None
    assert client.epoch is not None
    assert client.epoch > first.epoch
    assert [call.body for call in app.calls] == [b"again"]


async def test_r6_a_dead_owner_is_not_replaced_behind_a_closed_gate(rig: Rig) -> None:
    rig.owner().die()
    before = rig.claim()
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    router, _ = await rig.start(Application())

    client = await Client().ask(router)

    assert client.status == 503
    assert b'"admission_closed"' in client.content
    assert rig.claim() == before


async def test_c3_an_owner_that_lives_but_cannot_be_reached_keeps_its_claim(rig: Rig) -> None:
    rig.owner()  # its life lock is held, its socket is not there
    before, app = rig.claim(), Application()
    router, worker = await rig.start(app)
    counted_before = counted("rollout_router_owner_unreachable_total")

    client = await Client().ask(router)

    assert counted("rollout_router_owner_unreachable_total") == counted_before + 1
    assert (client.status, client.value(b"retry-after")) == (503, b"1")
    assert b'"owner_unreachable"' in client.content
    assert b"alive" in client.content
    assert client.epoch == before.claim_epoch
    assert client.value(b"rollout-worker") == worker.id.encode()
    assert rig.claim() == before
    assert app.calls == []


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
async def test_c7_c3_a_forwarder_that_gets_no_socket_is_503_moves_nothing_and_works_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    owner = rig.owner()
    await owner.listen(replying(owner, FINE))
    before, app = rig.claim(), Application()
    router, _ = await rig.start(app)

    def none(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as without:
        without.setattr(socket, "socket", none)
        client = await Client().ask(router)

    assert (client.status, client.value(b"retry-after")) == (503, b"1")
    assert b'"owner_unreachable"' in client.content
    assert (rig.claim(), owner.requests, app.calls) == (before, [], [])
    assert (await Client().ask(router)).content == b"fine"


@pytest.mark.parametrize("how", SPOIL)
async def test_c3_an_owner_whose_file_cannot_be_read_is_unknown_and_keeps_its_claim(
    rig: Rig, how: str
) -> None:
    owner = rig.owner()
    owner.die()
    SPOIL[how](Path(owner.life._path))
    before, app = rig.claim(), Application()
    router, _ = await rig.start(app)

    client = await Client().ask(router)

    assert client.status == 503
    assert b'"owner_unreachable"' in client.content
    assert b"an operator can force" in client.content
    assert rig.claim() == before
    assert app.calls == []


async def test_c3_an_owner_that_left_while_it_was_looked_up_is_no_reason_to_refuse(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, app = rig.owner(None), Application()
    grant = rig.store.take("r1", owner.life.owner)
    assert isinstance(grant, Grant)
    router, worker = await rig.start(app)
    identity_of = worker.identity_of

    async def late(nonce: str) -> OwnerIdentity | None:
        assert rig.store.release(grant)
        owner.life.close(remove=True)
        return await identity_of(nonce)

    monkeypatch.setattr(worker, "identity_of", late)

    assert (await Client().ask(router)).status == 200
    assert rig.claim().owner.nonce == worker.id


async def test_c4_two_forwarders_that_find_a_dead_owner_agree_on_one_successor(rig: Rig) -> None:
    rig.owner().die()
    apps = [Application(), Application()]
    started = [await rig.start(app) for app in apps]
    pauses = [rig.pause_claims(worker).pause("take_over") for _, worker in started]
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(Client().ask(router)) for router, _ in started]
        for pause in pauses:
            await pause.reached.wait()
        for pause in pauses:
            pause.go()

    clients = [task.result() for task in asking]
    assert [client.status for client in clients] == [200, 200]
    assert {client.epoch for client in clients} == {rig.claim().claim_epoch}
    assert sorted(len(app.calls) for app in apps) == [0, 2]


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\ncontent-"])
async def test_r2_an_owner_lost_with_the_call_in_hand_is_502_and_nothing_is_sent_again(
    rig: Rig, part: bytes
) -> None:
    owner = rig.owner()
    await owner.listen(replying(owner, part) if part else replying(owner))
    app = Application()
    router, _ = await rig.start(app)

    client = await Client(b"once", headers=[(b"rollout-history", b"keep")]).ask(router)

    assert (client.status, client.value(b"retry-after")) == (502, None)
    assert b'"owner_lost_in_flight"' in client.content
    assert b"may have run" in client.content
    assert client.mark == b"none"
    assert client.epoch == rig.claim().claim_epoch
    assert len(owner.requests) == 1
    assert app.calls == []


async def test_r2_an_owner_lost_after_it_asked_for_the_body_is_502(rig: Rig) -> None:
    owner = rig.owner()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        owner.requests.append(b"")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(1000)

    await owner.listen(serve)
    router, _ = await rig.start(Application())
    client = Client(None)
    client.write(LONG, more=True)
    client.write(LONG)

    await client.ask(router)

    assert client.status == 502
    assert len(owner.requests) == 1


async def test_r2_an_owner_lost_before_it_asked_for_the_body_may_be_replaced(rig: Rig) -> None:
    owner, app = rig.owner(), Application()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await reader.readuntil(b"\r\n\r\n")
        owner.die()

    await owner.listen(serve)
    router, worker = await rig.start(app)
    client = Client(None)
    client.write(LONG, more=True)
    client.write(b"the end")

    await client.ask(router)

    assert client.status == 200
    assert app.calls[0].body == LONG + b"the end"
    assert rig.claim().owner.nonce == worker.id


async def test_r2_a_421_is_followed_at_most_twice(rig: Rig) -> None:
    owner = rig.owner()
    await owner.listen(replying(owner, *[MOVED] * 9))
    app = Application()
    router, _ = await rig.start(app)

    client = await Client().ask(router)

    assert (client.status, client.value(b"retry-after")) == (503, b"1")
    assert b'"claim_moved"' in client.content
    assert len(owner.requests) == 3
    assert app.calls == []


@pytest.mark.parametrize("body", [b"short", LONG + b"!"])
async def test_r2_after_a_421_the_claim_is_read_again_and_the_whole_body_sent(
    rig: Rig, body: bytes
) -> None:
    owner, app = rig.owner(None), Application()
    grant = rig.store.take("r1", owner.life.owner)
    assert isinstance(grant, Grant)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert rig.store.release(grant)
        writer.write(MOVED)
        await writer.drain()
        await reader.read()

    await owner.listen(serve)
    router, worker = await rig.start(app)
    client = Client(None)
    client.write(body[:-1], more=True)
    client.write(body[-1:])

    await client.ask(router)

    assert client.status == 200
    assert [call.body for call in app.calls] == [body]
    assert rig.claim().owner.nonce == worker.id


async def test_r2_h1_a_body_that_was_handed_on_is_never_sent_again_in_part(rig: Rig) -> None:
    owner = rig.owner()  # one that breaks the rule: it says 421 when it has some of a body
    moved = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body, ends = b"", b"0\r\n\r\n" if moved.is_set() else b"some\r\n"
        while not body.endswith(ends):
            body += (piece := await reader.read(ONE_READ_BYTES))
            if not piece:
                return
        owner.requests.append(body)
        writer.write(FINE if moved.is_set() else MOVED)
        moved.set()
        await reader.read()

    await owner.listen(serve)
    router, _ = await rig.start(Application())
    client = Client(None)
    client.write(LONG, more=True)
    client.write(b"some", more=True)

    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await moved.wait()
        client.write(b"the end")

    assert (client.status, len(owner.requests)) == (502, 1)


async def test_a_421_of_the_application_is_its_answer(rig: Rig) -> None:
    owner_router, _ = await rig.start(
        Application(answer(b"mine", status=421, headers=[(b"Rollout-Hop", b"moved")]))
    )
    other, _ = await rig.start(Application())
    await Client().ask(owner_router)

    client = await Client().ask(other)

    assert (client.status, client.content) == (421, b"mine")


@pytest.mark.parametrize(("lines", "each_bytes"), [(5000, 1), (1, 400_000)])
async def test_an_answer_with_a_head_longer_than_any_client_reads_passes_over_a_hop_too(
    rig: Rig, lines: int, each_bytes: int
) -> None:
    long = [(b"x-%d" % number, b"v" * each_bytes) for number in range(lines)]
    owner_router, _ = await rig.start(Application(answer(b"mine", headers=long)))
    other, _ = await rig.start(Application())

    local, forwarded = await Client().ask(owner_router), await Client().ask(other)

    assert (forwarded.status, forwarded.content) == (200, b"mine")
    headers = {client: client.sent[0]["headers"] for client in (local, forwarded)}
    assert headers[local] == [h for h in headers[forwarded] if h[0] != b"transfer-encoding"]


async def test_r4_a_cut_within_the_answer_is_raised_and_never_ended(rig: Rig) -> None:
    owner = rig.owner()
    await owner.listen(replying(owner, FINE[:-1]))
    router, _ = await rig.start(Application())
    client = Client()

    with pytest.raises(ResponseCut):
        await client.ask(router)

    assert client.content == b"fin"
    assert not client.complete


async def test_r4_a_cut_within_the_answer_to_an_http_1_0_client_is_502(rig: Rig) -> None:
    owner = rig.owner()
    await owner.listen(replying(owner, FINE[:-1]))
    router, _ = await rig.start(Application())

    client = await Client(http_version="1.0").ask(router)

    assert client.status == 502
    assert client.value(b"content-length") == str(len(client.content)).encode()
    assert client.content.startswith(b'{"error"')


async def test_r4_an_http_1_0_client_gets_a_forwarded_answer_with_its_length(rig: Rig) -> None:
    async def streaming(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"ab", b"cd"):
            await call.send({"type": "http.response.body", "body": part, "more_body": True})
        await call.send({"type": "http.response.body", "body": b""})

    owner_router, _ = await rig.start(Application(streaming))
    other, _ = await rig.start(Application())
    await Client().ask(owner_router)

    client = await Client(http_version="1.0").ask(other)

    assert client.value(b"content-length") == b"4"
    assert client.value(b"transfer-encoding") is None
    assert client.content == b"abcd"


@pytest.mark.parametrize("http_version", ["1.0", "1.1"])
async def test_c3_an_owner_whose_death_is_proven_ends_the_wait_for_its_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, http_version: str
) -> None:
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0)
    owner = rig.owner()
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await owner.request(reader)
        writer.write(FINE[:-1] if http_version == "1.0" else b"")
        owner.life.close()  # a forked child holds its connection open
        await reader.read()
        gone.set()

    await owner.listen(serve)
    router, _ = await rig.start(Application())

    client = await Client(http_version=http_version).ask(router)
    await gone.wait()

    assert client.status == 502
    assert b'"owner_lost_in_flight"' in client.content
    assert client.content.startswith(b'{"error"')
    assert len(owner.requests) == 1


async def test_c3_an_owner_that_was_cleared_away_before_its_death_was_seen_ends_the_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0)
    owner, other = rig.owner(None), rig.owner(None)
    grant = rig.store.take("r1", owner.life.owner)
    assert isinstance(grant, Grant)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await owner.request(reader)
        assert rig.store.release(grant)
        assert isinstance(rig.store.take("r1", other.life.owner), Grant)
        owner.life.close(remove=True)
        await reader.read()  # a child holds the connection open

    await owner.listen(serve)
    router, _ = await rig.start(Application())

    client = await Client().ask(router)

    assert client.status == 502
    assert b'"owner_lost_in_flight"' in client.content
    assert len(owner.requests) == 1


async def test_c3_an_owner_that_died_before_it_asked_for_the_body_is_replaced(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0)
    owner, app = rig.owner(), Application()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await reader.readuntil(b"\r\n\r\n")
        owner.die()  # a forked child holds the connection open
        await reader.read()

    await owner.listen(serve)
    router, _ = await rig.start(app)
    client = Client(None)
    client.write(LONG, more=True)
    client.write(b"the end")

    await client.ask(router)

    assert client.status == 200
    assert app.calls[0].body == LONG + b"the end"


async def test_an_owner_that_does_not_ask_for_the_body_in_time_is_503(rig: Rig) -> None:
    owner = rig.owner()
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()
        gone.set()

    await owner.listen(serve)
    router, _ = await rig.start(Application(), owner_timeout_s=0.05)
    client = Client(None)
    client.write(LONG, more=True)
    client.write(LONG)
    unreachable = counted("rollout_router_owner_unreachable_total")

    await client.ask(router)
    await gone.wait()

    assert client.status == 503
    assert b'"owner_unreachable"' in client.content
    assert counted("rollout_router_owner_unreachable_total") == unreachable + 1


async def test_c3_while_the_client_still_writes_a_dead_owner_has_lost_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0)
    rig.owner().die()
    app = Application()
    router, worker = await rig.start(app)
    client = Client(None)
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await client.reading.wait()
        for _ in range(3):  # as long as a look at the life lock takes
            await worker.ownership.in_thread(lambda: None)
            await asyncio.sleep(0)
        client.write(b"{}")

    assert client.status == 200
    assert len(app.calls) == 1


async def test_an_owner_has_its_time_to_ask_for_the_body_and_to_answer_and_none_between() -> None:
    order: list[str] = []

    class Hops(HopClient):
        async def send(self, socket: str, request: HopRequest) -> HopResponse:
            assert (request.body, request.rest is None) == (b"", False)
            assert request.rest is not None
            order.append("the head")
            async for chunk in request.rest:
                order.append(chunk.decode())  # noqa: PERF401 - as it comes, not in the end
            raise HopLost(socket)

    class Watched(Hop):
        def _wind(self, time_s: float | None, since_s: float | None = None) -> None:
            super()._wind(time_s, since_s)
            order.append("no limit" if time_s is None else "the clock")

    client = Client(None)
    exchange = Exchange.of("r1", client.scope, client.receive, client.send, deltas=False)
    client.write(b"a", more=True)
    client.write(b"b", more=True)
    client.write(b"c")
    await exchange.client.fill(1)

    with pytest.raises(Refusal):
        await Watched(Hops(), exchange, identity=b"x", timeout_s=60).to(TARGET)

    assert order == ["the clock", "the head", "no limit", "a", "b", "c", "the clock"]


async def test_a_body_that_is_asked_for_as_the_time_is_over_is_not_sent() -> None:
    class Late(HopClient):
        async def send(self, socket: str, request: HopRequest) -> HopResponse:
            assert request.body == b""
            assert request.rest is not None
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
            async for _ in request.rest:
                raise HopLost(socket)
            raise AssertionError("a body that ends looks whole")

    client = Client(None)
    exchange = Exchange.of("r1", client.scope, client.receive, client.send, deltas=False)
    client.write(b"a", more=True)
    await exchange.client.fill(1)

    with pytest.raises(Refusal) as refused:
        await Hop(Late(), exchange, identity=b"x", timeout_s=0.01).to(TARGET)

    assert refused.value.code == "owner_unreachable"


LENGTH = (b"content-length", b"4")


@pytest.mark.parametrize("framing", [[LENGTH, LENGTH], [(b"transfer-encoding", b"identity")]])
async def test_r2_an_answer_that_no_hop_can_pass_on_is_502_and_its_owner_is_not_said_to_be_lost(
    rig: Rig, framing: list[tuple[bytes, bytes]]
) -> None:
    app = Application()
    owner_router, _ = await rig.start(app)
    other, _ = await rig.start(Application())
    await Client().ask(owner_router)
    app.script = answer(b"fine", headers=framing)

    client = await Client().ask(other)

    assert client.status == 502
    assert b'"owner_lost_in_flight"' in client.content
    assert b"its answer cannot be passed on" in client.content
    assert b"lost:" not in client.content
    assert len(app.calls) == 2


async def test_an_owner_that_gives_no_answer_in_time_is_504_and_told_to_stop(rig: Rig) -> None:
    app = Application(never)
    owner_router, _ = await rig.start(app)
    other, _ = await rig.start(Application(), owner_timeout_s=0.05)
    app.script = answer()
    await Client().ask(owner_router)
    app.script = never
    await app.arrived()

    client = await Client().ask(other)
    call = await app.arrived()
    await call.cancelled.wait()

    assert client.status == 504
    assert b'"owner_timeout"' in client.content
    assert len(app.calls) == 2


async def test_a_client_that_leaves_cancels_the_application_at_the_owner(rig: Rig) -> None:
    app = Application()
    owner_router, owner = await rig.start(app)
    other, _ = await rig.start(Application())
    await Client().ask(owner_router)
    await app.arrived()
    app.script = never
    client = Client()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(other))
        call = await app.arrived()
        client.leave()
        await call.cancelled.wait()

    assert client.sent == []
    assert owner.history.statistics().in_flight == 0


async def test_a_client_that_leaves_while_its_long_body_waits_for_a_slow_owner_is_noticed(
    rig: Rig,
) -> None:
    owner = rig.owner()
    waiting, gone = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer  # no 100 Continue comes
        await reader.readuntil(b"\r\n\r\n")
        waiting.set()
        assert await reader.read() == b""
        gone.set()

    await owner.listen(serve)
    router, worker = await rig.start(Application())
    client = Client(None)
    client.write(LONG, more=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await waiting.wait()
        client.write(b"more", more=True)
        client.leave()
        await gone.wait()

    assert client.sent == []
    assert not worker.in_hand[False]


async def test_a_client_that_leaves_within_a_streamed_answer_cancels_it_at_the_owner(
    rig: Rig,
) -> None:
    async def streaming(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        await call.send({"type": "http.response.body", "body": b"one", "more_body": True})
        await never(call)

    app = Application()
    owner_router, _ = await rig.start(app)
    other, _ = await rig.start(Application())
    await Client().ask(owner_router)
    await app.arrived()
    app.script = streaming
    client = Client()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(other))
        call = await app.arrived()
        while not client.content:
            client.written.clear()
            await client.written.wait()
        client.leave()
        await call.cancelled.wait()

    assert client.content == b"one"
    assert not client.complete


async def test_c6_a_hop_waits_for_a_running_release_and_its_forwarder_then_takes_the_claim(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, other_app = Application(), Application()
    owner_router, owner = await rig.start(app)
    other, worker = await rig.start(other_app)
    first = await Client().ask(owner_router)
    hop_waits, wait_settled = asyncio.Event(), owner.ownership.wait_settled

    async def watched(rollout_id: str) -> None:
        hop_waits.set()
        await wait_settled(rollout_id)

    monkeypatch.setattr(owner.ownership, "wait_settled", watched)
    pause = rig.pause_claims(owner).pause("release")
    owner.ownership.leave()
    await pause.reached.wait()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(other))
        await hop_waits.wait()
        pause.go()

    client = asking.result()
    assert client.status == 200
    assert first.epoch is not None
    assert client.epoch is not None
    assert client.epoch > first.epoch
    assert (len(app.calls), len(other_app.calls)) == (1, 1)
    assert rig.claim().owner.nonce == worker.id
