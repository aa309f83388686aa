# SPDX-License-Identifier: Apache-2.0
"""The middleware: what it leaves alone, what it refuses, what comes over the private socket."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.routing import AppCall, Application, Client, Rig, answer, never

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.claims import ClaimUnreadable, Gate, Grant, StoreUnavailable, write_gate
from rollout_router.routing import Router, mint_key
from rollout_router.routing.forward import HELD_BODY_BYTES_MAX
from rollout_router.routing.worker import Worker
from rollout_router.transport.hop import HopClient, HopRequest, HopResponse

FRAME = (b"content-type", b"application/vnd.rollout-delta; a=b")
KEEP = (b"rollout-history", b"keep")
OURS = [(b"Rollout-Worker", b"me"), (b"rollout-expect-epoch", b"1"), (b"x-own", b"z")]
UPGRADE = [(b"Connection", b"Upgrade"), (b"Upgrade", b"WebSocket")]


class Recording:
    """An application that keeps the very objects it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Scope, Receive, Send]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append((scope, receive, send))
        await send({"type": "http.response.start", "status": 200, "headers": OURS})
        await send({"type": "http.response.body"})


UNTOUCHED = ["/health", "/v1/responses", "/ng-control/r1/x", "/sessions/%61/x", "/sessions/"]


@pytest.mark.parametrize("path", UNTOUCHED)
@pytest.mark.parametrize("headers", [[], [KEEP, *OURS], UPGRADE])
async def test_r7_a_request_without_an_identity_is_not_touched(
    rig: Rig, path: str, headers: list[tuple[bytes, bytes]]
) -> None:
    app = Recording()
    router = Router(app, rig.settings())
    client = Client(path=path, headers=headers)
    receive, send = client.receive, client.send

    await router(client.scope, receive, send)

    ((got_scope, got_receive, got_send),) = app.calls
    assert got_scope is client.scope
    assert got_receive is receive
    assert got_send is send
    assert client.scope["headers"] == headers
    assert client.sent[0]["headers"] == OURS


@pytest.mark.parametrize(
    ("path", "deltas"),
    [*((path, True) for path in UNTOUCHED), ("/health", False), ("/sessions/r1/x", False)],
)
async def test_r7_a_frame_never_reaches_an_application_that_is_not_routed(
    rig: Rig, path: str, *, deltas: bool
) -> None:
    app = Recording()
    router = Router(app, rig.settings(history_delta=deltas, route_always=True))

    client = await Client(path=path, headers=[FRAME, KEEP]).ask(router)

    assert (client.status, client.mark) == (415, None)
    assert b'"delta_unsupported"' in client.content
    assert client.reads == 0
    assert app.calls == []


async def test_r7_with_deltas_off_nothing_is_claimed_kept_or_forwarded(rig: Rig) -> None:
    elsewhere = rig.owner()  # another worker's rollout: a routed request would be forwarded
    app = Application(answer(headers=OURS))
    router, worker = await rig.start(app, history_delta=False)

    theirs = await Client(headers=[KEEP, *OURS]).ask(router)
    nobodys = await Client(path="/sessions/r2/x", headers=[KEEP]).ask(router)

    for client in (theirs, nobodys):
        assert client.status == 200
        assert client.sent[0]["headers"] == [(b"x-own", b"z")]
    assert app.calls[0].headers == [(b"x-own", b"z")]
    assert rig.files_of(worker) == {}
    assert worker.history.statistics().rollouts == 0
    assert rig.claim().owner == elsewhere.life.owner
    call = app.calls[0].routed
    assert call is not None
    assert (call.rollout_id, call.claim_epoch, call.steps) == ("r1", None, None)
    assert (call.worker_id, call.store_id) == (worker.id, worker.store.store_id)


async def test_r7_with_deltas_off_an_upgrade_is_the_applications_to_answer(rig: Rig) -> None:
    app = Application(answer(status=404))
    router = Router(app, rig.settings(history_delta=False))

    assert (await Client(headers=UPGRADE).ask(router)).status == 404


async def test_r7_route_always_routes_without_marks_and_without_keeping(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app, history_delta=False, route_always=True)

    client = await Client(headers=[KEEP]).ask(router)

    assert (client.status, client.mark) == (200, None)
    assert client.epoch == rig.claim().claim_epoch
    assert worker.history.statistics().bases == 0


async def test_r7_an_invalid_id_is_400_where_the_setting_says_so(rig: Rig) -> None:
    app = Recording()
    router = Router(app, rig.settings(refuse_invalid_ids=True))

    for path in ("/sessions/%61/x", "/sessions//x"):
        client = await Client(path=path, headers=[KEEP]).ask(router)
        assert (client.status, client.mark) == (400, None)
        assert b'"rollout_id_invalid"' in client.content
    assert app.calls == []


async def test_a_rollout_of_the_header_is_routed(rig: Rig) -> None:
    router, worker = await rig.start(Application(), rollout_header="X-Attempt")

    await Client(path="/v1/responses", headers=[(b"x-attempt", b"r9")]).ask(router)

    assert set(rig.files_of(worker)) == {"r9"}


async def test_a_rollout_opens_for_its_key_alone(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app, rollout_keys=b"secret")
    keys = {
        name: (b"authorization", b"Bearer " + mint_key(b"secret", name).encode())
        for name in ("r1", "r2")
    }

    none = await Client().ask(router)
    other = await Client(headers=[keys["r2"], KEEP]).ask(router)
    own = await Client(headers=[keys["r1"]]).ask(router)
    unnamed = await Client(path="/health").ask(router)

    assert [none.status, other.status, own.status, unnamed.status] == [401, 401, 200, 200]
    assert b'"rollout_token_invalid"' in other.content
    assert (none.mark, other.mark) == (None, b"none")
    assert mint_key(b"secret", "r1").encode() not in other.content
    assert len(app.calls) == 2
    assert set(rig.files_of(worker)) == {"r1"}


async def test_a_frame_with_the_wrong_key_is_401_and_marked(rig: Rig) -> None:
    router, _ = await rig.start(Application(), rollout_keys=b"secret")

    client = await Client(headers=[FRAME]).ask(router)

    assert (client.status, client.mark) == (401, b"none")


async def test_an_upgrade_of_a_routed_rollout_is_426(rig: Rig) -> None:
    app = Recording()
    router = Router(app, rig.settings())

    assert (await Client(None, headers=UPGRADE).ask(router)).status == 426
    assert app.calls == []


@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}])
async def test_a_websocket_of_a_routed_rollout_is_refused(
    rig: Rig, extensions: dict[str, Any]
) -> None:
    app = Recording()
    router = Router(app, rig.settings())
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "websocket", "raw_path": b"/sessions/r1/x", "headers": []}
    await router({**scope, "extensions": extensions}, receive, send)

    assert app.calls == []
    if extensions:
        assert sent[0]["status"] == 426
    else:
        assert sent == [{"type": "websocket.close"}]


@pytest.mark.parametrize(
    ("path", "deltas"), [(b"/sessions/r1/x", False), (b"/chat", True), (b"/chat", False)]
)
async def test_r7_any_other_websocket_is_not_touched(
    rig: Rig, path: bytes, *, deltas: bool
) -> None:
    got: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        _ = receive, send
        got.append(scope)

    client = Client()
    scope = {"type": "websocket", "raw_path": path, "headers": []}
    await Router(app, rig.settings(history_delta=deltas))(scope, client.receive, client.send)

    assert got[0] is scope


async def test_a_forked_child_of_a_worker_answers_503(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application()
    router, worker = await rig.start(app)
    monkeypatch.setattr(worker, "pid", os.getppid())

    client = await Client(headers=[KEEP]).ask(router)

    assert (client.status, client.mark) == (503, b"none")
    assert b'"draining"' in client.content
    assert app.calls == []
    assert rig.files_of(worker) == {}


async def test_a_worker_past_its_deadline_answers_503(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    worker.closed = True

    assert (await Client().ask(router)).status == 503


async def test_a_worker_that_closes_while_a_request_waits_answers_503(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    pause = rig.pause_claims(worker).pause("release")
    await Client().ask(router)
    worker.ownership.leave()
    await pause.reached.wait()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))
        await asyncio.sleep(0)
        worker.closed = True
        pause.go()

    assert asking.result().status == 503
    assert len(app.calls) == 1


@pytest.mark.parametrize(
    "error", [StoreUnavailable("reading", 5), ClaimUnreadable("/claims/r1", "checksum")]
)
async def test_c5_what_the_store_cannot_say_is_503_and_happens_to_that_rollout_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    app = Application()
    router, worker = await rig.start(app)
    read = worker.store.read

    def fail(rollout_id: str) -> Any:
        if rollout_id == "r1":
            raise error
        return read(rollout_id)

    monkeypatch.setattr(worker.store, "read", fail)

    client = await Client(headers=[KEEP]).ask(router)
    other = await Client(path="/sessions/r2/x").ask(router)

    assert (client.status, client.mark, client.value(b"retry-after")) == (503, b"none", b"1")
    assert b'"claim_store_unavailable"' in client.content
    assert client.value(b"rollout-worker") == worker.id.encode()
    assert other.status == 200
    assert len(app.calls) == 1


async def test_c7_a_store_that_is_full_refuses_and_works_again(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    store = rig.pause_claims(worker)
    store.fail("take", StoreUnavailable("writing", 28))

    refused = await Client().ask(router)
    served = await Client().ask(router)

    assert (refused.status, served.status) == (503, 200)
    assert b"ENOSPC" in refused.content
    assert len(app.calls) == 1


# What comes over the private socket.


@asynccontextmanager
async def hop(
    worker: Worker, *, epoch: object, path: bytes = b"/sessions/r1/x", body: bytes = b"{}"
) -> AsyncIterator[HopResponse]:
    """One hop, as a forwarder sends it, over the worker's real socket."""
    hops = HopClient()
    headers = [(b"rollout-hop", b"1")]
    if epoch is not None:
        headers.append((b"rollout-expect-epoch", str(epoch).encode()))
    request = HopRequest(method="POST", target=path, headers=headers, body=body)
    try:
        yield await hops.send(str(worker.socket_path), request)
    finally:
        await hops.close()


@pytest.mark.parametrize(
    "request_",
    [
        {"epoch": None},
        {"epoch": "x"},
        {"epoch": "-1"},
        {"epoch": "9" * 5000},
        {"epoch": 1, "path": b"/health"},
        {"epoch": 1, "path": b"/sessions/%61/x"},
        {"epoch": 1, "path": b"/ng-control/r1/x"},
    ],
)
async def test_r1_what_is_no_hop_is_refused_with_421(rig: Rig, request_: dict[str, Any]) -> None:
    app = Application()
    _, worker = await rig.start(app)

    async with hop(worker, **request_) as response:
        assert response.status == 421
        assert (b"rollout-hop", b"moved") in response.headers
    assert app.calls == []


@pytest.mark.parametrize("elsewhere", [True, False])
async def test_r1_a_hop_for_a_rollout_that_is_not_held_is_never_forwarded_and_claims_nothing(
    rig: Rig, *, elsewhere: bool
) -> None:
    app, other = Application(), Application()
    _, worker = await rig.start(app)
    epoch = 1
    if elsewhere:
        other_router, _ = await rig.start(other)
        await Client().ask(other_router)
        epoch = rig.claim().claim_epoch

    async with hop(worker, epoch=epoch) as response:
        assert response.status == 421
        assert (b"rollout-hop", b"moved") in response.headers
        assert (b"rollout-worker", worker.id.encode()) in response.headers
    assert app.calls == []
    assert len(other.calls) == elsewhere
    assert rig.files_of(worker) == {}


async def test_c2_a_claim_that_memory_lost_is_taken_again_higher_for_a_hop(rig: Rig) -> None:
    app = Application()
    _, worker = await rig.start(app)
    lost = rig.store.take("r1", worker.life.owner)
    assert isinstance(lost, Grant)

    async with hop(worker, epoch=lost.claim.claim_epoch) as response:
        assert response.status == 421
    async with hop(worker, epoch=rig.claim().claim_epoch) as response:
        assert response.status == 200
    assert rig.claim().claim_epoch > lost.claim.claim_epoch
    assert len(app.calls) == 1


async def test_r6_a_claim_that_memory_lost_is_not_taken_again_behind_a_closed_gate(
    rig: Rig,
) -> None:
    app = Application()
    _, worker = await rig.start(app)
    router, _ = await rig.start(Application())
    lost = rig.store.take("r1", worker.life.owner)
    assert isinstance(lost, Grant)
    worker.admission.close_own(by="ada", why="upkeep")

    client = await Client().ask(router)

    assert (client.status, client.epoch) == (503, lost.claim.claim_epoch)
    assert b'"admission_closed"' in client.content
    assert rig.claim() == lost.claim
    assert app.calls == []


@pytest.mark.parametrize("shift", [-1, 1])
async def test_r5_a_hop_under_another_epoch_is_refused_before_its_body_is_read(
    rig: Rig, shift: int
) -> None:
    app = Application()
    router, worker = await rig.start(app)
    epoch = (await Client().ask(router)).epoch
    assert epoch is not None

    async with hop(worker, epoch=epoch + shift) as response:
        assert response.status == 421
        assert (b"rollout-hop", b"moved") in response.headers
    assert len(app.calls) == 1
    assert worker.history.statistics().in_flight == 0


async def test_r5_a_hop_to_a_claim_that_was_forced_away_is_refused(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    epoch = (await Client().ask(router)).epoch
    rig.force()

    async with hop(worker, epoch=epoch) as response:
        assert response.status == 421
    assert len(app.calls) == 1
    assert worker.history.statistics().rollouts == 0


async def test_r6_a_hop_at_a_closed_gate_is_503_and_no_421(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    epoch = (await Client().ask(router)).epoch
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    worker.admission.refresh()

    async with hop(worker, epoch=epoch) as response:
        assert response.status == 503
        assert b"rollout-hop" not in dict(response.headers)
        assert dict(response.headers)[b"rollout-claim-epoch"] == str(epoch).encode()
    assert len(app.calls) == 1


async def test_r1_a_hop_under_the_held_epoch_is_served(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    epoch = (await Client().ask(router)).epoch

    async with hop(worker, epoch=epoch, body=b"over the hop") as response:
        assert response.status == 200
    assert app.calls[1].body == b"over the hop"
    assert app.calls[1].headers[0] == (b"content-length", b"12")
    assert not [name for name, _ in app.calls[1].headers if name.startswith(b"rollout-")]


async def test_c6_an_idle_leaver_answers_hops_with_421(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    epoch = (await Client().ask(router)).epoch
    worker.ownership.leave()

    async with hop(worker, epoch=epoch) as response:
        assert response.status == 421
    assert len(app.calls) == 1


async def test_a_leaver_serves_hops_while_a_call_of_their_rollout_runs(rig: Rig) -> None:
    app, go = Application(), asyncio.Event()

    async def held(call: AppCall) -> None:
        await go.wait()
        await answer()(call)

    app.script = held
    router, worker = await rig.start(app)
    async with asyncio.TaskGroup() as group:
        group.create_task(Client().ask(router))
        await app.arrived()
        worker.ownership.leave()
        app.script = answer()
        async with hop(worker, epoch=rig.claim().claim_epoch) as response:
            assert response.status == 200
        assert set(rig.files_of(worker)) == {"r1"}
        go.set()
    await worker.ownership.wait_released()
    assert rig.files_of(worker) == {}


async def test_r6_a_worker_takes_no_more_calls_than_it_may(rig: Rig) -> None:
    app = Application(never)
    router, worker = await rig.start(app, calls_max=2)
    clients = [Client(path=f"/sessions/r{number}/x") for number in range(2)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.ask(router))
            await app.arrived()

        refused = await Client(path="/sessions/r9/x").ask(router)

        for client in clients:
            client.leave()
    assert (refused.status, refused.value(b"retry-after")) == (503, b"1")
    assert b'"overloaded"' in refused.content
    assert rig.store.read("r9") is None
    assert +worker.in_hand == {}
    app.script = answer()
    assert (await Client(path="/sessions/r9/x").ask(router)).status == 200


async def test_r6_calls_from_clients_leave_room_for_hops(rig: Rig) -> None:
    """Else two workers that are full of forwards would refuse each other for good."""
    app = Application(never)
    owner, _ = await rig.start(app, calls_max=1)
    other, _ = await rig.start(Application(), calls_max=1)
    held = Client(path="/sessions/r1/x")
    async with asyncio.TaskGroup() as group:
        group.create_task(held.ask(owner))
        await app.arrived()
        app.script = answer()

        forwarded = await Client(path="/sessions/r1/x").ask(other)

        held.leave()
    assert forwarded.status == 200


@pytest.mark.parametrize("whole", [True, False])
async def test_r2_a_call_that_is_given_up_may_have_run_only_if_it_was_dispatched(
    rig: Rig, *, whole: bool
) -> None:
    app = Application()
    router, worker = await rig.start(app)
    await Client().ask(router)  # it holds the claim
    await app.arrived()
    app.script = never
    client = Client(None)
    client.write(b"{", more=not whole)
    asking = worker.tasks.spawn(client.ask(router), name="a call", heard=True)
    await (app.arrived() if whole else worker_waits(client))

    asking.cancel()  # as a server does at the deadline of the drain
    await asyncio.wait([asking])

    expected = (502, b'"owner_lost_in_flight"') if whole else (503, b'"draining"')
    assert (client.status, expected[1] in client.content) == (expected[0], True)
    assert client.epoch == rig.claim().claim_epoch
    assert len(app.calls) == (2 if whole else 1)


async def worker_waits(client: Client) -> None:
    """Until more of the body is waited for than was sent."""
    while client.reads < 2:
        client.reading.clear()
        await client.reading.wait()


async def test_r2_a_forwarded_call_that_is_given_up_before_its_body_was_asked_for_ran_nowhere(
    rig: Rig,
) -> None:
    owner, asked = rig.owner(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()

    await owner.listen(serve)
    router, worker = await rig.start(Application())
    client = Client(None)
    client.write(bytes(HELD_BODY_BYTES_MAX + 1), more=True)
    asking = worker.tasks.spawn(client.ask(router), name="a call", heard=True)
    await asked.wait()

    asking.cancel()
    await asyncio.wait([asking])

    assert (client.status, client.epoch) == (503, rig.claim().claim_epoch)
    assert b'"draining"' in client.content
