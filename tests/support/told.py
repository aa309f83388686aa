# SPDX-License-Identifier: Apache-2.0
"""Workers that only tell: a life lock, a socket, and answers that a test writes."""

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollout_router.claims import Claim, FileClaimStore, Grant, LifeLock, new_nonce

__all__ = ["Teller", "answer_of", "event", "row"]


def row(rollout_id: str, claim_epoch: int, **fields: Any) -> dict[str, Any]:
    """A rollout as a worker tells of it."""
    return {
        "rollout_id": rollout_id,
        "kind": "rollout",
        "claim_epoch": claim_epoch,
        "claimed_at": "2026-01-01T00:00:00Z",
        "how": "new",
        "turns": 1,
        "body_bytes": 1000,
        "sent_bytes": 100,
        "in_flight": 0,
        "resyncs": 0,
        "last_outcome": "completed",
        "last_at": "2026-01-01T00:00:01Z",
        **fields,
    }


def event(name: str, rollout_id: str | None = None, *, at: str, **fields: Any) -> dict[str, Any]:
    """What happened, as a worker tells of it."""
    return {"at": at, "event": name, "rollout_id": rollout_id, **fields}


def answer_of(worker_id: str, *, cursor: int = 1, **fields: Any) -> dict[str, Any]:
    """What a worker answers to who asks for its changes."""
    return {
        "schema": 1,
        "id": worker_id,
        "pid": 1,
        "cursor": cursor,
        "reset": False,
        "more": False,
        "status": {"leaving": False, "claims": 1, "lag_ms": 0.5},
        "rollouts": [],
        "gone": [],
        "events": [],
        **fields,
    }


class Teller:
    """A worker of *store*. It answers each question with what stands in :attr:`says`.

    Attributes:
        says: fields of :func:`answer_of`; None: it takes the connection, and says nothing.
        asked: the paths that were asked for, in order.
    """

    def __init__(self, store: FileClaimStore, folder: Path) -> None:
        nonce = new_nonce()
        path = folder / f"{nonce}.sock"
        self.store = store
        self.says: dict[str, Any] | None = {}
        self.asked: list[str] = []
        self._silent: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.life = LifeLock.acquire(store, nonce=nonce, socket=str(path))
        self.id = nonce
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def take(self, rollout_id: str) -> Claim:
        """Own a rollout, on disk."""
        taken = self.store.take(rollout_id, self.life.owner)
        assert isinstance(taken, Grant)
        return taken.claim

    def die(self) -> None:
        """As by SIGKILL: the life lock is free, and the socket refuses."""
        self._close()
        self.life.close()

    def leave(self) -> None:
        """In order."""
        self._close()
        self.life.close(remove=True)

    def _close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self._silent:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with suppress(ConnectionError):
                head = connection.recv(65536)
                if head:
                    self.asked.append(head.split()[1].decode())
                if head and self.says is None:
                    self._silent.append(connection)
                    continue
                if head:
                    body = json.dumps(answer_of(self.id, **(self.says or {}))).encode()
                    start = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
                    connection.sendall(start + body)
            connection.close()
