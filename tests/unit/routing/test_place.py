# SPDX-License-Identifier: Apache-2.0
"""A new rollout is given to another worker, which takes the claim itself (C4, R1, R2, R5, R6)."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support.metrics import counted
from support.routing import AppCall, Application, Client, Rig, ScriptedOwner, answer, never

from rollout_router.claims import Gate, Grant, Owner, write_gate
from rollout_router.errors import Refusal
from rollout_router.routing import Router, SessionSettings, forward
from rollout_router.routing import worker as worker_module
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.forward import HELD_BODY_BYTES_MAX
from rollout_router.routing.placing import Placing
from rollout_router.routing.worker import Worker
from rollout_router.transport.hop import HopClient, HopLost, HopRequest, HopResponse

MOVED = b"HTTP/1.1 421 Misdirected Request\r\nrollout-hop: moved\r\ncontent-length: 0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LONG = b"0123456789abcdef" * (HELD_BODY_BYTES_MAX // 16 + 1)


async def start(rig: Rig, app: Application, **changes: object) -> tuple[Router, Worker]:
    return await rig.start(app, placement="balanced", **changes)


def toward(worker: Worker, target: str) -> None:
    """Let chance be for *target*, where it has no more in hand than others."""
    assert worker.placing is not None
    worker.placing._draw = lambda among: target if target in among else among[0]


def scripted(rig: Rig) -> ScriptedOwner:
    """A living worker that owns nothing, and says that it has nothing in hand."""
    owner = rig.owner(None)
    path = Path(owner.life.identity.socket).with_suffix(".load")
    Placing(path, store_id=rig.store.store_id).publish(calls=0, rollouts=0)
    return owner


async def forwarder(rig: Rig, target: ScriptedOwner) -> tuple[Router, Worker, Application]:
    app = Application()
    router, worker = await start(rig, app)
    toward(worker, target.life.owner.nonce)
    return router, worker, app


async def test_r1_a_new_rollout_is_claimed_and_served_by_the_worker_it_is_placed_at(
    rig: Rig,
) -> None:
    app, idle = Application(answer(headers=[(b"x-a", b"b")])), Application()
    router, worker = await start(rig, idle)
    _, peer = await start(rig, app)
    toward(worker, peer.id)

    keep = [(b"Rollout-History", b"keep"), (b"Content-Length", b"4")]
    client = await Client(b"once", headers=keep).ask(router)
    again = await Client(b"more").ask(router)

    assert (client.status, client.value(b"x-a")) == (200, b"b")
    assert client.value(b"rollout-worker") == peer.id.encode()
    assert client.epoch == again.epoch == rig.claim().claim_epoch
    assert (client.mark or b"").startswith(b"kept=")
    assert rig.claim().owner == peer.life.owner
    assert [call.body for call in app.calls] == [b"once", b"more"]
    assert app.calls[0].headers == [(b"content-length", b"4")]
    assert idle.calls == []
    assert worker.placing is not None
    assert worker.placing._coming.total() == 0


FRAMING = [[], [(b"content-length", b"0")], [(b"transfer-encoding", b"chunked")]]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("framing", FRAMING, ids=["none", "length", "chunks"])
async def test_a_placed_request_without_a_body_looks_like_a_local_one(
    rig: Rig, method: str, framing: list[tuple[bytes, bytes]]
) -> None:
    app = Application()
    router, worker = await start(rig, Application())
    _, peer = await start(rig, app)
    toward(worker, peer.id)

    headers = [(b"x-a", b"b"), *framing]
    assert (await Client(b"", method=method, headers=headers).ask(router)).status == 200
    assert [(call.body, call.headers) for call in app.calls] == [(b"", headers)]


@pytest.mark.parametrize("to_peer", [True, False])
async def test_a_long_body_of_a_new_rollout_arrives_whole(rig: Rig, *, to_peer: bool) -> None:
    apps = [Application(), Application()]
    router, worker = await start(rig, apps[0])
    _, peer = await start(rig, apps[1])
    toward(worker, (peer if to_peer else worker).id)
    client = Client(None)
    client.write(LONG, more=True)
    client.write(LONG)

    await client.ask(router)

    assert client.status == 200
    assert [call.body for call in apps[to_peer].calls] == [LONG + LONG]


async def test_r5_a_placed_request_expects_a_new_claim_and_its_body_waits_for_it(rig: Rig) -> None:
    peer = scripted(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        peer.requests.append(head)
        writer.write(CONTINUE)
        peer.requests.append(await reader.readexactly(4))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine")
        await reader.read()

    await peer.listen(serve)
    router, _, _ = await forwarder(rig, peer)
    forged = [(b"Rollout-Expect-Epoch", b"7"), (b"Rollout-Hop", b"7")]

    client = await Client(b"once", headers=forged).ask(router)

    assert client.content == b"fine"
    lines = peer.requests[0].lower().split(b"\r\n")
    assert [line for line in lines if line.startswith((b"rollout-", b"expect"))] == [
        b"rollout-hop: 1",
        b"rollout-expect-epoch: new",
        b"rollout-scheme: http",
        b"expect: 100-continue",
    ]
    assert peer.requests[1:] == [b"once"]


@pytest.mark.parametrize("targets", [(2, 3), (2, 2), (0, 1), (0, 2)])
async def test_c4_a_new_rollout_that_two_workers_place_at_one_time_gets_one_owner(
    rig: Rig, targets: tuple[int, int]
) -> None:
    apps = [Application() for _ in range(4)]
    started = [await start(rig, app) for app in apps]
    pauses = [rig.pause_claims(started[n][1]).pause("take") for n in set(targets)]
    for (_, worker), place_at in zip(started, targets, strict=False):
        toward(worker, started[place_at][1].id)
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(Client(b"%d" % n).ask(started[n][0])) for n in range(len(targets))
        ]
        for pause in pauses:
            await pause.reached.wait()
        for pause in pauses:
            pause.go()

    clients = [task.result() for task in asking]
    assert [client.status for client in clients] == [200, 200]
    assert {client.epoch for client in clients} == {rig.claim().claim_epoch}
    assert sorted(call.body for app in apps for call in app.calls) == [b"0", b"1"]
    assert sorted(len(app.calls) for app in apps) == [0, 0, 0, 2]


async def read_a_head(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


HINDER: dict[str, Callable[[ScriptedOwner], object]] = {
    "its socket is not there": lambda _: None,
    "it is dead": ScriptedOwner.die,
    "its owner file is gone": lambda peer: peer.life.close(remove=True),
}


@pytest.mark.parametrize("how", [*HINDER, "it is lost before it asks for the body"])
async def test_r2_a_rollout_that_did_not_get_to_its_worker_is_taken_where_it_arrived(
    rig: Rig, how: str
) -> None:
    peer = scripted(rig)
    if how in HINDER:
        HINDER[how](peer)
    else:
        await peer.listen(read_a_head)
    router, worker, app = await forwarder(rig, peer)
    before = counted("rollout_router_placements_total", to="nobody")

    first = await Client(b"once").ask(router)
    second = await Client(b"other", path="/sessions/r2/v1/responses").ask(router)

    assert (first.status, second.status) == (200, 200)
    assert [call.body for call in app.calls] == [b"once", b"other"]
    assert rig.claim().owner.nonce == rig.claim("r2").owner.nonce == worker.id
    assert counted("rollout_router_placements_total", to="nobody") == before + 1  # and passed by


@pytest.mark.parametrize("body", [b"once", b""])
async def test_r2_a_worker_that_does_not_take_the_claim_in_time_has_run_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    peer = scripted(rig)
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        peer.requests.append(await reader.read())  # until the forwarder gives up
        gone.set()

    await peer.listen(serve)
    monkeypatch.setattr(forward, "PLACED_S_MAX", 0.05)
    router, _, app = await forwarder(rig, peer)

    client = await Client(body).ask(router)
    await gone.wait()

    assert client.status == 200
    assert [call.body for call in app.calls] == [body]
    framing = b"content-length: 4" if body else b"transfer-encoding: chunked"
    assert peer.requests[0].endswith(framing + b"\r\nexpect: 100-continue\r\n\r\n")


@pytest.mark.parametrize("body", [b"once", b""])
async def test_r2_a_worker_that_took_the_claim_too_late_runs_what_comes_then_and_that_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(forward, "PLACED_S_MAX", 0.05)
    app, given_up = Application(), asyncio.Event()
    router, worker = await start(rig, Application())
    _, peer = await start(rig, app)
    toward(worker, peer.id)
    assert worker.placing is not None
    monkeypatch.setattr(worker.placing, "pass_by", lambda _: given_up.set())
    pause = rig.pause_claims(peer).pause("take", after=True)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client(body).ask(router))
        await pause.reached.wait()
        await given_up.wait()
        pause.go()

    assert asking.result().status == 200
    assert asking.result().value(b"rollout-worker") == peer.id.encode()
    assert [call.body for call in app.calls] == [body]


async def test_r2_a_worker_that_asked_for_the_body_has_all_the_time_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward, "PLACED_S_MAX", 0)  # over as soon as anybody waits
    counted_at: list[str] = []

    class Hops(HopClient):
        async def send(self, socket: str, request: HopRequest) -> HopResponse:
            assert request.rest is not None
            assert (request.body, request.content_length) == (b"", 4)
            counted_at.extend([chunk.decode() async for chunk in request.rest])
            for _ in range(3):
                await asyncio.sleep(0)
            raise HopLost(socket)

    client = Client(b"once")
    exchange = Exchange.of("r1", client.scope, client.receive, client.send, deltas=False)
    await exchange.client.fill(1)
    hop = forward.Hop(Hops(), exchange, identity=b"x", timeout_s=None)

    with pytest.raises(Refusal) as refused:
        await hop.to(
            forward.Target(
                owner=Owner(nonce="peer", inode=1),
                socket="/nowhere",
                claim_epoch=None,
                on_claimed=lambda: counted_at.append("counted"),
            )
        )

    assert refused.value.code == "owner_lost_in_flight"
    assert counted_at == ["counted", "once"]


async def test_r1_a_worker_that_leaves_sends_a_placed_rollout_away(rig: Rig) -> None:
    apps = [Application(), Application()]
    router, worker = await start(rig, apps[0])
    _, peer = await start(rig, apps[1])
    toward(worker, peer.id)
    peer.ownership.leave()  # its load still stands

    client = await Client(b"once").ask(router)

    assert client.value(b"rollout-worker") == worker.id.encode()
    assert [len(app.calls) for app in apps] == [1, 0]


async def test_a_worker_that_leaves_places_what_arrives_at_others(rig: Rig) -> None:
    apps = [Application(), Application()]
    router, worker = await start(rig, apps[0])
    _, peer = await start(rig, apps[1])
    toward(worker, worker.id)
    worker.leave()

    assert (await Client(b"once").ask(router)).value(b"rollout-worker") == peer.id.encode()
    assert not worker.socket_path.with_suffix(".load").exists()


async def test_r6_a_closed_gate_at_the_worker_it_is_placed_at_refuses_and_claims_nothing(
    rig: Rig,
) -> None:
    router, worker = await start(rig, Application())
    _, peer = await start(rig, Application())
    toward(worker, peer.id)
    peer.admission.close_own(by="ada", why="upkeep")

    client = await Client(b"once").ask(router)

    assert (client.status, client.value(b"retry-after")) == (503, b"1")
    assert b'"admission_closed"' in client.content
    assert client.value(b"rollout-worker") == peer.id.encode()
    assert rig.store.read("r1") is None


async def test_r6_a_gate_that_closes_while_the_body_comes_places_nothing(rig: Rig) -> None:
    router, worker = await start(rig, Application())
    client = Client(None)
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await client.reading.wait()
        write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
        worker.admission.refresh()
        client.write(b"once")

    assert client.status == 503
    assert b'"admission_closed"' in client.content
    assert rig.store.read("r1") is None
    assert worker.ownership.grants == {}


async def test_r2_a_worker_that_dies_with_a_placed_call_in_hand_is_502_and_nothing_is_run_again(
    rig: Rig,
) -> None:
    app, idle = Application(never), Application()
    router, worker = await start(rig, idle)
    _, peer = await start(rig, app)
    toward(worker, peer.id)
    client = Client(b"once", headers=[(b"rollout-history", b"keep")])
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await app.arrived()
        await rig.kill(peer)

    assert (client.status, client.value(b"retry-after"), client.mark) == (502, None, b"none")
    assert b'"owner_lost_in_flight"' in client.content
    assert client.epoch == rig.claim().claim_epoch  # which still names the dead
    assert (len(app.calls), idle.calls) == (1, [])


async def test_r2_a_proof_of_death_ends_the_wait_for_the_answer_to_a_placed_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0)
    peer = scripted(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert isinstance(rig.store.take("r1", peer.life.owner), Grant)
        writer.write(CONTINUE)
        peer.requests.append(await reader.readexactly(4))
        peer.life.close()  # a forked child holds its connection open
        await reader.read()

    await peer.listen(serve)
    router, _, app = await forwarder(rig, peer)

    client = await Client(b"once").ask(router)

    assert client.status == 502
    assert client.epoch == rig.claim().claim_epoch
    assert (peer.requests, app.calls) == ([b"once"], [])


async def test_r2_a_421_to_a_placed_rollout_counts_among_the_two_that_are_followed(
    rig: Rig,
) -> None:
    peer = scripted(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            peer.requests.append(head)
            if len(peer.requests) == 1:
                assert isinstance(rig.store.take("r1", peer.life.owner), Grant)
            else:
                await reader.readexactly(4)
            writer.write(MOVED)

    await peer.listen(serve)
    router, _, app = await forwarder(rig, peer)

    client = await Client(b"once").ask(router)

    assert client.status == 503
    assert b'"claim_moved"' in client.content
    assert len(peer.requests) == 3
    assert app.calls == []


async def test_r3_a_session_is_made_where_it_arrives(rig: Rig) -> None:
    async def script(call: AppCall) -> None:
        await answer(headers=[(b"x-session", b"s1")])(call)

    sessions = SessionSettings(header="x-session")
    router, worker = await start(rig, Application(script), sessions=sessions)
    _, peer = await start(rig, Application(script), sessions=sessions)
    toward(worker, peer.id)

    client = await Client(path="/", headers=[(b"x-session", b"s1")]).ask(router)

    assert client.value(b"rollout-worker") == worker.id.encode()
    assert rig.claim("session.s1").owner.nonce == worker.id


async def test_a_worker_that_knows_of_no_placement_takes_what_is_placed_at_it(rig: Rig) -> None:
    router, worker = await start(rig, Application())
    app = Application()
    _, peer = await rig.start(app)
    assert not peer.socket_path.with_suffix(".load").exists()
    load = Placing(peer.socket_path.with_suffix(".load"), store_id=rig.store.store_id)
    load.publish(calls=0, rollouts=0)
    toward(worker, peer.id)

    assert (await Client().ask(router)).status == 200
    assert len(app.calls) == 1


async def test_calls_in_hand_are_said_as_they_begin_and_end(rig: Rig) -> None:
    apps = [Application(never), Application(never)]
    (router, worker), (_, peer) = [await start(rig, app) for app in apps]
    toward(worker, worker.id)
    clients = [Client(path=f"/sessions/r{n}/v1/responses") for n in range(4)]
    async with asyncio.TaskGroup() as group:
        for n, client in enumerate(clients):
            group.create_task(client.ask(router))
            await apps[n % 2].arrived()  # chance is for the one, and every other goes to the other
        for client in clients:
            client.leave()

    assert [len(rig.files_of(one)) for one in (worker, peer)] == [2, 2]
