# SPDX-License-Identifier: Apache-2.0
"""Bare clients whose connection a chosen worker serves, and a pair of workers to choose from.

One service can stand all tests of a module: whoever dies is replaced before the next pair is made.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple

from support.control import Control
from support.conversations import digest
from support.folders import private_folder
from support.gateway import PATIENCE_S, Gateway, connections, kill_and_wait, stopped, wait_until

__all__ = ["NOTHING", "PART", "Pair", "Pinned", "Service", "request", "served"]

NOTHING = "nothing"
"""The connection ended before a byte of an answer came."""

PART = "a part"
"""The connection ended within an answer."""


class Pinned:
    """A connection to the public port that worker *pid* has accepted.

    All other workers are stopped while it connects, so nobody else can take it.
    """

    def __init__(self, gateway: Gateway, control: Control, pid: int) -> None:
        with ExitStack() as others:
            for worker in gateway.ready["workers"]:
                if worker["pid"] != pid:
                    others.enter_context(stopped(worker["pid"]))
            self._socket = gateway.connect()
            self._socket.settimeout(PATIENCE_S)
            self._answer: HTTPResponse | None = None
            self._control = control
            self.seen = b""  # of the answer's body
            self.pid = pid
            self.pass_through()

    def pass_through(self) -> None:
        """Have the worker run a call that names no rollout, and wait for its answer.

        That takes its event loop several turns and needs the test in between. So whatever had
        reached the worker before, on any connection, has been read and acted upon by then.
        """
        self.ask(b"GET /pass HTTP/1.1\r\nHost: gym\r\n\r\n")
        assert [call.pid for call in self._control.calls if call.path == "/pass"][-1] == self.pid

    def ask(self, request: bytes, *, method: str = "POST") -> HTTPResponse:
        """Send a request and read its answer whole."""
        self.send(request)
        answer = HTTPResponse(self._socket, method=method)
        answer.begin()
        answer.read()
        return answer

    def send(self, data: bytes) -> None:
        """Send what the worker will take; what it died on is lost, as a client may not notice."""
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def read(self, length: int) -> bytes:
        """The next *length* bytes of the answer's body."""
        part = self._begun().read(length)
        self.seen += part
        return part

    def outcome(self) -> str:
        """What the client sees in the end, with what it has read already.

        ``"200"``, ``"502 owner_lost_in_flight"``, :data:`PART` or :data:`NOTHING`.
        """
        try:
            answer = self._begun()
        except ConnectionError:
            return NOTHING
        try:
            self.seen += answer.read()
        except (ConnectionError, HTTPException):
            return PART
        status = str(answer.status)
        return status if status == "200" else f"{status} {json.loads(self.seen)['error']['code']}"

    def header(self, name: str) -> str | None:
        """A header of the answer."""
        return self._begun().headers[name]

    def _begun(self) -> HTTPResponse:
        if self._answer is None:
            self._answer = HTTPResponse(self._socket)
            self._answer.begin()
        return self._answer

    def close(self) -> None:
        """End the connection."""
        if self._answer is not None:
            self._answer.close()
        self._socket.close()


def request(rollout_id: str, body: bytes, *, method: str = "POST") -> bytes:
    """A call as a harness writes it, with its length, asking to keep the body."""
    head = (
        f"{method} /sessions/{rollout_id}/v1/responses HTTP/1.1\r\nHost: gym\r\n"
        "Content-Type: application/json\r\nRollout-History: keep\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Service(NamedTuple):
    """Two workers with the application under control."""

    gateway: Gateway
    control: Control
    dead: set[int]  # the processes that a test killed


@contextmanager
def served(*flags: str) -> Iterator[Service]:
    """A service for several tests; checks that it ends in order."""
    with private_folder() as folder, closing(Control(folder / "control.sock")) as control:
        gateway = Gateway(folder, *flags, control=control.path)
        yield Service(gateway, control, set())
        assert gateway.stop() == 0


class Pair:
    """The owner of a rollout that it has claimed just now, and the worker that forwards to it."""

    def __init__(self, service: Service, rollout_id: str) -> None:
        self.gateway, self.control, self.dead = service
        wait_until(lambda: not self.dead & {w["pid"] for w in self.workers()}, "two workers live")
        # Connections of an earlier pair may be kept for some seconds, in one direction each.
        owner, forwarder = sorted(self.workers(), key=lambda w: connections(w["socket"]))
        wait_until(lambda: connections(owner["socket"]) == 0, "no forwarder is connected")
        self.id = rollout_id
        self.owner, self.forwarder, self.socket = owner["pid"], forwarder["pid"], owner["socket"]
        self._connections = ExitStack()
        self.to_owner, self.to_forwarder = self.pin(self.owner), self.pin(self.forwarder)
        # A call that is not recorded: the sink has yet to hear of the claim.
        claimed = self.to_owner.ask(request(rollout_id, b"", method="HEAD"), method="HEAD")
        self.epoch = int(claimed.headers["rollout-claim-epoch"])

    def workers(self) -> list[dict[str, Any]]:
        """The workers as the ready file names them."""
        workers: list[dict[str, Any]] = self.gateway.ready["workers"]
        return workers

    def pin(self, pid: int) -> Pinned:
        """A client of that worker; closed with the pair."""
        return self._connections.enter_context(closing(Pinned(self.gateway, self.control, pid)))

    def clients(self, number: int) -> list[Pinned]:
        """So many clients of the forwarder."""
        return [self.pin(self.forwarder) for _ in range(number)]

    def kill(self, pid: int) -> None:
        """SIGKILL one of the two, and wait for its death."""
        kill_and_wait(pid)
        self.dead.add(pid)

    def ran(self, body: bytes) -> int:
        """How often the application ran a call with this body."""
        return [call.sha256 for call in self.control.runs(self.id)].count(digest(body))

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()
