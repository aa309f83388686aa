# SPDX-License-Identifier: Apache-2.0
"""A worker dies, and a child that its application started lives on (C3, R4).

Such a child keeps nothing of the worker: not the life lock, so that its death is proven; no
listener, so that nobody connects to a worker that is not there; no connection, so that every peer
sees its end. A child that C code forks keeps it all: while it lives nothing is proven or moved.
"""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from support.control import Control
from support.conversations import body_of, conversation
from support.gateway import (
    PATIENCE_S,
    Gateway,
    connections,
    kill_and_wait,
    wait_dead,
    wait_until,
)

BODY = body_of(conversation(2))


@contextmanager
def orphan(
    gateway: Gateway, control: Control, threads: ThreadPoolExecutor, how: str
) -> Iterator[tuple[int, "Future[bool]"]]:
    """The owner of "r" starts a child in a call and is killed; the child is killed in the end.

    Gives the child's pid, and whether the call in flight was cut, once that is known.
    """
    control.hold("r")
    cut = threads.submit(is_cut, gateway)
    call = control.next_call("r")
    child = call.spawn(how)
    watch = os.pidfd_open(child)
    try:
        control.unhold("r")
        kill_and_wait(call.pid)
        yield child, cut
    finally:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        wait_dead(watch)


def is_cut(gateway: Gateway) -> bool:
    try:
        gateway.post("r", BODY)
    except (httpx.RemoteProtocolError, httpx.ReadError):
        return True
    return False


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize("how", ["popen", "multiprocessing", "fork"])
def test_c3_a_child_keeps_nothing_of_a_dead_worker(
    serve: Callable[..., Gateway], control: Control, threads: ThreadPoolExecutor, how: str
) -> None:
    gateway = serve(control=control.path)
    port = int(gateway.url.rpartition(":")[2])
    with orphan(gateway, control, threads, how) as (child, cut):
        assert cut.result()
        answers = [gateway.post("r", BODY) for _ in range(4)]
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(PATIENCE_S) == 0  # its log does not end: the child may write it
        assert gateway.claims() == {}
        socket.create_server(("127.0.0.1", port)).close()
        os.kill(child, 0)  # it has lived through all of this
    assert {answer.status_code for answer in answers} == {200}
    before, *after = control.runs("r")
    assert len(after) == 4
    assert before.pid not in {run.pid for run in after}
    assert {run.claim_epoch for run in after} == {after[0].claim_epoch}
    assert (before.claim_epoch or 0) < (after[0].claim_epoch or 0)


def test_c3_while_a_child_of_c_code_keeps_the_life_lock_nothing_moves(
    serve: Callable[..., Gateway], control: Control, threads: ThreadPoolExecutor
) -> None:
    """The listener is open too, so a forwarder connects, and waits until the death is proven."""
    gateway = serve(control=control.path)
    with orphan(gateway, control, threads, "fork in C") as (child, cut):
        claim = gateway.claims()["r"]
        assert claim["verdict"] == "alive"
        waiting = threads.submit(gateway.post, "r", BODY)
        wait_until(lambda: connections(claim["socket"]) > 0, "the request was forwarded")
        assert gateway.claims()["r"]["claim_epoch"] == claim["claim_epoch"]
        assert len(control.runs("r")) == 1
        assert not cut.done()
        os.kill(child, 0)
    assert cut.result()
    # 502 where the request had been written when the proof came, else it is the next owner's.
    assert waiting.result().status_code in {502, 200}
    answer = gateway.post("r", BODY)
    assert answer.status_code == 200
    assert int(answer.headers["rollout-claim-epoch"]) > claim["claim_epoch"]


def test_r2_an_owner_sees_the_end_of_a_forwarder_whose_child_lives_on(
    serve: Callable[..., Gateway], control: Control
) -> None:
    """Or it would go on with a call that nobody waits for, and could not leave."""
    gateway = serve(control=control.path)
    owner = gateway.post("r", BODY).headers["rollout-worker"]
    socket_path = gateway.claims()["r"]["socket"]
    forwarder = next(one for one in gateway.ready["workers"] if one["id"] != owner)
    control.hold("r")
    with ThreadPoolExecutor(64) as threads:
        for _ in range(64):  # connections enough for one of them to be forwarded
            threads.submit(is_cut, gateway)
            call = control.next_call("r")
            if connections(socket_path) > 0:
                break
            call.answer()
        for number in range(64):
            control.hold(f"s{number}")
            threads.submit(lambda name: gateway.post(name, BODY), f"s{number}")
            other = control.next_call(f"s{number}")
            if other.pid == forwarder["pid"]:
                break
            other.answer()
        child = other.spawn("fork")
        watch = os.pidfd_open(child)
        try:
            kill_and_wait(forwarder["pid"])
            call.wait_gone()
            os.kill(child, 0)
        finally:
            signal.pidfd_send_signal(watch, signal.SIGKILL)
            wait_dead(watch)
