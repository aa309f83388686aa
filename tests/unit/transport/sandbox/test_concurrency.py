# SPDX-License-Identifier: Apache-2.0
"""The concurrency contract of docs/wire.md, over real sockets: many exchanges at once (S2)."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from rollout_router.transport.sandbox import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from unit.transport.sandbox.conftest import FakeGateway, Handler, Harness, Received

    from rollout_router.transport.sandbox.shim import Shim

WAIT_S = 30.0
PATH = "/ng-rollout/r1/v1/x"
ONE = b'{"messages":["' + b"the first turn " * 40 + b'"]}'


def branch(number: int, turn: int) -> bytes:
    """The bodies of one of several conversations that begin alike, as those of subagents do."""
    return ONE[:-2] + b"".join(b',"%d of %d"' % (at, number) for at in range(turn)) + b"]}"


@pytest.fixture
def harness(start_shim: Callable[..., Shim], harness: Harness) -> Harness:
    """Of a shim that retires no connection while a test runs."""
    return type(harness)(start_shim(idle_s=3_600.0).port)


class Gate:
    """Holds every request until as many have come as it is for; a script."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties)

    def __call__(self, handler: Handler, received: Received) -> None:
        self._barrier.wait(WAIT_S)
        name = received.header("X-Call")
        handler.send_response(200)
        handler.send_header("X-Call", str(name))
        handler.send_header("Set-Cookie", f"call={name}")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(20):
            handler.chunk(f"data: {name}\n\n".encode())
        handler.wfile.write(b"0\r\n\r\n")


def test_s2_streams_at_once_are_unmixed_and_each_has_its_own_headers_and_connection(
    harness: Harness, gateway: FakeGateway
) -> None:
    names = [f"c{number}" for number in range(8)]
    gateway.scripts.extend([Gate(len(names))] * len(names))

    with ThreadPoolExecutor(len(names)) as threads:
        answers = list(threads.map(lambda name: harness.post(ONE, X_Call=name), names))

    for name, (status, headers, body) in zip(names, answers, strict=True):
        assert (status, headers["X-Call"], headers["Set-Cookie"]) == (200, name, f"call={name}")
        assert body == f"data: {name}\n\n".encode() * 20
    assert {received.header("X-Call") for received in gateway.received} == set(names)
    assert len({received.connection for received in gateway.received}) == len(names)


def test_s2_a_stream_that_is_blocked_waits_alone_and_ends_as_it_would_have(
    harness: Harness, gateway: FakeGateway
) -> None:
    release = threading.Event()

    def block(handler: Handler, _: Received) -> None:
        handler.begin_stream()
        handler.chunk(b"data: first\n\n")
        assert release.wait(WAIT_S)
        handler.chunk(b"data: first again\n\n")
        handler.wfile.write(b"0\r\n\r\n")

    def stream(handler: Handler, _: Received) -> None:
        handler.begin_stream()
        handler.chunk(b"data: second\n\n")
        handler.wfile.write(b"0\r\n\r\n")

    gateway.scripts += [block, stream]
    first = harness.connect()
    first.request("POST", PATH, ONE)
    answer = first.getresponse()
    assert answer.read1() == b"data: first\n\n"

    assert harness.post(ONE)[2] == b"data: second\n\n"

    release.set()
    assert answer.read() == b"data: first again\n\n"
    first.close()
    assert [received.connection for received in gateway.received] == [1, 2]


@pytest.mark.parametrize("keeps_alive", [True, False], ids=["keep-alive", "one call a connection"])
def test_s2_one_call_after_the_other_uses_one_connection_however_the_harness_connects(
    harness: Harness, gateway: FakeGateway, *, keeps_alive: bool
) -> None:
    connection = harness.connect()
    for turn in range(4):
        connection.request("POST", PATH, branch(0, turn))
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b'{"ok":1}')
        if not keeps_alive:
            connection.close()  # the next request opens another one
    connection.close()

    assert gateway.connections == 1
    assert gateway.bodies == [branch(0, turn) for turn in range(4)]
    assert [received.framed for received in gateway.received] == [False, True, True, True]


def test_s2_there_are_as_many_connections_as_calls_at_once_and_they_are_used_again(
    harness: Harness, gateway: FakeGateway
) -> None:
    for _ in range(3):
        gateway.scripts.extend([Gate(4)] * 4)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(harness.post, [ONE] * 4))

    assert len(gateway.received) == 12
    assert gateway.connections == 4


def test_s2_histories_of_calls_at_once_do_not_mix_and_each_change_is_one_step(
    start_shim: Callable[..., Shim], harness: Harness, gateway: FakeGateway
) -> None:
    shim = start_shim(idle_s=3_600.0)
    helper = type(harness)(shim.port)
    helper.post(ONE)

    def converse(number: int) -> list[tuple[int, bool]]:
        answers = [helper.post(branch(number, turn)) for turn in range(1, 7)]
        return [(status, wire.HISTORY_HEADER in headers) for status, headers, _ in answers]

    with ThreadPoolExecutor(4) as threads:
        answered = list(threads.map(converse, range(4)))

    assert answered == [[(200, False)] * 6] * 4
    wanted = [ONE, *(branch(number, turn) for number in range(4) for turn in range(1, 7))]
    assert sorted(gateway.bodies) == sorted(wanted)
    assert all(received.framed for received in gateway.received[1:])
    tally = shim.statistics()["rollouts"]["r1"]
    assert tally.pop("bytes_plain") > tally["bytes_sent"]
    assert tally == {
        "calls": 25,
        "bytes_full": sum(map(len, wanted)),
        "bytes_sent": sum(len(received.raw) for received in gateway.received),
        "resyncs": 0,
    }


def test_s2_a_base_that_is_lost_under_calls_at_once_costs_each_one_full_body(
    harness: Harness, gateway: FakeGateway
) -> None:
    harness.post(ONE)
    barrier = threading.Barrier(4)

    def lose(handler: Handler, received: Received) -> None:
        assert received.framed
        barrier.wait(WAIT_S)
        handler.answer(409, Rollout_History=wire.RESYNC)

    gateway.scripts.extend([lose] * 4)
    bodies = [branch(number, 1) for number in range(4)]

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(harness.post, bodies))

    assert [status for status, _, _ in answers] == [200] * 4
    assert sorted(gateway.bodies[1:]) == sorted(bodies)
    assert len(gateway.received) == 1 + 4 + 4


def test_s2_one_that_is_cut_leaves_the_others_alone(harness: Harness, gateway: FakeGateway) -> None:
    gate = threading.Barrier(2)

    def cut(handler: Handler, _: Received) -> None:
        gate.wait(WAIT_S)
        handler.begin_stream()
        handler.chunk(b"data: 1\n\n")
        handler.cut()

    def answer(handler: Handler, _: Received) -> None:
        gate.wait(WAIT_S)
        handler.answer(200, b"whole")

    gateway.scripts += [cut, answer]

    def call(_: int) -> bytes:
        try:
            return harness.post(ONE)[2]
        except (http.client.IncompleteRead, ConnectionError):
            return b"cut"

    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(call, range(2))) == {b"cut", b"whole"}
