# SPDX-License-Identifier: Apache-2.0
"""The stages of a call: one chain of clock readings, told in one header by whoever was asked."""

from collections.abc import Callable
from typing import Any

import pytest
from support.conversations import frame
from support.routing import AppCall, Application, Client, Rig, answer

from rollout_router.asgi import Message
from rollout_router.routing import Router, exchange
from rollout_router.routing import owner as owner_module
from rollout_router.routing import route as route_module
from rollout_router.routing import serve_hop as serve_hop_module
from rollout_router.routing.stages import Stages, line_of, merged, spent_in
from rollout_router.routing.worker import Worker

TIMING = b"server-timing"
OURS = b"rollout-stages"
KEEP = (b"rollout-history", b"keep")
FRAME = (b"content-type", b"application/vnd.rollout-delta")
BASE = b"a turn of the conversation " * 20
LOCAL = ["claim", "admission", "read", "rebuild", "app"]
FORWARDED = ["claim", "admission", "read", "rebuild", "hop", "app"]


class Clock:
    """Stands still, but where the test says what takes how long."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def slow(self, patch: pytest.MonkeyPatch, target: object, name: str, by_s: float) -> None:
        """Let each call of a method take so long."""
        work: Callable[..., Any] = getattr(target, name)

        def slowed(*arguments: Any, **options: Any) -> Any:
            self.now_s += by_s
            return work(*arguments, **options)

        patch.setattr(target, name, slowed)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all stages."""
    clock = Clock()
    monkeypatch.setattr(exchange, "Stages", lambda name: Stages(name, clock))
    return clock


class SlowClient(Client):
    """Takes 3 s to write its body."""

    def __init__(self, clock: Clock, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock = clock

    async def receive(self) -> Message:
        message = await super().receive()
        if message["type"] == "http.request":
            self._clock.now_s += 3
        return message


def test_the_line_has_the_stages_in_their_order_in_milliseconds() -> None:
    spent_ms = {"app": 12.3456, "claim": 0.0, "hop": 1000.0}
    line = b"claim;dur=0.000, hop;dur=1000.000, app;dur=12.346"
    assert line_of(spent_ms) == line
    assert spent_in(line) == {"claim": 0.0, "hop": 1000.0, "app": 12.346}
    assert (line_of({}), spent_in(b"")) == (b"", {})


@pytest.mark.parametrize(
    "line",
    [b"later;dur=1.000", b"claim", b"claim;dur=", b"claim;dur=-1", b"claim;dur=nan", b"\xff;;,"],
)
def test_what_is_no_stage_of_ours_is_left_out(line: bytes) -> None:
    assert spent_in(line + b", read;dur=2.000") == {"read": 2.0}


def test_the_hop_is_what_the_owner_did_not_spend() -> None:
    both = merged({"claim": 1.0, "read": 2.0, "hop": 10.0}, {"claim": 0.5, "app": 6.0})
    assert both == {"claim": 1.5, "read": 2.0, "hop": 3.5, "app": 6.0}


def test_rounding_makes_no_hop_less_than_nothing() -> None:
    assert merged({"hop": 1.0}, {"app": 1.0004}) == {"hop": 0.0, "app": 1.0004}


def test_a_stage_that_comes_again_adds_up_and_nothing_is_between_two() -> None:
    clock = Clock()
    stages = Stages(TIMING, clock)
    for by_s, stage in ((1.0, "claim"), (2.0, "read"), (4.0, "claim")):
        clock.now_s += by_s
        stages.end(stage)  # type: ignore[arg-type]
    assert stages.header() == (TIMING, b"claim;dur=5000.000, read;dur=2000.000")


async def pair(rig: Rig, app: Application, **of: bool) -> tuple[Router, Router, Worker]:
    """The owner of r1, which it has claimed just now, and another worker."""
    owner, worker = await rig.start(app, server_timing=of.get("owner", True))
    other, _ = await rig.start(Application(), server_timing=of.get("forwarder", True))
    await Client().ask(owner)
    return owner, other, worker


def stages_of(line: bytes) -> list[str]:
    return [entry.partition(";")[0].strip() for entry in line.decode().split(",")]


async def test_each_stage_is_what_it_says(
    rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def thinking(call: AppCall) -> None:
        clock.now_s += 50
        await answer()(call)

    async def lingering(call: AppCall) -> None:
        await thinking(call)
        clock.now_s += 1000  # after the head

    app = Application(thinking)
    owner, other, worker = await pair(rig, app)
    assert other.worker is not None
    clock.slow(monkeypatch, worker.ownership, "begin_held", 1)
    clock.slow(monkeypatch, worker.ownership, "stands", 0.5)  # there, and before dispatch
    clock.slow(monkeypatch, route_module, "route_public", 0.25)  # looks for an owner, or at a gate
    clock.slow(monkeypatch, serve_hop_module, "route_hop", 0.25)
    clock.slow(monkeypatch, worker.admission, "check", 2)
    clock.slow(monkeypatch, worker.ownership, "keep", 4)
    clock.slow(monkeypatch, other.worker.store, "read", 10)
    clock.slow(monkeypatch, other.worker.hops, "send", 20)

    forwarded = await SlowClient(clock, headers=[KEEP]).ask(other)
    app.script = lingering
    local = await SlowClient(clock, headers=[KEEP]).ask(owner)

    assert local.value(TIMING) == (
        b"claim;dur=2000.000, admission;dur=2250.000, read;dur=3000.000, rebuild;dur=4000.000,"
        b" app;dur=50000.000"
    )
    assert forwarded.value(TIMING) == (
        b"claim;dur=12250.000, admission;dur=2250.000, read;dur=3000.000, rebuild;dur=4000.000,"
        b" hop;dur=20000.000, app;dur=50000.000"
    )


async def test_the_rebuilding_of_a_frame_is_a_stage(
    rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, _ = await rig.start(Application(), server_timing=True)
    await Client(BASE, headers=[KEEP]).ask(owner)
    clock.slow(monkeypatch, owner_module, "rebuild", 8)

    client = await Client(frame(BASE, 2 * BASE), headers=[FRAME]).ask(owner)

    assert b", rebuild;dur=8000.000, " in (client.value(TIMING) or b"")


async def test_r5_what_an_application_says_of_its_time_stands_beside_ours(rig: Rig) -> None:
    own = [(b"Server-Timing", b"claim;dur=9, db;dur=1"), (b"server-timing", b"hop;dur=9.000")]
    forged = [(b"Rollout-Stages", b"claim;dur=999999.000")]
    owner, other, _ = await pair(rig, Application(answer(headers=[*own, *forged])))

    for router, stages in ((owner, LOCAL), (other, FORWARDED)):
        client = await Client().ask(router)
        *theirs, ours = client.values(TIMING)
        assert theirs == [value for _, value in own]
        assert stages_of(ours) == stages
        assert spent_in(ours)["claim"] < 999_999
        assert client.values(OURS) == []


@pytest.mark.parametrize(("owner", "forwarder"), [(False, False), (True, False), (False, True)])
async def test_without_the_setting_at_both_workers_a_forwarded_call_has_no_stages(
    rig: Rig, *, owner: bool, forwarder: bool
) -> None:
    _, other, _ = await pair(rig, Application(), owner=owner, forwarder=forwarder)

    client = await Client().ask(other)

    assert client.status == 200
    assert client.values(TIMING) + client.values(OURS) == []


async def test_a_refusal_has_no_stages_over_a_hop_either(rig: Rig) -> None:
    owner, other, _ = await pair(rig, Application())

    for router in (owner, other):
        client = await Client(frame(BASE, 2 * BASE), headers=[FRAME]).ask(router)
        assert (client.status, client.mark) == (409, b"resync")
        assert client.values(TIMING) + client.values(OURS) == []


async def test_r7_a_request_that_names_no_rollout_has_no_stages(rig: Rig) -> None:
    router, _ = await rig.start(Application(), server_timing=True)

    assert (await Client(path="/v1/models").ask(router)).values(TIMING) == []
