# SPDX-License-Identifier: Apache-2.0
"""A call that is cancelled while it is made good holds nothing any more."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from rollout_router.transport.sandbox import wire

if TYPE_CHECKING:
    from unit.transport.sandbox.conftest import FakeGateway, Handler, Received, Script
    from unit.transport.sdk.conftest import LoopCalls

WAIT_S = 30.0
ONE = b'{"messages":["' + b"one" * 200 + b'"]}'
TWO = ONE[:-2] + b'","two"]}'


def _stalling(reached: threading.Event, *, head: bool) -> Script:
    """Comes as far as the head of a resync, or not as far, and waits for the client's end."""

    def stall(handler: Handler, _: Received) -> None:
        if head:
            handler.send_response(409)
            handler.send_header(wire.HISTORY_HEADER, wire.RESYNC)
            handler.send_header("Content-Length", "10")
            handler.end_headers()
        reached.set()
        assert handler.rfile.read(1) == b""
        handler.cut()

    return stall


def _resync(handler: Handler, _: Received) -> None:
    handler.answer(409, Rollout_History=wire.RESYNC)


@pytest.mark.parametrize("resending", [False, True], ids=["reading-the-resync", "resending"])
def test_s2_a_cancelled_call_closes_its_connection(
    loop_calls: LoopCalls, gateway: FakeGateway, *, resending: bool
) -> None:
    reached = threading.Event()

    async def cancel() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(loop_calls.ask(TWO))
            assert await asyncio.to_thread(reached.wait, WAIT_S)
            task.cancel()
        assert task.cancelled()

    loop_calls.post(ONE)
    gateway.scripts += [_resync] if resending else []
    gateway.scripts.append(_stalling(reached, head=not resending))
    loop_calls.runner.run(cancel())
    assert gateway.closed.acquire(timeout=WAIT_S)
    assert loop_calls.post(TWO).status_code == 200
    assert (gateway.bodies, gateway.connections) == ([ONE, TWO], 2)


def test_s2_a_call_cancelled_while_it_is_encoded_sends_nothing(
    loop_calls: LoopCalls, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, proceed = threading.Event(), threading.Event()
    sender = loop_calls.transport._sender
    plan = sender.plan

    def wait(asked: object) -> object:
        reached.set()
        assert proceed.wait(WAIT_S)
        return plan(asked)

    async def cancel() -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(loop_calls.ask(ONE * 1_000))
            assert await asyncio.to_thread(reached.wait, WAIT_S)  # the loop turns meanwhile
            task.cancel()
            proceed.set()
        assert task.cancelled()

    monkeypatch.setattr(sender, "plan", wait)
    loop_calls.runner.run(cancel())
    assert gateway.received == []
