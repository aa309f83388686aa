# SPDX-License-Identifier: Apache-2.0
"""Connections that real workers hand over: no hop is left, and an owner's end ends them (R2)."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from support.control import Control
from support.gateway import PATIENCE_S, Gateway, alone, client_of, kill_and_wait, wait_until

REQUEST = b"POST /sessions/r/x HTTP/1.1\r\nHost: gym\r\nContent-Length: 2\r\n\r\n{}"


class Line:
    """One connection of a client, accepted by one worker."""

    def __init__(self, gateway: Gateway, worker_id: str, stack: ExitStack) -> None:
        with alone(gateway, worker_id):
            self.connection = stack.enter_context(gateway.connect())
            self.connection.settimeout(PATIENCE_S)
            self._answers = stack.enter_context(self.connection.makefile("rb"))
            self.ask(b"GET / HTTP/1.1\r\nHost: gym\r\n\r\n")

    def ask(self, request: bytes = REQUEST) -> bytes:
        """The answer, whole, its lines in order of the alphabet."""
        self.connection.sendall(request)
        return self.answer()

    def answer(self) -> bytes:
        lines = [self._answers.readline()]
        while lines[-1] not in (b"\r\n", b""):
            lines.append(self._answers.readline().lower())
        length = [int(line.split()[1]) for line in lines if line.startswith(b"content-length:")]
        return b"".join(sorted(lines)) + self._answers.read(*length)

    def is_at(self, pid: int) -> bool:
        port = self.connection.getsockname()[1]
        found = psutil.Process(pid).net_connections("tcp")
        return port in {one.raddr.port for one in found if len(one.raddr)}

    def wait_end(self) -> bytes:
        """What still comes, until the connection ends in whatever way."""
        with suppress(ConnectionError):
            return self._answers.read()
        return b""

    def move(self, pid: int) -> list[bytes]:
        """Ask until the connection is with this process; the answers."""
        answers = [self.ask() for _ in range(6)]
        wait_until(lambda: self.is_at(pid), "the connection is with the owner")
        return answers


def test_r2_a_connection_moves_to_its_owner_and_ends_with_it(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve("--hand-over", control=control.path)
    forwarder, owner = gateway.ready["workers"]
    with client_of(gateway, owner["id"]) as client:
        epoch = int(client.post("/sessions/r/x", content=b"{}").headers["rollout-claim-epoch"])
    with ExitStack() as stack:
        idle, busy = (Line(gateway, forwarder["id"], stack) for _ in range(2))
        answers = [*idle.move(owner["pid"]), *busy.move(owner["pid"])]
        answers += [idle.ask(), busy.ask()]
        assert len(set(answers)) == 1
        assert not idle.is_at(forwarder["pid"])

        control.hold("r")
        busy.connection.sendall(REQUEST)
        assert control.next_call("r").pid == owner["pid"]
        kill_and_wait(owner["pid"])
        assert (idle.wait_end(), busy.wait_end()) == (b"", b"")
    control.unhold("r")

    after = gateway.post("r", b"{}")
    assert after.status_code == 200
    assert after.headers["rollout-worker"] != owner["id"]
    assert int(after.headers["rollout-claim-epoch"]) == epoch + 1
    assert len(control.runs("r")) == 1 + len(answers) + 1 + 1


def test_r2_a_leaver_answers_on_connections_that_it_was_handed_and_has_them_end(
    serve: Callable[..., Gateway], control: Control
) -> None:
    gateway = serve("--hand-over", control=control.path)
    forwarder, owner = gateway.ready["workers"]
    with client_of(gateway, owner["id"]) as client:
        client.post("/sessions/r/x", content=b"{}")
    with ExitStack() as stack:
        line = Line(gateway, forwarder["id"], stack)
        answers = line.move(owner["pid"])
        control.hold("r")
        line.connection.sendall(REQUEST)
        call = control.next_call("r")
        os.kill(owner["pid"], signal.SIGTERM)
        inbox = Path(owner["socket"]).with_suffix(".conn")
        wait_until(lambda: not inbox.exists(), "the owner leaves")
        call.answer()
        last = line.answer()
        assert b"connection: close\r\n" in last
        assert line.wait_end() == b""
        control.unhold("r")
        assert gateway.post("r", b"{}").status_code == 200
    assert len(control.runs("r")) == 1 + len(answers) + 1 + 1
