# SPDX-License-Identifier: Apache-2.0
"""What is asked of a worker over its private socket (R6)."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.routing import AppCall, Application, Client, Rig, answer, never

from rollout_router import operate
from rollout_router.call import Steps
from rollout_router.claims import Gate, Moment, hold_gate, read_gate, write_gate
from rollout_router.operate import AdmissionHeld, Blocker, WorkerSilent

close = partial(operate.close_admission, by="ada", why="a checkpoint")
hold = partial(operate.hold_admission, by="ada", why="a checkpoint", budget_s=60.0)


async def test_r6_close_returns_when_every_worker_has_read_the_gate(rig: Rig) -> None:
    workers = [(await rig.start(Application()))[1] for _ in range(3)]

    blockers = await asyncio.to_thread(close, rig.state_dir)

    assert blockers == ()
    assert not any(worker.admission.gate.open for worker in workers)


async def test_r6_close_names_what_is_still_in_hand_and_stays_closed(rig: Rig) -> None:
    app = Application(never)
    router, worker = await rig.start(app)
    client = Client()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await app.arrived()

        blockers = await asyncio.to_thread(close, rig.state_dir)

        client.leave()
    (blocker,) = blockers
    assert (blocker.worker_id, blocker.rollout_id) == (worker.id, "r1")
    assert blocker.claim_epoch == rig.claim().claim_epoch
    assert "in flight" in blocker.why
    refused = await Client().ask(router)
    assert refused.status == 503
    assert b"a checkpoint" in refused.content


async def test_r6_who_only_asks_hears_the_same_and_changes_nothing(rig: Rig) -> None:
    app = Application(never)
    router, worker = await rig.start(app)
    client = Client()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await app.arrived()
        found: list[Blocker] = []
        for is_open in (True, False):
            write_gate(rig.state_dir, gate := Gate(open=is_open, by="ada", why="a checkpoint"))
            found += await asyncio.to_thread(operate.ask_admission, rig.state_dir)
            assert read_gate(rig.state_dir) == gate
        client.leave()
    assert [(one.worker_id, one.rollout_id) for one in found] == [
        (worker.id, None),  # it lets requests in
        (worker.id, "r1"),
    ]


async def test_r6_while_a_claim_is_being_taken_a_closed_gate_is_not_quiet(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    taking = rig.pause_claims(worker).pause("take")
    client = Client()
    async with asyncio.TaskGroup() as group:
        group.create_task(client.ask(router))
        await taking.reached.wait()

        (blocker,) = await asyncio.to_thread(close, rig.state_dir)

        taking.go()
    assert (blocker.worker_id, blocker.rollout_id) == (worker.id, "r1")
    assert "claim" in blocker.why
    assert client.status == 503
    assert await asyncio.to_thread(close, rig.state_dir, wait_s=20) == ()


async def test_r6_close_waits_for_calls_in_flight_as_long_as_it_may(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, go, closed = Application(), asyncio.Event(), asyncio.Event()
    router, worker = await rig.start(app)
    loop, refresh = asyncio.get_running_loop(), worker.admission.refresh

    def refresh_and_say() -> None:
        refresh()
        if not worker.admission.gate.open:
            loop.call_soon_threadsafe(closed.set)

    monkeypatch.setattr(worker.admission, "refresh", refresh_and_say)

    async def script(call: AppCall) -> None:
        await go.wait()
        await answer(b"done")(call)

    app.script = script
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))
        await app.arrived()
        closing = group.create_task(asyncio.to_thread(close, rig.state_dir, wait_s=60.0))
        await closed.wait()
        late = await Client(path="/sessions/r2/x").ask(router)
        assert not closing.done()
        go.set()

    assert closing.result() == ()
    assert asking.result().content == b"done"
    assert late.status == 503


class Stepping(Application):
    """Each call works in steps, which end when the test says so, until it is told to answer."""

    def __init__(self) -> None:
        super().__init__(self._work)
        self.steps: asyncio.Queue[asyncio.Event] = asyncio.Queue()  # those that have begun
        self.last = False

    async def _work(self, call: AppCall) -> None:
        while not self.last:
            while not _steps(call).begin():
                await _steps(call).wait_open()
            ending = asyncio.Event()
            self.steps.put_nowait(ending)
            await ending.wait()
            _steps(call).end()
        await answer(b"done")(call)


def _steps(call: AppCall) -> Steps:
    assert call.routed is not None
    assert call.routed.steps is not None
    return call.routed.steps


async def park(rig: Rig, app: Stepping) -> Blocker:
    """Hold the gate, then let the step end that is in hand; it was in the way."""
    step = await app.steps.get()
    (blocker,) = await asyncio.to_thread(hold, rig.state_dir)
    step.set()
    assert await asyncio.to_thread(hold, rig.state_dir, wait_s=60.0) == ()
    return blocker


async def test_r6_a_closed_gate_waits_for_the_step_and_not_for_the_call(rig: Rig) -> None:
    app = Stepping()
    router, worker = await rig.start(app)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))

        blocker = await park(rig, app)

        refused = await Client(path="/sessions/r2/x").ask(router)
        parked = await asyncio.to_thread(operate.status_of, worker.life.identity)
        assert app.steps.empty()
        app.last = await asyncio.to_thread(operate.release_admission, rig.state_dir, by="ada")
        (await app.steps.get()).set()

    assert (blocker.rollout_id, blocker.claim_epoch) == ("r1", rig.claim().claim_epoch)
    assert "in flight" in blocker.why
    assert (refused.status, asking.result().content) == (503, b"done")
    with pytest.raises(RuntimeError, match="this call is over"):
        _steps(app.calls[0]).begin()
    (call,) = parked["parked"]
    assert (call.pop("seconds") >= 0, parked["in_flight"]) == (True, [])
    assert call == {"rollout_id": "r1", "claim_epoch": rig.claim().claim_epoch}


async def test_r6_a_call_goes_on_once_the_budget_is_over(rig: Rig) -> None:
    app = Stepping()
    router, _ = await rig.start(app)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))
        await park(rig, app)
        app.last = True

        await asyncio.to_thread(hold, rig.state_dir, budget_s=0.01)

        (await app.steps.get()).set()
    assert asking.result().content == b"done"


async def test_r6_a_parked_call_is_cancelled_at_the_deadline_of_a_drain(rig: Rig) -> None:
    app = Stepping()
    router, worker = await rig.start(app, drain_s_max=0)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))
        call = await app.arrived()
        await park(rig, app)

        await router.stop_worker()

        asking.cancel()
    assert call.cancelled.is_set()
    assert worker.stepping.parked() == []


async def test_r6_a_leaver_waits_for_a_parked_call(rig: Rig) -> None:
    app = Stepping()
    router, worker = await rig.start(app)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(Client().ask(router))
        await park(rig, app)
        app.last = True

        stopping = group.create_task(router.stop_worker())
        status = await asyncio.to_thread(operate.status_of, worker.life.identity)
        await asyncio.to_thread(operate.release_admission, rig.state_dir, by="ada")
        (await app.steps.get()).set()
        await stopping

    assert (status["leaving"], len(status["parked"])) == (True, 1)
    assert asking.result().content == b"done"


async def test_r6_who_holds_the_gate_is_in_nobodys_way_but_an_operators(rig: Rig) -> None:
    await rig.start(Application())
    release = partial(operate.release_admission, rig.state_dir)

    def held_by(by: str) -> None:
        hold(rig.state_dir, by=by)

    await asyncio.to_thread(held_by, "ada")
    with pytest.raises(AdmissionHeld, match="closed by ada"):
        await asyncio.to_thread(held_by, "bob")
    assert not await asyncio.to_thread(release, by="bob")
    await asyncio.to_thread(close, rig.state_dir, by="ada")
    with pytest.raises(AdmissionHeld, match="closed by ada"):
        await asyncio.to_thread(held_by, "ada")
    assert not await asyncio.to_thread(release, by="ada")
    assert not read_gate(rig.state_dir).open
    await asyncio.to_thread(operate.open_admission, rig.state_dir, by="operator")
    await asyncio.to_thread(held_by, "bob")
    assert [await asyncio.to_thread(release, by="bob") for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("budget_s", "wait_s"),
    [(0.0, 0.0), (-1.0, 0.0), (1.0, 2.0), (3601.0, 0.0), (float("nan"), 0.0), (1.0, -1.0)],
)
def test_r6_a_budget_that_is_none_changes_nothing(rig: Rig, budget_s: float, wait_s: float) -> None:
    state_dir = rig.store.state_dir

    with pytest.raises(ValueError, match="seconds, not"):
        hold(state_dir, budget_s=budget_s, wait_s=wait_s)

    assert not (state_dir / "gate").exists()


async def test_r6_a_silent_worker_is_a_blocker_and_a_dead_one_is_not(rig: Rig) -> None:
    silent, dead = rig.owner(None), rig.owner(None)
    dead.die()

    (blocker,) = await asyncio.to_thread(close, rig.state_dir)

    assert (blocker.worker_id, blocker.rollout_id) == (silent.life.owner.nonce, None)
    assert "no answer" in blocker.why


def said(body: bytes, *, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        (b"", "gave no answer"),
        (b"rubbish\r\n\r\n", "gave no answer"),
        (said(b"{}", status=b"503 Service Unavailable"), "answered 503"),
        (said(b"[]"), "answered 200"),
        (said(b"rubbish"), "gave no answer"),
        (said(b"{}"), "cannot be understood"),
        (said(b'{"gate": {"open": false}, "in_flight": [1]}'), "cannot be understood"),
        (None, "timed out"),
    ],
)
async def test_r6_a_worker_that_does_not_say_that_it_read_the_gate_is_a_blocker(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, answered: bytes | None, why: str
) -> None:
    if answered is None:
        monkeypatch.setattr(operate, "ACKNOWLEDGE_S", 0.1)
    owner = rig.owner(None)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await owner.request(reader)
        if answered is None:
            await reader.read()  # until whoever asked has had enough
        else:
            writer.write(answered)
            await writer.drain()

    await owner.listen(serve)

    (blocker,) = await asyncio.to_thread(close, rig.state_dir)

    assert (blocker.worker_id, blocker.rollout_id) == (owner.life.owner.nonce, None)
    assert why in blocker.why
    assert not read_gate(rig.state_dir).open


async def test_r6_a_worker_whose_owner_file_is_unreadable_is_a_blocker(rig: Rig) -> None:
    _, worker = await rig.start(Application())
    (rig.state_dir / "owners" / worker.id).write_bytes(b"x")

    (blocker,) = await asyncio.to_thread(close, rig.state_dir)

    assert blocker == Blocker(
        worker_id=worker.id,
        rollout_id=None,
        claim_epoch=None,
        why="its owner file is unreadable (checksum)",
    )


async def test_r6_a_gate_that_is_opened_meanwhile_is_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.start(Application())

    def write_and_open(state_dir: Path, gate: Gate) -> None:
        write_gate(state_dir, gate)
        write_gate(state_dir, Gate(open=True))

    def hold_too_short(
        state_dir: Path, *, by: str, why: str, budget_s: float, now: Callable[[], Moment]
    ) -> None:
        assert budget_s == 60.0
        hold_gate(state_dir, by=by, why=why, budget_s=1e-9, now=now)

    monkeypatch.setattr(operate, "write_gate", write_and_open)
    monkeypatch.setattr(operate, "hold_gate", hold_too_short)
    found = [await asyncio.to_thread(closing, rig.state_dir) for closing in (close, hold)]

    assert [["opened it, or its budget is over" in each.why for each in one] for one in found] == [
        [True],
        [True],
    ]


async def test_r6_an_opened_gate_lets_requests_in(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    await asyncio.to_thread(close, rig.state_dir)

    await asyncio.to_thread(operate.open_admission, rig.state_dir, by="ada")
    await worker.ownership.in_thread(worker.admission.refresh)

    assert (await Client().ask(router)).status == 200


async def test_a_worker_that_is_asked_to_drain_ends_as_by_sigterm(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    _, worker = await rig.start(Application())

    gone = await asyncio.to_thread(operate.drain, rig.state_dir, worker.id)

    assert (raised, gone) == ([signal.SIGTERM], False)


async def test_a_drain_can_be_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()
    monkeypatch.setattr(signal, "raise_signal", lambda _: asked.set())
    router, worker = await rig.start(Application())
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(
            asyncio.to_thread(operate.drain, rig.state_dir, worker.id, wait_s=60.0)
        )
        await asked.wait()
        await router.stop_worker()

    assert draining.result()


@pytest.mark.parametrize("name", ["nobody", "../x", ""])
async def test_a_worker_that_is_not_there_cannot_be_drained(rig: Rig, name: str) -> None:
    await rig.start(Application())

    with pytest.raises(WorkerSilent, match="worker"):
        await asyncio.to_thread(operate.drain, rig.state_dir, name)


async def test_a_worker_says_what_it_has_in_hand(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    await Client().ask(router)

    status = await asyncio.to_thread(operate.status_of, worker.life.identity)

    assert status == {
        "schema": 1,
        "id": worker.id,
        "pid": worker.pid,
        "leaving": False,
        "claims": 1,
        "gate": {"open": True, "by": "", "why": ""},
        "in_flight": [],
        "parked": [],
        "claims_changing": [],
    }


async def test_r1_control_means_nothing_on_the_public_port(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "raise_signal", never)
    app = Application()
    router, _ = await rig.start(app)
    headers = [(b"rollout-control", b"1")]

    unrouted = await Client(path="/drain", headers=headers).ask(router)
    routed = await Client(headers=headers).ask(router)

    assert (unrouted.status, routed.status) == (200, 200)
    assert len(app.calls) == 2
