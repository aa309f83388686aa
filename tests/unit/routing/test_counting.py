# SPDX-License-Identifier: Apache-2.0
"""Every count moves by what causes it, once; and what is counted is also told to who watches."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import REGISTRY
from support.conversations import frame
from support.routing import PATIENCE_S, AppCall, Application, Client, Rig, answer

from rollout_router.claims import Gate, write_gate
from rollout_router.errors import ResponseCut
from rollout_router.history import Bounds
from rollout_router.routing.observed import REFUSALS_SAID_PER_S_MAX
from rollout_router.routing.worker import Worker

KEEP = (b"rollout-history", b"keep")
FRAME = (b"content-type", b"application/vnd.rollout-delta")
BASE = b"a turn of the conversation " * 20
LONGER = BASE + b"and another one"
PUBLIC = 'requests{port="public",outcome="%s"}'


def counts() -> dict[str, float]:
    """Every sample of ours that adds up, as `name{labels}` without prefix and suffix."""
    found = {}
    for metric in REGISTRY.collect():
        if not metric.name.startswith("rollout_router_"):
            continue
        for sample in metric.samples:
            if sample.name.endswith(("_total", "_count")):
                labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                name = sample.name.removeprefix("rollout_router_").removesuffix("_total")
                found[f"{name}{{{labels}}}" if labels else name] = sample.value
    return found


@contextmanager
def moved(**ignored: bool) -> Iterator[dict[str, float]]:
    """What moved within the block, by how much; lag is always looked at."""
    before, found = counts(), dict[str, float]()
    yield found
    for name, value in counts().items():
        by = value - before.get(name, 0.0)
        if by and not name.startswith(("event_loop_lag", *ignored)):
            found[name] = by


def events(worker: Worker) -> list[str]:
    return [event["event"] for event in worker.observed.changes.since(0)["events"]]


def row_of(worker: Worker, rollout_id: str = "r1") -> Any:
    row = worker.observed.changes.row(rollout_id)
    assert row is not None
    return row


STAGES = {
    f'stage_seconds_count{{stage="{stage}"}}': 1.0
    for stage in ("claim", "admission", "read", "rebuild", "app")
}


async def test_a_call_that_is_served_here(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    with moved() as found:
        await Client(BASE).ask(router)

    assert found == {
        'requests_received{port="public"}': 1,
        PUBLIC % "2xx": 1,
        'claims_taken{how="new"}': 1,
        'request_body_bytes{form="full"}': len(BASE),
        **STAGES,
    }
    row = row_of(worker)
    assert (row.turns, row.body_bytes, row.sent_bytes, row.in_flight) == (
        1,
        len(BASE),
        len(BASE),
        0,
    )
    assert (row.last_outcome, row.how, events(worker)) == ("completed", "new", ["claim_taken"])


async def test_a_call_in_hand_is_seen_while_it_runs(rig: Rig) -> None:
    gate = asyncio.Event()

    async def wait(call: AppCall) -> None:
        await gate.wait()
        await answer(b"{}")(call)

    app = Application(wait)
    router, worker = await rig.start(app)
    asking = worker.tasks.spawn(Client().ask(router), name="a call")
    await app.arrived()
    worker._set_gauges()

    assert row_of(worker).in_flight == 1
    assert REGISTRY.get_sample_value("rollout_router_requests_in_flight") == 1
    assert REGISTRY.get_sample_value("rollout_router_claims_held") == 1
    assert REGISTRY.get_sample_value("rollout_router_admission_closed") == 0
    gate.set()
    await asking


async def test_a_call_that_is_forwarded_is_counted_at_both(rig: Rig) -> None:
    owner, owning = await rig.start(Application())
    other, forwarding = await rig.start(Application())
    await Client().ask(owner)
    with moved(stage_seconds=True) as found:
        await Client(BASE).ask(other)

    assert found == {
        'requests_received{port="public"}': 1,
        'requests_received{port="private"}': 1,
        PUBLIC % "2xx": 1,
        'requests{port="private",outcome="2xx"}': 1,
        'hops{outcome="delivered"}': 1,
        "hop_seconds_count": 1,
        'request_body_bytes{form="full"}': len(BASE),
    }
    assert (row_of(owning).turns, forwarding.observed.changes.row("r1")) == (2, None)


async def test_a_take_over_says_what_proved_the_death(rig: Rig) -> None:
    owner, dead = await rig.start(Application())
    other, worker = await rig.start(Application())
    await Client().ask(owner)
    await rig.kill(dead)
    with moved(stage_seconds=True, request=True) as found:
        await Client(headers=[(b"x-request-id", b"the-call")]).ask(other)

    assert found == {
        'hops{outcome="not_dispatched"}': 1,
        'claims_taken{how="takeover"}': 1,
        'takeovers{reason="life_lock_free"}': 1,
    }
    (told,) = worker.observed.changes.since(0)["events"]
    assert (told["event"], told["from_worker"]) == ("claim_taken_over", dead.id)
    assert (told["request_id"], told["reason"]) == ("the-call", "life_lock_free")


async def test_what_proved_a_death_is_counted_apart(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    await Client().ask(router)
    with moved() as found:
        worker.observed.taken(worker.ownership.grants["r1"], evidence="other_boot")

    assert found == {'takeovers{reason="other_boot"}': 1, 'claims_taken{how="takeover"}': 1}


async def test_a_delta_saves_bytes_and_one_without_its_base_is_a_resync(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    delta, unknown = frame(BASE, LONGER), frame(LONGER, LONGER + b"more")
    with moved(stage_seconds=True, claims_taken=True) as found:
        first = await Client(delta, headers=[FRAME]).ask(router)
        await Client(BASE, headers=[KEEP]).ask(router)
        second = await Client(unknown, headers=[FRAME]).ask(router)
        await Client(delta, headers=[FRAME]).ask(router)
        worker._set_gauges()

    assert (first.status, second.status) == (409, 409)
    assert found == {
        'requests_received{port="public"}': 4,
        PUBLIC % "2xx": 2,
        PUBLIC % "gym_history_resync": 2,
        'resyncs{reason="new_owner"}': 1,
        'resyncs{reason="not_held"}': 1,
        'request_body_bytes{form="full"}': len(BASE),
        'request_body_bytes{form="delta"}': 2 * len(delta) + len(unknown),
        "delta_saved_bytes": len(LONGER) - len(delta),
    }
    assert (row_of(worker).resyncs, row_of(worker).turns) == (2, 4)
    assert row_of(worker).last_outcome == "completed"
    assert REGISTRY.get_sample_value("rollout_router_bases_held") == 2
    held_bytes = worker.history.statistics().bytes
    assert REGISTRY.get_sample_value("rollout_router_base_bytes_held") == held_bytes
    assert events(worker).count("resync") == 2


async def test_a_claim_that_was_forced_away_is_noticed_and_taken_again(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    await Client().ask(router)
    rig.force()
    with moved(stage_seconds=True, request=True) as found:
        await Client().ask(router)

    assert found == {'claims_taken{how="new"}': 1}
    assert events(worker) == ["claim_taken", "claim_lost", "claim_taken"]


async def test_a_claim_that_moves_while_the_body_comes_is_fenced_at_dispatch(rig: Rig) -> None:
    router, worker = await rig.start(Application())
    await Client().ask(router)
    client = Client(None)
    asking = worker.tasks.spawn(client.ask(router), name="a call")
    await client.reading.wait()
    rig.force()
    with moved(stage_seconds=True) as found:
        client.write(b"{}")
        await asking

    assert found == {
        'fenced{where="dispatch"}': 1,
        PUBLIC % "claim_moved": 1,
        'request_body_bytes{form="full"}': 2,
    }
    assert events(worker) == ["claim_taken", "claim_lost", "refused"]


async def test_refusals_are_counted_by_code_and_said_in_bounds(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    router, worker = await rig.start(Application())
    worker.observed._clock = lambda: 1.5
    write_gate(rig.state_dir, Gate(open=False, by="me", why="a test"))
    worker.admission.refresh()
    worker._set_gauges()
    calls = REFUSALS_SAID_PER_S_MAX + 5
    with moved() as found, caplog.at_level(logging.INFO):
        for _ in range(calls):
            await Client().ask(router)
        worker.observed._clock = lambda: 2.5
        await Client().ask(router)

    assert found[PUBLIC % "admission_closed"] == calls + 1
    assert REGISTRY.get_sample_value("rollout_router_admission_closed") == 1
    said = [text for text in caplog.messages if "admission_closed" in text]
    assert len(said) == REFUSALS_SAID_PER_S_MAX + 2
    assert said[-2].startswith("5 more requests were refused")
    assert events(worker).count("refused") == REFUSALS_SAID_PER_S_MAX + 1


async def test_what_names_no_rollout_rightly_is_counted_too(rig: Rig) -> None:
    router, _ = await rig.start(Application(), refuse_invalid_ids=True)
    with moved(stage_seconds=True) as found:
        await Client(path="/sessions/a%20b/v1/responses").ask(router)

    assert found == {'requests_received{port="public"}': 1, PUBLIC % "rollout_id_invalid": 1}


async def test_a_client_that_leaves_and_an_answer_that_is_cut(rig: Rig) -> None:
    async def cut(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": 200, "headers": []})
        await call.send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ResponseCut("the test said so")

    app = Application(cut)
    router, worker = await rig.start(app)
    with moved(stage_seconds=True, claims_taken=True) as found:
        with pytest.raises(ResponseCut):
            await Client().ask(router)
        client = Client(None)
        client.leave()
        await client.ask(router)

    assert found[PUBLIC % "cut"] == 1
    assert found[PUBLIC % "client_gone"] == 1
    assert row_of(worker).last_outcome == "cancelled"


async def test_releases_say_why(rig: Rig) -> None:
    router, worker = await rig.start(Application(), history=Bounds(rollouts_max=1))
    with moved(stage_seconds=True, request=True, claims_taken=True) as found:
        await Client().ask(router)
        await Client(path="/sessions/r2/v1/responses").ask(router)
        await worker.stop()

    assert found == {'releases{reason="evicted"}': 1, 'releases{reason="leaving"}': 1}
    assert sorted(events(worker)) == [*["claim_released"] * 2, *["claim_taken"] * 2, "draining"]


async def test_the_lag_of_the_loop_is_the_longest_of_the_last_seconds(rig: Rig) -> None:
    _, worker = await rig.start(Application())
    now = 10.0
    worker.observed._clock = lambda: now
    before = counts()["event_loop_lag_seconds_count"]
    for lag_s in (0.001, 0.5, -0.001):
        worker.observed.lagged(lag_s)

    assert (counts()["event_loop_lag_seconds_count"] - before, worker.observed.lag_s()) == (3, 0.5)
    now += 5
    worker.observed.lagged(0.002)
    assert worker.observed.lag_s() == 0.002


async def test_a_sweep_is_counted_and_each_rollout_that_it_freed_is_an_event(rig: Rig) -> None:
    owner, dead = await rig.start(Application())
    await Client().ask(owner)
    await rig.kill(dead)
    with moved() as found:
        _, worker = await rig.start(Application(), sweep_s=0.001)
        async with asyncio.timeout(PATIENCE_S):
            while "swept" not in events(worker):  # noqa: ASYNC110 - the worker tells nobody
                await asyncio.sleep(0)

    assert found['sweeps{outcome="whole"}'] >= 1
    assert found["sweep_seconds_count"] == found['sweeps{outcome="whole"}']
    assert found['swept{what="rollouts"}'] == 1
    assert found['swept{what="owner files"}'] == 1
    assert "claim_reaped" in events(worker)
