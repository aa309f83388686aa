# SPDX-License-Identifier: Apache-2.0
"""Serving at the owner: gate, body, base, re-check, application (H1 to H5, C1, R5, R6)."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from support.metrics import counted
from support.routing import AppCall, Application, Client, Rig, Script, answer, never

from rollout_router.asgi import Message, Receive
from rollout_router.claims import Gate, StoreUnavailable, write_gate
from rollout_router.errors import ResponseCut
from rollout_router.history import Bounds
from rollout_router.routing import owner as module
from rollout_router.transport.sandbox.frame import encode_frame

KEEP = (b"Rollout-History", b"keep")
JSON = (b"Content-Type", b"application/json; charset=utf-8")
FRAME = (b"Content-Type", b"application/vnd.rollout-delta")
EMPTY = hashlib.sha256(b"").hexdigest()
FIRST = b'{"input": [' + b'"a turn of the conversation", ' * 40 + b'"one"]}'
SECOND = FIRST[:-2] + b', "two", "and more of it"]}\xff\x00'


def sha(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def full(body: bytes, *headers: tuple[bytes, bytes], path: str = "/sessions/r1/x") -> Client:
    return Client(body, path=path, headers=[KEEP, JSON, *headers])


def delta(base: bytes, target: bytes, *, path: str = "/sessions/r1/x", **changes: Any) -> Client:
    options: dict[str, Any] = {"content_type": "application/json", "deflate": True, **changes}
    frame = encode_frame(sha(base), target, base, **options)
    assert frame is not None
    length = (b"content-length", str(len(frame)).encode())
    return Client(frame, path=path, headers=[FRAME, length, (b"x-kept", b"as it came")])


async def test_h1_the_application_sees_the_body_that_the_harness_wrote(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)

    first = await full(FIRST).ask(router)
    second = await delta(FIRST, SECOND).ask(router)

    assert [call.body for call in app.calls] == [FIRST, SECOND]
    assert first.mark == b"kept=" + sha(FIRST).encode()
    assert second.mark == b"kept=" + sha(SECOND).encode()
    assert app.calls[1].headers == [
        (b"x-kept", b"as it came"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(SECOND)).encode()),
    ]


async def test_h1_a_request_without_content_type_gets_none_back(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)

    await delta(b"", FIRST * 2, content_type=None).ask(router)

    assert app.calls[0].body == FIRST * 2
    assert b"content-type" not in dict(app.calls[0].headers)


async def test_h1_a_body_whose_digest_differs_never_reaches_the_application(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)
    await full(FIRST).ask(router)

    client = await delta(FIRST, SECOND, target_sha=sha(b"another")).ask(router)

    assert client.status == 400
    assert b'"delta_malformed"' in client.content
    assert client.mark == b"none"
    assert len(app.calls) == 1


async def test_h1_large_bodies_are_hashed_and_rebuilt_in_threads_alike(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HASH_IN_THREAD_BYTES", 10)
    app = Application()
    router, _ = await rig.start(app)

    first = await full(FIRST).ask(router)
    second = await delta(FIRST, SECOND).ask(router)

    assert [call.body for call in app.calls] == [FIRST, SECOND]
    assert first.mark == b"kept=" + sha(FIRST).encode()
    assert second.mark == b"kept=" + sha(SECOND).encode()


async def test_h2_the_same_delta_twice_is_the_same_body_twice(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)
    await full(FIRST).ask(router)

    answers = [await delta(FIRST, SECOND).ask(router) for _ in range(2)]

    assert [call.body for call in app.calls[1:]] == [SECOND, SECOND]
    assert {client.mark for client in answers} == {b"kept=" + sha(SECOND).encode()}


async def test_h2_the_empty_base_is_always_held(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)

    client = await delta(b"", FIRST).ask(router)

    assert app.calls[0].body == FIRST
    assert client.mark == b"kept=" + sha(FIRST).encode()


async def failing(_: AppCall) -> None:
    raise LookupError("the model is gone")


async def cutting(_: AppCall) -> None:
    raise ResponseCut("the model server went away")


async def silent(_: AppCall) -> None:
    """Returns without an answer."""


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        (silent, 500, "application_failed"),
        (failing, 500, "application_failed"),
        (cutting, 502, "answer_cut"),
    ],
)
async def test_r5_an_application_that_ends_without_an_answer_is_answered_for(
    rig: Rig, script: Callable[[AppCall], Any], status: int, code: str
) -> None:
    router, worker = await rig.start(Application(script))
    client = await full(FIRST).ask(router)

    assert client.status == status
    assert json.loads(client.content)["error"]["code"] == code
    assert client.value(b"rollout-worker") == worker.id.encode()
    assert client.epoch == rig.claim().claim_epoch


@pytest.mark.parametrize("script", [answer(status=500), answer(status=429), failing])
async def test_h4_a_failed_call_costs_neither_its_base_nor_its_own_body(
    rig: Rig, script: Callable[[AppCall], Any]
) -> None:
    app = Application()
    router, _ = await rig.start(app)
    await full(FIRST).ask(router)

    app.script = script
    failed = delta(FIRST, SECOND)
    assert (await failed.ask(router)).mark == b"kept=" + sha(SECOND).encode()
    assert failed.status >= 429
    assert failed.epoch == rig.claim().claim_epoch

    app.script = answer()
    for base in (FIRST, SECOND):
        assert (await delta(base, SECOND + b"!" * 99).ask(router)).status == 200


async def test_r4_an_application_that_fails_within_its_answer_is_not_ended_cleanly(
    rig: Rig,
) -> None:
    async def script(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError("the model is gone")

    router, _ = await rig.start(Application(script))
    client = Client()

    with pytest.raises(LookupError):
        await client.ask(router)
    assert not client.complete


async def test_h4_a_dropped_call_does_not_cost_its_base(rig: Rig) -> None:
    app = Application(never)
    router, worker = await rig.start(app)
    client = full(FIRST)
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        call = await app.arrived()
        client.leave()
        await call.cancelled.wait()
    assert client.sent == []
    assert worker.history.statistics().in_flight == 0

    app.script = answer()
    assert (await delta(FIRST, SECOND).ask(router)).status == 200


async def test_h5_no_rollout_reads_anothers_base(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)
    await full(FIRST).ask(router)

    client = await delta(FIRST, SECOND, path="/sessions/r2/x").ask(router)

    assert (client.status, client.mark) == (409, b"resync")


async def test_h5_a_new_grant_starts_empty_at_the_same_worker(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)
    first = await full(FIRST).ask(router)
    rig.force()

    client = await delta(FIRST, SECOND).ask(router)

    assert (client.status, client.mark) == (409, b"resync")
    assert first.epoch is not None
    assert client.epoch is not None
    assert client.epoch > first.epoch


async def test_r6_a_missing_base_is_409_before_the_application_runs(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)

    client = await delta(FIRST, SECOND).ask(router)

    assert (client.status, client.mark) == (409, b"resync")
    assert b'"gym_history_resync"' in client.content
    assert client.epoch == rig.claim().claim_epoch
    assert app.calls == []


async def test_a_409_of_the_application_is_no_resync(rig: Rig) -> None:
    router, _ = await rig.start(
        Application(answer(status=409, headers=[(b"Rollout-History", b"resync")]))
    )

    client = await full(FIRST).ask(router)

    assert (client.status, client.mark) == (409, b"kept=" + sha(FIRST).encode())


async def test_r6_a_closed_gate_claims_nothing_keeps_nothing_and_reads_no_body(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    worker.admission.refresh()

    client = await full(FIRST).ask(router)

    assert (client.status, client.mark) == (503, b"none")
    assert client.value(b"retry-after") == b"1"
    assert b"ada" in client.content
    assert client.reads == 0
    assert rig.files_of(worker) == {}
    assert worker.history.statistics().rollouts == 0


async def test_r6_a_gate_that_closes_later_keeps_the_claim_but_nothing_new(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    first = await full(FIRST).ask(router)
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    worker.admission.refresh()

    client = await full(SECOND).ask(router)

    assert (client.status, client.epoch, client.reads) == (503, first.epoch, 0)
    assert worker.history.statistics().bases == 1
    assert len(app.calls) == 1


async def test_r6_the_gate_stands_before_the_base(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    await full(FIRST).ask(router)
    worker.admission.close_own(by="ada", why="upkeep")

    held, missing = await delta(FIRST, SECOND).ask(router), await delta(SECOND, FIRST).ask(router)

    assert [(one.status, one.mark, one.reads) for one in (held, missing)] == [(503, b"none", 0)] * 2
    assert worker.history.statistics().bases == 1
    assert len(app.calls) == 1


async def test_r6_a_gate_that_closes_while_the_body_comes_keeps_and_runs_nothing(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    client = Client(None, headers=[KEEP])

    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        client.write(FIRST, more=True)
        await client.reading.wait()
        write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
        worker.admission.refresh()
        client.write(b"")

    assert (client.status, client.mark) == (503, b"none")
    assert worker.history.statistics().bases == 0
    assert app.calls == []


async def test_r6_a_length_over_the_limit_is_refused_before_any_of_the_body_is_read(
    rig: Rig,
) -> None:
    router, _ = await rig.start(Application(), body_bytes_max=100)
    client = await Client(None, headers=[(b"content-length", b"101")]).ask(router)

    assert (client.status, client.reads) == (413, 0)


async def test_r6_a_body_over_the_limit_is_413_with_the_limit(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app, body_bytes_max=len(FIRST))

    fits = await full(FIRST).ask(router)
    too_long = await full(FIRST + b"x").ask(router)
    rebuilt_too_long = await delta(FIRST, SECOND).ask(router)

    assert fits.status == 200
    for client in (too_long, rebuilt_too_long):
        assert (client.status, client.mark) == (413, b"none")
        assert str(len(FIRST)).encode() in client.content
        assert client.epoch == fits.epoch
    assert len(app.calls) == 1


async def test_c1_a_claim_forced_away_between_body_and_application_runs_nothing(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    clients = [Client(None, path="/sessions/r1/x", headers=[KEEP]) for _ in range(2)]
    before = counted("rollout_router_fenced_total", where="dispatch")
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.ask(router))
            await client.reading.wait()
        rig.force()
        for client in clients:
            client.write(FIRST)

    assert counted("rollout_router_fenced_total", where="dispatch") == before + 2
    assert {(client.status, client.mark) for client in clients} == {(503, b"none")}
    assert b'"claim_moved"' in client.content
    assert app.calls == []
    assert worker.history.statistics().rollouts == 0
    assert (await full(FIRST).ask(router)).status == 200


async def test_c1_a_claim_forced_away_before_is_served_anew_under_a_higher_epoch(rig: Rig) -> None:
    app = Application()
    router, _ = await rig.start(app)
    first = await full(FIRST).ask(router)
    fence = rig.force()
    before = counted("rollout_router_fenced_total", where="dispatch")

    again = await full(SECOND).ask(router)
    assert counted("rollout_router_fenced_total", where="dispatch") == before  # none was refused

    assert again.status == 200
    assert first.epoch is not None
    assert again.epoch is not None
    assert first.epoch < fence < again.epoch
    assert [call.routed.claim_epoch for call in app.calls if call.routed] == [
        first.epoch,
        again.epoch,
    ]


async def test_c7_a_store_that_cannot_confirm_the_claim_runs_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application()
    router, worker = await rig.start(app)
    await full(FIRST).ask(router)

    def fail(_: object) -> bool:
        raise StoreUnavailable("looking", 5)

    with monkeypatch.context() as patch:
        patch.setattr(worker.store, "stands", fail)
        client = await full(SECOND).ask(router)
    assert (client.status, client.mark) == (503, b"none")
    assert b'"claim_store_unavailable"' in client.content
    assert client.value(b"retry-after") == b"1"
    assert len(app.calls) == 1

    assert (await delta(FIRST, SECOND).ask(router)).status == 200  # nothing was lost


async def test_r5_answers_name_worker_and_epoch_and_no_name_is_anybody_elses(rig: Rig) -> None:
    ours = [(b"Rollout-Worker", b"me"), (b"ROLLOUT-CLAIM-EPOCH", b"9"), (b"rollout-x", b"y")]
    app = Application(answer(headers=[*ours, (b"x-own", b"z")]))
    router, worker = await rig.start(app)

    client = await Client(headers=[*ours, (b"x-own", b"z")]).ask(router)

    assert client.value(b"rollout-worker") == worker.id.encode()
    assert client.epoch == rig.claim().claim_epoch
    assert client.value(b"rollout-x") is None
    assert client.value(b"x-own") == b"z"
    assert client.mark is None
    assert app.calls[0].headers == [(b"x-own", b"z")]
    call = app.calls[0].routed
    assert call is not None
    assert (call.rollout_id, call.claim_epoch) == ("r1", client.epoch)
    assert (call.worker_id, call.store_id) == (worker.id, rig.store.store_id)


async def test_r5_an_answer_without_headers_gets_them_too(rig: Rig) -> None:
    async def bare(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 204})
        await call.send({"type": "http.response.body"})

    router, worker = await rig.start(Application(bare))

    client = await Client().ask(router)

    assert client.value(b"rollout-worker") == worker.id.encode()


async def test_h3_a_body_that_the_bounds_leave_no_room_for_runs_and_is_marked_none(
    rig: Rig,
) -> None:
    app = Application()
    router, _ = await rig.start(app, history=Bounds(bytes_max=10))

    client = await full(FIRST).ask(router)

    assert (client.status, client.mark) == (200, b"none")
    assert app.calls[0].body == FIRST


async def test_c6_a_rollout_whose_bytes_made_room_for_anothers_is_served_anew_meanwhile(
    rig: Rig,
) -> None:
    app = Application()
    router, _ = await rig.start(app, history=Bounds(bytes_max=len(FIRST) + 10))
    first = await full(FIRST, path="/sessions/a/x").ask(router)
    app.script = never
    hungry = full(FIRST, path="/sessions/b/x")
    async with asyncio.TaskGroup() as group:
        group.create_task(hungry.ask(router))
        await app.arrived()
        await app.arrived()

        app.script = answer()
        again = await full(b"{}", path="/sessions/a/x").ask(router)
        hungry.leave()

    assert first.epoch is not None
    assert again.epoch is not None
    assert again.status == 200
    assert again.epoch > first.epoch


async def test_a_leaving_worker_serves_without_keeping(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    worker.ownership.leave()

    client = await full(FIRST).ask(router)
    await worker.ownership.wait_released()

    assert (client.status, client.mark) == (200, b"none")
    assert app.calls[0].body == FIRST
    assert rig.files_of(worker) == {}


async def test_a_client_that_leaves_cancels_the_application(rig: Rig) -> None:
    app = Application()

    async def streaming(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    app.script = streaming
    router, worker = await rig.start(app)
    client = Client()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        call = await app.arrived()
        await client.answered.wait()
        client.leave()
        await call.cancelled.wait()

    assert not client.complete
    assert worker.history.statistics().in_flight == 0


async def test_a_background_task_after_the_whole_answer_is_not_cancelled(rig: Rig) -> None:
    went_on, disconnected = asyncio.Event(), asyncio.Event()
    router, worker = await rig.start(Application())

    async def background(call: AppCall) -> None:
        await answer()(call)
        assert (await call.receive())["type"] == "http.disconnect"
        disconnected.set()
        await went_on.wait()

    router.app = app = Application(background)
    client = Client()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(client.ask(router))
        call = await app.arrived()
        await disconnected.wait()
        assert client.complete
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asking.done()
        assert worker.history.statistics().in_flight == 1
        went_on.set()

    assert not call.cancelled.is_set()


async def test_a_cancellation_from_outside_goes_through_and_ends_the_call(rig: Rig) -> None:
    app = Application(never)
    router, worker = await rig.start(app)

    async with asyncio.TaskGroup() as group:
        asking = group.create_task(full(FIRST).ask(router))
        call = await app.arrived()
        asking.cancel()

    assert asking.cancelled()
    assert call.cancelled.is_set()
    assert worker.history.statistics().in_flight == 0


async def test_the_application_gets_its_body_once_and_then_waits_for_the_end(rig: Rig) -> None:
    seen: list[Message] = []

    async def app(_: object, receive: Receive, send: Any) -> None:
        seen.append(await receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        seen.append(await receive())

    router, _ = await rig.start(app)
    client = Client(None)
    client.write(b"ab", more=True)
    client.write(b"cd")

    await client.ask(router)

    assert seen == [
        {"type": "http.request", "body": b"abcd", "more_body": False},
        {"type": "http.disconnect"},
    ]


async def test_f2_a_client_has_the_whole_answer_when_the_application_is_done(rig: Rig) -> None:
    recording, recorded = asyncio.Event(), asyncio.Event()

    async def script(call: AppCall) -> None:
        headers = [(b"content-length", b"4")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await call.send({"type": "http.response.body", "body": b"fine", "more_body": True})
        recording.set()
        await recorded.wait()
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})

    router, _ = await rig.start(Application(script))
    client = full(FIRST)
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await recording.wait()
        early = client.content
        recorded.set()
    assert (early, client.content) == (b"", b"fine")


def all_at_once(then: Script) -> Script:
    """Sends the whole answer, says that more follows, and does as it is told."""

    async def script(call: AppCall) -> None:
        headers = [(b"content-length", b"4")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        await call.send({"type": "http.response.body", "body": b"fine", "more_body": True})
        await then(call)

    return script


async def test_f2_an_application_that_returned_is_done_with_its_answer(rig: Rig) -> None:
    router, _ = await rig.start(Application(all_at_once(silent)))

    client = await full(FIRST).ask(router)

    assert client.content == b"fine"
    assert not client.complete, "its server says that no end came"


async def test_f2_an_application_that_waits_for_its_client_to_leave_is_waited_for_a_while(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait(call: AppCall) -> None:
        while (await call.receive())["type"] != "http.disconnect":
            pass

    monkeypatch.setattr(module, "HELD_S_MAX", 0)
    router, _ = await rig.start(Application(all_at_once(wait)))
    client = full(FIRST)
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        while not client.content:
            client.written.clear()
            await client.written.wait()
        client.leave()
    assert client.content == b"fine"


async def test_r4_what_is_held_back_of_an_answer_that_failed_never_leaves(rig: Rig) -> None:
    router, _ = await rig.start(Application(all_at_once(failing)))
    client = full(FIRST)

    with pytest.raises(LookupError):
        await client.ask(router)

    assert client.content == b""


@pytest.mark.parametrize("in_thread_bytes", [0, 1 << 20])
@pytest.mark.parametrize("in_full", [True, False])
async def test_h3_bases_of_one_conversation_share_their_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, in_full: bool, in_thread_bytes: int
) -> None:
    monkeypatch.setattr(module, "HASH_IN_THREAD_BYTES", in_thread_bytes)
    app = Application()
    router, worker = await rig.start(app)
    bodies = [FIRST[:-2] + b', "a turn"' * turn + b"]}" for turn in range(5)]
    await full(bodies[0]).ask(router)

    for old, new in pairwise(bodies):
        await (full(new) if in_full else delta(old, new)).ask(router)
    again = [await delta(old, SECOND).ask(router) for old in bodies]  # all can be built on

    held = worker.history.statistics()
    assert held.bases == 6
    assert held.bytes < 1.3 * len(SECOND)
    assert [client.status for client in again] == [200] * 5
    assert [call.body for call in app.calls] == [*bodies, *[SECOND] * 5]
