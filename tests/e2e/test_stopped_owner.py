# SPDX-License-Identifier: Apache-2.0
"""A worker hangs, has no descriptors, or died and left a child: who waits, what moves (C3, C7, R2).

SIGSTOP stands for whatever keeps a process from running. Its kernel goes on: connections are taken
into its backlog, and what is sent to it waits.
"""

import errno
import itertools
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.conversations import body_of, conversation
from support.gateway import connections, open_files, stopped, wait_dead, wait_until
from support.pinned import Pair, Pinned, Service, request, served

from rollout_router.claims import FileClaimStore
from rollout_router.routing.forward import HELD_BODY_BYTES_MAX
from rollout_router.routing.private import BACKLOG

BODY = body_of(conversation(2))
LONG = body_of(conversation(2), pad="x" * HELD_BODY_BYTES_MAX)
WAITS_BYTES = len(LONG) - 10  # of a long one: its owner is asked whether it takes it


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served() as service:
        yield service


NUMBERS = itertools.count()


@pytest.fixture
def two(service: Service) -> Iterator[Pair]:
    with closing(Pair(service, f"r{next(NUMBERS)}")) as two:
        yield two


def assert_nothing_moved(two: Pair) -> None:
    claim = two.gateway.claims()[two.id]
    assert (claim["verdict"], claim["pid"]) == ("alive", two.owner)
    assert claim["claim_epoch"] == two.epoch
    assert two.owner in {worker["pid"] for worker in two.workers()}


def assert_goes_on(two: Pair) -> None:
    answer = two.gateway.post(two.id, BODY)
    assert (answer.status_code, answer.headers["rollout-claim-epoch"]) == (200, str(two.epoch))


def connected(name: str) -> int:
    """Connections to the Unix socket of this name, as the kernel lists their owner's ends."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(name) and line.split()[5] == "03" for line in lines)


def sockets(pid: int) -> int:
    return sum(name.startswith("socket:") for name in open_files(pid))


def test_c3_calls_of_a_stopped_owner_wait_and_go_on_and_nothing_is_taken_over(two: Pair) -> None:
    other, gone, *clients = two.clients(5)
    bodies = [BODY, BODY + b" ", LONG]
    with stopped(two.owner):
        for client, body in zip(clients, bodies, strict=True):
            client.send(request(two.id, body)[: WAITS_BYTES if body is LONG else None])
        wait_until(lambda: connections(two.socket) == 3, "all are forwarded")
        gone.send(request(two.id, LONG + b" ")[:WAITS_BYTES])
        wait_until(lambda: connections(two.socket) == 4, "one more is")
        before = sockets(two.forwarder)
        gone.close()
        wait_until(lambda: sockets(two.forwarder) == before - 2, "its leaving was seen")
        other.ask(request(f"{two.id}-other", BODY))  # a stopped peer holds nobody else up
        assert_nothing_moved(two)
        assert [two.ran(body) for body in bodies] == [0, 0, 0]
    clients[2].send(request(two.id, LONG)[WAITS_BYTES:])
    assert [client.outcome() for client in clients] == ["200"] * 3
    assert [two.ran(body) for body in bodies] == [1, 1, 1]
    assert two.ran(LONG + b" ") == 0
    assert_goes_on(two)


@pytest.fixture
def impatient() -> Iterator[Pair]:
    with served("--owner-timeout-seconds", "0.3") as service, closing(Pair(service, "r")) as two:
        yield two


def test_c3_with_a_time_limit_calls_of_a_stopped_owner_are_refused_and_nothing_is_taken_over(
    impatient: Pair,
) -> None:
    two = impatient
    small, long = two.clients(2)
    with stopped(two.owner):
        small.send(request(two.id, BODY))
        assert small.outcome() == "504 owner_timeout"
        long.send(request(two.id, LONG)[:WAITS_BYTES])
        assert long.outcome() == "503 owner_unreachable"
        assert long.header("retry-after") == "1"
        assert_nothing_moved(two)
    assert_goes_on(two)
    assert two.ran(LONG) == 0
    assert two.ran(BODY) - 1 in {0, 1}  # the one that timed out may have run


def test_c3_an_owner_whose_backlog_is_full_is_503_and_nothing_is_taken_over(two: Pair) -> None:
    client, again = two.clients(2)
    with stopped(two.owner), backlog_filled(two.socket):
        client.send(request(two.id, BODY))
        assert client.outcome() == "503 owner_unreachable"
        assert client.header("retry-after") == "1"
        assert_nothing_moved(two)
    two.to_owner.pass_through()  # it has accepted what waited
    again.send(request(two.id, BODY))
    assert again.outcome() == "200"
    assert two.ran(BODY) == 1
    assert_goes_on(two)


NO_DESCRIPTOR = {"503 claim_store_unavailable", "503 owner_unreachable"}  # for whichever it lacked


@contextmanager
def backlog_filled(path: str) -> Iterator[None]:
    """Connect to a Unix socket until no more fit in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * BACKLOG:
        pytest.skip(f"a backlog of {BACKLOG} needs more descriptors than {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * BACKLOG), hard))
    try:
        with ExitStack() as filling:
            full = False
            while not full:
                one = filling.enter_context(socket.socket(socket.AF_UNIX))
                one.settimeout(0)
                full = one.connect_ex(path) == errno.EAGAIN
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_c7_c3_a_forwarder_without_descriptors_refuses_and_works_again(two: Pair) -> None:
    client, again, dead = two.clients(3)
    # A hop that is idle needs no descriptor, and neither does a claim that was read.
    to_owner = f"{two.gateway.claims()[two.id]['worker_id']}.sock"
    wait_until(lambda: connected(to_owner) == 0, "no hop to the owner is idle")
    with starved(two.to_forwarder):
        client.send(request(two.id, BODY))
        assert client.outcome() in NO_DESCRIPTOR
        assert client.header("retry-after") == "1"
    assert_nothing_moved(two)
    assert two.ran(BODY) == 0
    again.send(request(two.id, BODY))
    assert again.outcome() == "200"
    with stopped(two.gateway.process.pid):  # nobody is started anew
        two.kill(two.owner)
        with starved(two.to_forwarder):
            dead.send(request(two.id, BODY))
            assert dead.outcome() in NO_DESCRIPTOR
            assert two.ran(BODY) == 1
    # It may have been unable to read the gate, and reads it again soon.
    wait_until(lambda: two.gateway.post(two.id, BODY).status_code == 200, "it works again")
    assert two.gateway.claims()[two.id]["claim_epoch"] > two.epoch


def test_c7_c3_an_owner_without_descriptors_runs_nothing_and_works_again(two: Pair) -> None:
    """Its event loop closes what it cannot accept; once a byte was written that may be a loss."""
    (client,) = two.clients(1)
    with starved(two.to_owner):
        client.send(request(two.id, BODY))
        assert client.outcome() in {"502 owner_lost_in_flight", *NO_DESCRIPTOR}
    assert_nothing_moved(two)
    assert two.ran(BODY) == 0
    wait_until(lambda: two.gateway.post(two.id, BODY).status_code == 200, "it works again")
    assert_goes_on(two)


@contextmanager
def starved(worker: Pinned) -> Iterator[None]:
    """No descriptor is left to the worker of this connection."""
    pid = worker.pid
    kept = descriptors(pid)
    worker.pass_through()
    kept &= descriptors(pid)  # not what was open for a moment
    free = next(number for number in itertools.count() if number not in kept)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def descriptors(pid: int) -> set[int]:
    return {int(link.name) for link in Path(f"/proc/{pid}/fd").iterdir()}


@pytest.mark.parametrize("kept", ["connections", "connections and listener"])
def test_r2_c3_a_child_that_holds_what_its_dead_worker_had_open_ends_no_wait_and_keeps_no_claim(
    two: Pair, kept: str
) -> None:
    (client,) = two.clients(1)
    two.control.hold(two.id)
    client.send(request(two.id, BODY))
    call = two.control.next_call(two.id)
    child = call.spawn(kept)
    watch = os.pidfd_open(child)
    try:
        two.control.unhold(two.id)
        two.kill(two.owner)
        assert sockets(child) > 0
        assert client.outcome() == "502 owner_lost_in_flight"
        assert b"died with the call in hand" in client.seen  # the life lock said so, not the socket
        if kept != "connections":
            # Who connects meanwhile is 502 once more.
            store = FileClaimStore.inspect(two.gateway.state_dir)
            wait_until(lambda: store.read(two.id) is None, "the claim was cleared")
        answer = two.gateway.post(two.id, BODY + b" ")
        assert answer.status_code == 200
        assert int(answer.headers["rollout-claim-epoch"]) > two.epoch
        assert two.ran(BODY) == 1
        os.kill(child, 0)
    finally:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        wait_dead(watch)
