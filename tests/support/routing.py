# SPDX-License-Identifier: Apache-2.0
"""The router without a public server: clients, applications and owners that follow the test.

Nothing here replaces a part of the product: workers have real stores, locks and private sockets.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.call import CALL_KEY, Call
from rollout_router.claims import (
    Claim,
    FileClaimStore,
    Grant,
    LifeLock,
    Moved,
    Owner,
    ProofOfDeath,
    new_nonce,
)
from rollout_router.claims.record import Kind
from rollout_router.routing import Router, Settings
from rollout_router.routing.worker import Worker

__all__ = [
    "PATIENCE_S",
    "AppCall",
    "Application",
    "Client",
    "PausedStore",
    "Rig",
    "Script",
    "ScriptedOwner",
    "answer",
    "never",
]

PATIENCE_S = 20.0
PATH = "/sessions/r1/v1/responses"
Headers = Iterable[tuple[bytes, bytes]]
_Result = TypeVar("_Result")


class Client:
    """One HTTP request, and what came back."""

    def __init__(
        self,
        body: bytes | None = b"{}",
        *,
        path: str = PATH,
        headers: Headers = (),
        method: str = "POST",
        http_version: str = "1.1",
        query: bytes = b"",
    ) -> None:
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": http_version,
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": list(headers),
        }
        self.sent: list[Message] = []
        self.reads = 0
        self.reading = asyncio.Event()  # set when somebody waits for this client to write
        self.answered = asyncio.Event()  # set when the answer has begun
        self.written = asyncio.Event()  # set with each message of the answer; the test clears it
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._gone = False
        if body is not None:
            self.write(body)

    def write(self, piece: bytes, *, more: bool = False) -> None:
        """Send a piece of the request body."""
        self._inbox.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def leave(self) -> None:
        """Close the connection."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def ask(self, app: App) -> "Client":
        """Have *app* answer; raises what it raises."""
        await app(self.scope, self.receive, self.send)
        return self

    async def receive(self) -> Message:
        self.reads += 1
        if self._gone:
            return {"type": "http.disconnect"}
        self.reading.set()
        message = await self._inbox.get()
        self._gone = message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.answered.set()
        self.written.set()
        if self.complete:
            self.leave()  # as a server says it once the answer is out

    @property
    def complete(self) -> bool:
        last = self.sent[-1] if self.sent else {}
        return last.get("type") == "http.response.body" and not last.get("more_body", False)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    def values(self, name: bytes) -> list[bytes]:
        """All values of one header of the answer."""
        return [value for key, value in self.sent[0]["headers"] if key.lower() == name]

    def value(self, name: bytes) -> bytes | None:
        """The one value of a header, None where there is none."""
        found = self.values(name)
        assert len(found) < 2, found
        return found[0] if found else None

    @property
    def mark(self) -> bytes | None:
        return self.value(b"rollout-history")

    @property
    def epoch(self) -> int | None:
        value = self.value(b"rollout-claim-epoch")
        return None if value is None else int(value)

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])


@dataclass(eq=False)
class AppCall:
    """One call of the application, its body read."""

    scope: Scope
    body: bytes
    receive: Receive
    send: Send
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def routed(self) -> Call | None:
        call: Call | None = self.scope.get(CALL_KEY)
        return call

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return list(self.scope["headers"])


Script = Callable[[AppCall], Awaitable[None]]


def answer(
    body: bytes = b"fine", *, status: int = 200, headers: Headers = ()
) -> Callable[[AppCall], Awaitable[None]]:
    """A script that answers at once."""

    async def script(call: AppCall) -> None:
        await call.send({"type": "http.response.start", "status": status, "headers": list(headers)})
        await call.send({"type": "http.response.body", "body": body})

    return script


async def never(_: AppCall) -> None:
    """A script that answers when its call is cancelled: never."""
    await asyncio.Event().wait()


class Application:
    """An application without a lifespan; each call does what the script says."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or answer()
        self.calls: list[AppCall] = []
        self._arrivals: asyncio.Queue[AppCall] = asyncio.Queue()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("this application serves HTTP alone")
        body, more = b"", True
        while more:
            message = await receive()
            assert message["type"] == "http.request"
            body += message.get("body", b"")
            more = message.get("more_body", False)
        call = AppCall(scope, body, receive, send)
        self.calls.append(call)
        self._arrivals.put_nowait(call)
        try:
            await self.script(call)
        except asyncio.CancelledError:
            call.cancelled.set()
            raise

    async def arrived(self) -> AppCall:
        """The next call, once it has read its body."""
        return await self._arrivals.get()


class Pause:
    """Holds a thread at one call of the store until the test lets it go on."""

    def __init__(self, *, after: bool, error: Exception | None) -> None:
        self.reached = asyncio.Event()
        self.after = after
        self._error = error
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()

    def go(self) -> None:
        self._go.set()

    def hold(self) -> None:
        """Called in the thread."""
        self._loop.call_soon_threadsafe(self.reached.set)
        if not self._go.wait(PATIENCE_S):
            raise RuntimeError("the test never let this thread go on")
        if self._error is not None:
            raise self._error


class PausedStore(FileClaimStore):
    """The file store, whose next call of a method can be held in its thread or made to fail."""

    _pauses: dict[str, list[Pause]]

    @classmethod
    def of(cls, state_dir: Path) -> "PausedStore":
        store = cls.open(state_dir, service="model")
        assert isinstance(store, cls)
        store._pauses = {}
        return store

    def pause(self, method: str, *, after: bool = False, error: Exception | None = None) -> Pause:
        """Hold the next call of *method*, before or *after* its work, and fail it with *error*."""
        pause = Pause(after=after, error=error)
        self._pauses.setdefault(method, []).append(pause)
        return pause

    def fail(self, method: str, error: Exception) -> None:
        """Let the next call of *method* fail without doing anything."""
        self.pause(method, error=error).go()

    def take(self, rollout_id: str, owner: Owner, *, kind: Kind = "rollout") -> Grant | Moved:
        return self._held(
            "take", lambda: super(PausedStore, self).take(rollout_id, owner, kind=kind)
        )

    def take_over(self, seen: Claim, owner: Owner, proof: ProofOfDeath) -> Grant | Moved:
        return self._held(
            "take_over", lambda: super(PausedStore, self).take_over(seen, owner, proof)
        )

    def release(self, grant: Grant) -> bool:
        return self._held("release", lambda: super(PausedStore, self).release(grant))

    def _held(self, method: str, work: Callable[[], _Result]) -> _Result:
        waiting = self._pauses.get(method)
        if not waiting:
            return work()
        pause = waiting.pop(0)
        if not pause.after:
            pause.hold()
            return work()
        result = work()
        pause.hold()
        return result


class ScriptedOwner:
    """A living owner whose private socket does what the test says; it has a real life lock."""

    def __init__(self, life: LifeLock) -> None:
        self.life = life
        self.requests: list[bytes] = []  # what came, by connection
        self.server: asyncio.Server | None = None
        self.serving: set[asyncio.Task[None]] = set()

    async def listen(
        self, script: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.serving.add(task)
            try:
                with suppress(asyncio.IncompleteReadError, ConnectionError):
                    await script(reader, writer)
            finally:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()
                self.serving.discard(task)

        self.server = await asyncio.start_unix_server(serve, self.life.identity.socket)

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request with a Content-Length, or without a body."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request

    def die(self) -> None:
        """As after SIGKILL: nobody listens, and the lock is free."""
        if self.server is not None:
            self.server.close()
            Path(self.life.identity.socket).unlink(missing_ok=True)
        self.life.close()


class Rig:
    """Workers of one store, all in this process."""

    def __init__(self, folder: Path) -> None:
        self.state_dir = folder / "state"
        self.run_dir = folder / "run"
        self.routers: list[Router] = []
        self.owners: list[ScriptedOwner] = []
        self._store: FileClaimStore | None = None

    @property
    def store(self) -> FileClaimStore:
        """A handle of the test's own."""
        if self._store is None:
            self._store = FileClaimStore.open(self.state_dir, service="model")
        return self._store

    def settings(self, **changes: Any) -> Settings:
        defaults: dict[str, Any] = {
            "state_dir": self.state_dir,
            "run_dir": self.run_dir,
            "history_delta": True,
            "drain_s_max": PATIENCE_S,
        }
        return Settings(**{**defaults, **changes})

    async def start(self, app: App, **changes: Any) -> tuple[Router, Worker]:
        """A started worker; :meth:`close` ends it if the test does not."""
        router = Router(app, self.settings(**changes))
        await router.start_worker()
        self.routers.append(router)
        assert router.worker is not None
        return router, router.worker

    def pause_claims(self, worker: Worker) -> PausedStore:
        """Put a store that can be held under the worker's ownership."""
        store = PausedStore.of(self.state_dir)
        worker.ownership._store = store
        return store

    def owner(self, rollout_id: str | None = "r1") -> ScriptedOwner:
        """An owner that holds *rollout_id* and does not listen yet."""
        self.run_dir.mkdir(mode=0o700, exist_ok=True)
        nonce = new_nonce()
        socket = str(self.run_dir / f"{nonce}.sock")
        owner = ScriptedOwner(LifeLock.acquire(self.store, nonce=nonce, socket=socket))
        self.owners.append(owner)
        if rollout_id is not None:
            assert isinstance(self.store.take(rollout_id, owner.life.owner), Grant)
        return owner

    def claim(self, rollout_id: str = "r1") -> Claim:
        claim = self.store.read(rollout_id)
        assert claim is not None
        return claim

    def force(self, rollout_id: str = "r1") -> int:
        """Take the claim away, as an operator does."""
        epoch = self.claim(rollout_id).claim_epoch
        return self.store.force(rollout_id, expect_epoch=epoch, reason="the test said so")

    def files_of(self, worker: Worker) -> dict[str, int]:
        """The claims on disk that name *worker*: epochs by rollout."""
        return {
            claim.rollout_id: claim.claim_epoch
            for claim in self.store.survey()
            if isinstance(claim, Claim) and claim.owner.nonce == worker.id
        }

    async def kill(self, worker: Worker) -> None:
        """As after SIGKILL: connections cut, nobody listens, the life lock free, claims left."""
        private = worker._server
        assert private is not None
        server = private._server
        for listener in server.servers:
            listener.close()
        private._socket.close()
        private._close_retired(but=0)
        for connection in list(server.server_state.connections):
            transport: Any = connection.transport
            transport.abort()
        running = list(server.server_state.tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        worker.closed = True
        await worker.tasks.cancel()
        await worker.hops.close()
        worker.ownership.close()
        worker.life.close()
        if worker.placing is not None:
            worker.placing.close()

    async def close(self) -> None:
        for router in self.routers:
            if router.worker is not None and router.worker.life._fd >= 0:
                await self.kill(router.worker)
        for owner in self.owners:
            owner.die()
            if owner.serving:  # their peers are gone, so their scripts end
                await asyncio.wait(owner.serving)
