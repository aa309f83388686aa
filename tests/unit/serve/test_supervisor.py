# SPDX-License-Identifier: Apache-2.0
"""The public socket, as the supervisor hands it to its workers."""

import asyncio
import errno
import os
import signal
import threading
from typing import Any

import pytest

from rollout_router.serve import supervisor
from rollout_router.serve.supervisor import PortTaken, Supervisor, bind_public, local_url_of, url_of


def test_no_copy_of_the_public_socket_lets_a_worker_be_held_in_accept() -> None:
    with bind_public("127.0.0.1", 0) as listener, listener.dup():  # as for each worker
        assert not os.get_blocking(listener.fileno())


def test_a_port_that_cannot_be_bound_says_why() -> None:
    with bind_public("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}: Address already") as refused:
            bind_public("127.0.0.1", port)
    assert refused.value.errno == errno.EADDRINUSE


class Fake:
    """A worker process that answers and ends at once; the service is stopped after the second."""

    started = 0

    def __init__(self) -> None:
        type(self).started += 1
        self.pid = 100 + type(self).started

    @classmethod
    async def start(cls, *_: object) -> "Fake":
        return cls()

    async def wait_ready(self) -> dict[str, Any]:
        return {"id": str(self.pid)}

    async def wait_end(self) -> None:
        if type(self).started == 2:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)

    def tell(self, number: signal.Signals) -> None:
        assert number == signal.SIGTERM

    def ending(self) -> str:
        return "ended"


def test_whoever_asks_is_told_in_a_thread_of_each_worker_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "Child", Fake)
    monkeypatch.setattr(Fake, "started", 0)
    ended: list[tuple[int, bool]] = []

    def on_ended(pid: int) -> None:
        ended.append((pid, threading.current_thread() is threading.main_thread()))

    listener = bind_public("127.0.0.1", 0)
    config: Any = None
    made = Supervisor(
        config, listener, workers=1, ready_file=None, say=lambda _: None, on_ended=on_ended
    )
    assert asyncio.run(made.run()) == 0
    assert ended == [(101, False), (102, False)]


def test_an_address_of_all_is_reached_here_by_loopback() -> None:
    with bind_public("0.0.0.0", 0) as listener:  # noqa: S104 - for a moment
        port = listener.getsockname()[1]
        assert (url_of(listener), local_url_of(listener)) == (
            f"http://0.0.0.0:{port}",
            f"http://127.0.0.1:{port}",
        )
