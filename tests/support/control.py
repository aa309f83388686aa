# SPDX-License-Identifier: Apache-2.0
"""Remote control of the application under test: each of its calls reports here and obeys.

The application (``support.app``) runs in the workers; the test runs the :class:`Control`. A call
connects to the control's Unix socket, reports what it was given, and does what it is told. So a
test waits for events, never for time: a call that arrived, a call that is gone.
"""

import json
import socket
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Call", "Control"]

PATIENCE_S = 30.0


class Call:
    """One call of the application, as the application saw it."""

    def __init__(self, connection: socket.socket, report: dict[str, Any]) -> None:
        self._connection = connection
        self.pid: int = report["pid"]
        self.path: str = report["path"]
        self.rollout_id: str | None = report["rollout_id"]
        self.claim_epoch: int | None = report["claim_epoch"]
        self.sha256: str = report["sha256"]
        self.headers: dict[str, str] = report["headers"]

    def answer(
        self, body: str = "{}", *, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Answer whole."""
        self._tell({"do": "answer", "status": status, "body": body, "headers": headers or {}})

    def begin(self, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Begin a streamed answer."""
        self._tell({"do": "begin", "status": status, "headers": headers or {}})

    def send(self, chunk: str) -> None:
        """One chunk of a streamed answer."""
        self._tell({"do": "send", "chunk": chunk})

    def end(self) -> None:
        """The end of a streamed answer."""
        self._tell({"do": "end"})

    def fail(self) -> None:
        """Raise in the application."""
        self._tell({"do": "fail"})

    def spawn(self, how: str) -> int:
        """Start a child that lives until it is killed; ``support.app`` names the ways. Its pid."""
        self._tell({"do": "spawn", "how": how})
        with self._connection.makefile("rb") as lines:
            return int(lines.readline())

    def wait_gone(self) -> None:
        """Wait until the call is over, cancelled, or its process dead."""
        self._connection.settimeout(PATIENCE_S)
        try:
            while self._connection.recv(4096):
                pass
        except ConnectionError:
            return

    def close(self) -> None:
        """Nothing more is said to it, or heard of it. Again is fine."""
        self._connection.close()

    def _tell(self, order: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(order).encode() + b"\n")


class Control:
    """Takes the reports of all workers. Calls of rollouts not held are answered at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[Call] = []  # every execution, in order of arrival
        self._held: set[str] = set()
        self._waiting: dict[str, deque[Call]] = {}
        self._changed = threading.Condition()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._thread = threading.Thread(target=self._accept, name="control", daemon=True)
        self._thread.start()

    def hold(self, rollout_id: str) -> None:
        """From now on calls of *rollout_id* wait for the test."""
        with self._changed:
            self._held.add(rollout_id)

    def unhold(self, rollout_id: str) -> None:
        """From now on calls of *rollout_id* are answered at once again."""
        with self._changed:
            self._held.discard(rollout_id)

    def next_call(self, rollout_id: str) -> Call:
        """Wait for the next held call of *rollout_id*."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: self._waiting.get(rollout_id), PATIENCE_S)
            if not arrived:
                raise TimeoutError(f"no call of rollout {rollout_id} reached the application")
            return self._waiting[rollout_id].popleft()

    def runs(self, rollout_id: str) -> list[Call]:
        """Every execution of *rollout_id* so far."""
        with self._changed:
            return [call for call in self.calls if call.rollout_id == rollout_id]

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._listener.close()
        for call in self.calls:
            call.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            line = b""
            while not line.endswith(b"\n"):
                part = connection.recv(65536)
                if not part:
                    break
                line += part
            if line.endswith(b"\n"):
                self._arrived(Call(connection, json.loads(line)))
            else:  # it ended before it could report
                connection.close()

    def _arrived(self, call: Call) -> None:
        with self._changed:
            self.calls.append(call)
            held = call.rollout_id in self._held
            if held and call.rollout_id is not None:
                self._waiting.setdefault(call.rollout_id, deque()).append(call)
            self._changed.notify_all()
        if not held:
            with suppress(ConnectionError):  # it may have been cancelled since
                call.answer()
            call.close()  # there are many of them
