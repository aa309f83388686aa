# SPDX-License-Identifier: Apache-2.0
"""A worker's life, from its lock to its leaving (C3, C6)."""

import asyncio
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.metrics import counted
from support.routing import PATIENCE_S, AppCall, Application, Client, Rig, answer, never

from rollout_router.claims import (
    Gate,
    Owner,
    ProofOfDeath,
    StoreRefused,
    StoreUnavailable,
    Verdict,
    write_gate,
)
from rollout_router.history import Bounds
from rollout_router.routing import Router
from rollout_router.routing import worker as module
from rollout_router.routing.private import PrivateServer
from rollout_router.routing.sweeping import Sweeping
from rollout_router.transport.hop import HopClient


def owner_files(rig: Rig) -> set[str]:
    return {path.name for path in (rig.state_dir / "owners").iterdir()}


def sockets(rig: Rig) -> set[str]:
    return {path.name for path in rig.run_dir.iterdir()}


async def test_a_started_worker_lives_listens_and_can_be_found(rig: Rig) -> None:
    _, worker = await rig.start(Application())

    assert owner_files(rig) == {worker.id}
    assert sockets(rig) == {f"{worker.id}.sock"}
    assert stat.S_IMODE(rig.run_dir.stat().st_mode) == 0o700
    identity = rig.store.owner(worker.id)
    assert identity is not None
    assert Path(identity.socket) == worker.socket_path
    assert worker.socket_path.is_absolute()
    assert rig.store.judge(identity.owner).verdict is Verdict.ALIVE


async def test_c3_a_load_file_comes_and_goes_with_a_worker_that_balances(rig: Rig) -> None:
    router, worker = await rig.start(Application(), placement="balanced")

    assert sockets(rig) == {f"{worker.id}.sock", f"{worker.id}.load"}
    await router.stop_worker()
    assert sockets(rig) == set()


async def test_a_run_directory_is_made_absolute_for_the_other_workers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rig.state_dir.parent)

    _, worker = await rig.start(Application(), run_dir=Path("run"))

    assert worker.socket_path == rig.run_dir / f"{worker.id}.sock"


async def test_c3_a_worker_that_leaves_takes_all_its_traces_along(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    await Client().ask(router)

    await router.stop_worker()

    assert rig.store.read("r1") is None
    assert owner_files(rig) == set()
    assert sockets(rig) == set()
    assert not worker.life.intact()
    assert (await Client().ask(router)).status == 503


async def test_c3_past_the_deadline_claims_and_owner_file_stay_as_evidence(rig: Rig) -> None:
    app, next_app = Application(never), Application()
    router, worker = await rig.start(app, drain_s_max=0)
    other, _ = await rig.start(next_app)
    client = Client()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(client.ask(router))
        await app.arrived()
        await router.stop_worker()
        before = rig.claim()
        assert before.owner.nonce == worker.id
        assert worker.id in owner_files(rig)
        assert f"{worker.id}.sock" not in sockets(rig)

        taken = await Client().ask(other)
        asking.cancel()

    assert taken.status == 200
    assert rig.claim().claim_epoch > before.claim_epoch


@pytest.mark.parametrize("method", ["take", "release"])
async def test_c3_a_change_that_runs_at_the_deadline_leaves_the_owner_file(
    rig: Rig, method: str
) -> None:
    router, worker = await rig.start(Application(), drain_s_max=0)
    other, _ = await rig.start(Application())
    store = rig.pause_claims(worker)
    pause = store.pause(method, after=method == "take")
    client = Client()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(client.ask(router))
        if method == "release":
            await asking
            worker.ownership.leave()
        await pause.reached.wait()
        await router.stop_worker()
        asking.cancel()
    assert set(rig.files_of(worker)) == {"r1"}
    assert worker.id in owner_files(rig)

    taken = await Client().ask(other)  # its death can be proven: nobody has to force anything
    pause.go()

    assert taken.status == 200


async def test_a_leaver_finishes_what_is_in_flight(rig: Rig) -> None:
    app = Application()
    router, worker = await rig.start(app)
    go = asyncio.Event()

    async def script(call: object) -> None:
        await go.wait()
        await answer(b"finished")(call)  # type: ignore[arg-type] # an AppCall

    app.script = script
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))
        await app.arrived()
        stopping = group.create_task(router.stop_worker())
        await asyncio.sleep(0)
        assert not stopping.done()
        assert set(rig.files_of(worker)) == {"r1"}
        go.set()

    assert asking.result().content == b"finished"
    assert owner_files(rig) == set()


async def test_a_leaver_forwards_what_still_arrives_and_keeps_no_connection(rig: Rig) -> None:
    app, own_app = Application(), Application(never)
    owner_router, _ = await rig.start(app)
    leaver_router, _ = await rig.start(own_app)
    await Client().ask(owner_router)
    held = Client(path="/sessions/r2/x")
    async with asyncio.TaskGroup() as group:
        group.create_task(held.ask(leaver_router))
        await own_app.arrived()
        stopping = group.create_task(leaver_router.stop_worker())
        await asyncio.sleep(0)

        forwarded = await Client().ask(leaver_router)
        await owner_router.stop_worker()  # no connection of the leaver keeps it
        assert not stopping.done()
        held.leave()

    assert forwarded.status == 200
    assert len(app.calls) == 2


@pytest.mark.parametrize("when", ["before it leaves", "while it leaves"])
async def test_no_connection_that_a_leaver_used_keeps_its_peer_from_leaving(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    class Keeping(HopClient):
        def __init__(self, *, idle_s: float = 2 * PATIENCE_S) -> None:
            super().__init__(idle_s=idle_s)

    monkeypatch.setattr(module, "HopClient", Keeping)
    own_app = Application(never)
    peer_router, _ = await rig.start(Application())
    leaver_router, _ = await rig.start(own_app)
    await Client().ask(peer_router)
    held = Client(path="/sessions/r2/x")
    async with asyncio.TaskGroup() as group:
        group.create_task(held.ask(leaver_router))
        await own_app.arrived()
        if when == "before it leaves":
            await Client().ask(leaver_router)
        stopping = group.create_task(leaver_router.stop_worker())
        await asyncio.sleep(0)
        if when == "while it leaves":
            await Client().ask(leaver_router)

        await peer_router.stop_worker()
        assert not stopping.done()
        held.leave()


async def test_two_workers_that_know_each_other_leave_at_the_same_time(rig: Rig) -> None:
    routers = [(await rig.start(Application()))[0] for _ in range(2)]
    for number, router in enumerate(routers):
        await Client(path=f"/sessions/r{number}/x").ask(router)
        await Client(path=f"/sessions/r{number}/x").ask(routers[1 - number])

    async with asyncio.TaskGroup() as group:
        for router in routers:
            group.create_task(router.stop_worker())

    assert owner_files(rig) == set()


async def test_a_store_of_another_service_refuses_and_leaves_nothing_behind(rig: Rig) -> None:
    assert rig.store.service == "model"
    router = Router(Application(), rig.settings(service="agent"))

    with pytest.raises(StoreRefused):
        await router.start_worker()

    assert owner_files(rig) == set()
    assert sockets(rig) == set()
    await router.stop_worker()  # never started: nothing to stop


async def test_a_socket_path_that_does_not_fit_is_refused_as_the_store_would_be(rig: Rig) -> None:
    router = Router(Application(), rig.settings(run_dir=rig.run_dir / ("d" * 100)))

    with pytest.raises(StoreRefused, match="shorter run directory"):
        await router.start_worker()

    assert not (rig.state_dir / "owners").exists() or owner_files(rig) == set()


async def test_a_listener_that_cannot_start_leaves_nothing_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise LookupError("no loop")

    monkeypatch.setattr(PrivateServer, "start", fail)
    router = Router(Application(), rig.settings())

    with pytest.raises(LookupError):
        await router.start_worker()

    assert owner_files(rig) == set()
    assert sockets(rig) == set()
    assert router.worker is None


async def test_c6_housekeeping_gives_idle_rollouts_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0)
    router, worker = await rig.start(Application(), history=Bounds(idle_s_max=0.001))

    await Client().ask(router)
    await worker.ownership.wait_released()

    assert rig.store.read("r1") is None


async def test_c6_housekeeping_of_a_leaver_tries_failed_releases_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0)
    router, worker = await rig.start(Application())
    await Client().ask(router)
    store = rig.pause_claims(worker)
    for _ in range(3):
        store.fail("release", StoreUnavailable("releasing", 5))

    await router.stop_worker()

    assert rig.store.read("r1") is None
    assert owner_files(rig) == set()


async def test_r6_housekeeping_reads_the_gate(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOUSEKEEPING_S", 0)
    router, worker = await rig.start(Application())
    seen, refresh = asyncio.Event(), worker.admission.refresh
    loop = asyncio.get_running_loop()

    def refreshed() -> None:
        refresh()
        if not worker.admission.gate.open:
            loop.call_soon_threadsafe(seen.set)

    monkeypatch.setattr(worker.admission, "refresh", refreshed)
    write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
    await seen.wait()

    assert (await Client().ask(router)).status == 503


async def test_an_owners_identity_is_read_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.owner()
    _, worker = await rig.start(Application())
    first = await worker.identity_of(rig.claim().owner.nonce)
    monkeypatch.setattr(worker.store, "owner", None)

    assert first is not None
    assert await worker.identity_of(rig.claim().owner.nonce) is first


async def test_c3_a_worker_clears_what_a_dead_one_left(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleared = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Heard(Sweeping):
        def look_and_log(self) -> None:
            super().look_and_log()
            if owner_files(rig) == {worker.id}:
                loop.call_soon_threadsafe(cleared.set)

    monkeypatch.setattr(module, "Sweeping", Heard)
    dead, victim = await rig.start(Application())
    await Client().ask(dead)
    await rig.kill(victim)
    _, worker = await rig.start(Application(), sweep_s=0.01)

    await cleared.wait()

    assert rig.store.read("r1") is None
    assert sockets(rig) == {f"{worker.id}.sock"}


def said_when_bound(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once a worker has bound its socket anew."""
    bound, rebind = asyncio.Event(), PrivateServer.rebind

    async def rebind_and_say(server: PrivateServer, in_thread: Any) -> bool:
        done = await rebind(server, in_thread)
        bound.set()
        return done

    monkeypatch.setattr(PrivateServer, "rebind", rebind_and_say)
    return bound


async def test_c3_a_worker_whose_socket_file_was_removed_listens_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Application()
    router, worker = await rig.start(app)
    other, _ = await rig.start(Application())
    await Client().ask(router)
    bound = said_when_bound(monkeypatch)
    before = counted("rollout_router_socket_rebinds_total")
    worker.socket_path.unlink()
    await bound.wait()
    taken = await Client().ask(other)

    assert counted("rollout_router_socket_rebinds_total") == before + 1
    assert taken.status == 200
    assert taken.value(b"rollout-worker") == worker.id.encode()


async def test_c3_a_worker_whose_owner_file_was_removed_lets_nothing_in_and_leaves(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    app, go, lost = Application(), asyncio.Event(), asyncio.Event()
    router, worker = await rig.start(app, on_lost=lost.set)
    other, _ = await rig.start(Application())

    async def script(call: AppCall) -> None:
        await go.wait()
        await answer()(call)

    app.script = script
    async with asyncio.TaskGroup() as group:
        in_flight = group.create_task(Client().ask(router))
        await app.arrived()
        (rig.state_dir / "owners" / worker.id).unlink()
        await lost.wait()
        refused = await Client(path="/sessions/r2/v1/responses").ask(router)
        go.set()

    assert in_flight.result().status == 200
    assert refused.status == 503
    assert b"admission_closed" in refused.content
    await worker.ownership.wait_released()
    assert rig.store.read("r1") is None
    assert (await Client().ask(other)).status == 200
    assert any("owner file of worker" in message for message in caplog.messages)


async def test_c7_a_store_that_is_away_for_a_moment_sends_no_worker_away(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    away = rig.state_dir.with_name("away")
    rig.state_dir.rename(away)

    assert worker.life.intact()

    away.rename(rig.state_dir)
    (rig.state_dir / "owners").rename(rig.state_dir / "aside")
    assert not worker.life.intact()  # the store is here, its owner files are not
    (rig.state_dir / "aside").rename(rig.state_dir / "owners")
    (rig.state_dir / "owners" / worker.id).rename(rig.state_dir / "x")
    assert not worker.life.intact()
    (rig.state_dir / "x").rename(rig.state_dir / "owners" / worker.id)
    assert (await Client().ask(router)).status == 200


async def test_c3_a_worker_whose_owner_file_was_removed_has_its_server_shut_down(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = asyncio.Queue[int]()
    monkeypatch.setattr(signal, "raise_signal", raised.put_nowait)
    _, worker = await rig.start(Application())

    (rig.state_dir / "owners" / worker.id).unlink()

    assert await raised.get() == signal.SIGTERM


async def test_c3_while_an_application_keeps_all_its_threads_a_socket_is_bound_anew(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And housekeeping goes on: the gate is read."""
    _, worker = await rig.start(Application())
    bound, closed, done = said_when_bound(monkeypatch), asyncio.Event(), threading.Event()
    loop, refresh = asyncio.get_running_loop(), worker.admission.refresh

    def refresh_and_say() -> None:
        refresh()
        if not worker.admission.gate.open:
            loop.call_soon_threadsafe(closed.set)

    monkeypatch.setattr(worker.admission, "refresh", refresh_and_say)
    busy = [loop.run_in_executor(None, done.wait) for _ in range(64)]
    try:
        worker.socket_path.unlink()
        write_gate(rig.state_dir, Gate(open=False, by="ada", why="upkeep"))
        await bound.wait()
        await closed.wait()
    finally:
        done.set()
        await asyncio.gather(*busy)

    assert worker.socket_path.is_socket()


async def test_c3_one_look_at_a_life_lock_serves_all_that_wait_for_its_owner(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LIFE_WATCH_S", 0)
    _, worker = await rig.start(Application())
    owner, asked = rig.owner("r1"), []
    prove, dead = worker.store.proof_of_death, asyncio.Event()
    told: list[int] = []

    def counting(of: Owner) -> ProofOfDeath | None:
        asked.append(of)
        return prove(of)

    def tell(number: int) -> Callable[[], None]:
        def on_death() -> None:
            told.append(number)
            stops[number]()  # as a call does that ends
            if len(told) == 2:
                dead.set()

        return on_death

    monkeypatch.setattr(worker.store, "proof_of_death", counting)
    stops = [worker.watch_life(owner.life.owner, "r1", tell(number)) for number in range(3)]
    stops[2]()  # that call has its answer
    owner.die()
    await dead.wait()
    assert sorted(told) == [0, 1]
    looks = len(asked)
    assert worker._watching is not None
    await worker._watching  # nobody waits: it ends by itself
    assert len(asked) == looks
    stop = worker.watch_life(owner.life.owner, "r1", dead.clear)  # and begins anew
    assert not worker._watching.done()
    stop()


async def test_c3_a_look_that_cannot_be_done_is_done_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LIFE_WATCH_S", 0)
    _, worker = await rig.start(Application())
    owner, dead = rig.owner("r1"), asyncio.Event()
    look = worker.ownership.in_thread
    failures = [RuntimeError("can't start new thread")]

    async def failing(work: Callable[[], Any]) -> Any:
        if failures:
            raise failures.pop()
        return await look(work)

    monkeypatch.setattr(worker.ownership, "in_thread", failing)
    stop = worker.watch_life(owner.life.owner, "r1", dead.set)
    owner.die()
    await dead.wait()
    stop()
    assert "can't start new thread" in caplog.text
