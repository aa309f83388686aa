# SPDX-License-Identifier: Apache-2.0
"""What becomes of a session where a rollout would be taken over or taken anew (R3, C3, R2, R6).

The twin of ``test_route``, for the cases in which the outcome is another one: 410 with its reason
where the owner is dead or has left, 503 where nobody can know, and never another worker's hands.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.metrics import counted
from support.routing import Application, Client, Rig, ScriptedOwner

from rollout_router.claims import Gate, Grant, OwnerIdentity, write_gate
from rollout_router.routing import Router, SessionSettings
from rollout_router.routing import worker as worker_module
from rollout_router.routing.forward import HELD_BODY_BYTES_MAX
from rollout_router.routing.sweeping import Sweeping
from rollout_router.routing.worker import Worker

NAME = "session.abc"
MOVED = b"HTTP/1.1 421 Misdirected Request\r\nrollout-hop: moved\r\ncontent-length: 0\r\n\r\n"
LONG = b"0123456789abcdef" * (HELD_BODY_BYTES_MAX // 16 + 1)
DIED = b"the worker that owned it died"
LEFT = b"the worker that owned it left"
SPOIL: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "unreadable": lambda file: file.write_bytes(b"?"),
}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def call(body: bytes | None = b"{}") -> Client:
    return Client(body, path="/x", headers=[(b"cookie", b"sid=abc")])


def assert_lost(client: Client, why: bytes) -> None:
    assert client.status == 410
    assert b'"session_owner_lost"' in client.content
    assert why in client.content
    assert b"begin a new session" in client.content
    assert client.value(b"retry-after") is None


def owner_of_a_session(rig: Rig) -> tuple[ScriptedOwner, Grant]:
    owner = rig.owner(None)
    grant = rig.store.take(NAME, owner.life.owner, kind="session")
    assert isinstance(grant, Grant)
    return owner, grant


async def entrance(rig: Rig, app: Application | None = None) -> tuple[Router, Worker]:
    return await rig.start(app or Application(), sessions=SessionSettings(cookie="sid"))


async def test_c3_a_session_whose_owner_lives_but_cannot_be_reached_is_503(rig: Rig) -> None:
    _, grant = owner_of_a_session(rig)  # its life lock is held, its socket is not there
    router, _ = await entrance(rig)
    before = counted("rollout_router_owner_unreachable_total")

    client = await call().ask(router)

    assert counted("rollout_router_owner_unreachable_total") == before + 1
    assert (client.status, client.value(b"retry-after")) == (503, b"1")
    assert b'"owner_unreachable"' in client.content
    assert rig.claim(NAME) == grant.claim


@pytest.mark.parametrize("how", SPOIL)
async def test_c3_a_session_whose_owner_file_cannot_be_read_is_503_until_an_operator_forces_it(
    rig: Rig, how: str
) -> None:
    owner, grant = owner_of_a_session(rig)
    owner.die()
    SPOIL[how](Path(owner.life._path))
    router, _ = await entrance(rig)

    client = await call().ask(router)

    assert client.status == 503
    assert b'"owner_unreachable"' in client.content
    assert rig.claim(NAME) == grant.claim
    rig.force(NAME)
    assert_lost(await call().ask(router), b"the test said so")


async def test_r3_behind_a_closed_gate_a_session_of_a_dead_owner_is_410_all_the_same(
    rig: Rig,
) -> None:
    owner, _ = owner_of_a_session(rig)
    owner.die()
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    router, _ = await entrance(rig)

    assert_lost(await call().ask(router), DIED)


async def test_r3_a_session_that_was_lost_while_its_owner_was_looked_up_is_410(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, grant = owner_of_a_session(rig)
    router, worker = await entrance(rig)
    identity_of = worker.identity_of

    async def late(nonce: str) -> OwnerIdentity | None:
        assert rig.store.lose(grant, reason=LEFT.decode())
        owner.life.close(remove=True)
        return await identity_of(nonce)

    monkeypatch.setattr(worker, "identity_of", late)

    assert_lost(await call().ask(router), LEFT)


@pytest.mark.parametrize("file_goes", [True, False])
async def test_r3_a_session_that_was_lost_before_its_owner_could_be_reached_is_410(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, file_goes: bool
) -> None:
    """A tombstone bears epoch and owner of its claim, and so cannot be told from it by these."""
    owner, grant = owner_of_a_session(rig)
    router, worker = await entrance(rig)
    judge = worker.store.judge

    def late(of: Any) -> Any:
        assert rig.store.lose(grant, reason=LEFT.decode())
        if file_goes:  # unknown from here on; before, it lives
            owner.life.close(remove=True)
        return judge(of)

    monkeypatch.setattr(worker.store, "judge", late)

    assert_lost(await call().ask(router), LEFT)


async def test_c4_of_two_that_find_a_dead_owner_one_writes_the_tombstone_and_both_say_410(
    rig: Rig,
) -> None:
    owner, grant = owner_of_a_session(rig)
    owner.die()
    routers = [(await entrance(rig))[0] for _ in range(2)]

    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(call().ask(router)) for router in routers]

    for task in asking:
        assert_lost(task.result(), DIED)
        assert task.result().epoch == grant.claim.claim_epoch
    assert rig.claim(NAME).state == "lost"


async def test_r2_an_owner_lost_with_a_call_in_hand_is_502_and_from_then_on_410(rig: Rig) -> None:
    owner, _ = owner_of_a_session(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await owner.request(reader)
        owner.die()

    await owner.listen(serve)
    app = Application()
    router, _ = await entrance(rig, app)

    during, after = await call(b"once").ask(router), await call(b"again").ask(router)

    assert (during.status, during.value(b"retry-after")) == (502, None)
    assert b'"owner_lost_in_flight"' in during.content
    assert_lost(after, DIED)
    assert len(owner.requests) == 1
    assert app.calls == []


async def test_r3_an_owner_lost_before_it_asked_for_the_body_is_410_and_nobody_runs_it(
    rig: Rig,
) -> None:
    owner, _ = owner_of_a_session(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await reader.readuntil(b"\r\n\r\n")
        owner.die()

    await owner.listen(serve)
    app = Application()
    router, _ = await entrance(rig, app)
    client = call(None)
    client.write(LONG, more=True)
    client.write(b"the end")

    assert_lost(await client.ask(router), DIED)
    assert app.calls == []


async def test_c3_an_owner_whose_death_is_proven_ends_the_wait_of_a_session_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LIFE_WATCH_S", 0)
    owner, _ = owner_of_a_session(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _ = writer
        await owner.request(reader)
        owner.life.close()  # a forked child holds its connection open
        await reader.read()

    await owner.listen(serve)
    router, _ = await entrance(rig)

    client = await call().ask(router)

    assert client.status == 502
    assert b'"owner_lost_in_flight"' in client.content


async def test_r2_a_421_for_a_session_is_followed_at_most_twice_and_is_no_410(rig: Rig) -> None:
    owner, grant = owner_of_a_session(rig)
    came = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        while True:
            await owner.request(reader)
            came += 1
            writer.write(MOVED)
            await writer.drain()

    await owner.listen(serve)
    router, _ = await entrance(rig)

    client = await call().ask(router)

    assert (client.status, came) == (503, 3)
    assert b'"claim_moved"' in client.content
    assert rig.claim(NAME) == grant.claim


async def test_r3_after_a_421_a_session_that_is_lost_by_now_is_410(rig: Rig) -> None:
    owner, grant = owner_of_a_session(rig)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await owner.request(reader)
        assert rig.store.lose(grant, reason=LEFT.decode())
        writer.write(MOVED)
        await writer.drain()

    await owner.listen(serve)
    app = Application()
    router, _ = await entrance(rig, app)

    assert_lost(await call().ask(router), LEFT)
    assert app.calls == []


async def test_r3_a_header_that_names_a_session_reaches_its_owner_whatever_connection_says(
    rig: Rig,
) -> None:
    app = Application()
    sessions = SessionSettings(header="Session-Token")
    _, owner = await rig.start(app, sessions=sessions)
    await owner.ownership.acquire(NAME, kind="session")
    other, _ = await rig.start(Application(), sessions=sessions)
    headers = [(b"session-token", b"abc"), (b"connection", b"session-token, x-session-id")]

    client = await Client(path="/x", headers=headers).ask(other)

    assert client.status == 200
    assert len(app.calls) == 1


async def test_r3_what_another_workers_sweeper_reaped_is_410_though_its_owner_file_is_gone(
    rig: Rig,
) -> None:
    owner, _ = owner_of_a_session(rig)
    owner.die()
    router, worker = await entrance(rig)
    sweeping = Sweeping(worker.store, tombstone_age_max=timedelta(days=1))
    sweeper = asyncio.get_running_loop().run_in_executor(sweeping.thread, sweeping.look)
    swept = await sweeper
    sweeping.stop()

    assert swept is not None
    assert [claim.rollout_id for claim in swept.lost] == [NAME]
    assert swept.owners == (owner.life.owner.nonce,)
    for _ in range(2):
        assert_lost(await call().ask(router), DIED)


@pytest.mark.parametrize("gate_is_open", [True, False])
async def test_r6_the_gate_of_the_owner_decides_about_a_session_and_never_the_forwarders(
    rig: Rig, *, gate_is_open: bool
) -> None:
    app = Application()
    owner_router, owner = await entrance(rig, app)
    await owner.ownership.acquire(NAME, kind="session")
    other, forwarder = await entrance(rig)
    closed = forwarder if gate_is_open else owner
    closed.admission.close_own(by="ada", why="a checkpoint")

    client = await call().ask(other)

    assert client.status == (200 if gate_is_open else 503)
    assert (b'"admission_closed"' in client.content) is not gate_is_open
    assert client.epoch == rig.claim(NAME).claim_epoch
    assert len(app.calls) == gate_is_open
    assert owner_router.worker is owner
