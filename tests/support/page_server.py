# SPDX-License-Identifier: Apache-2.0
"""An admin address whose world a test makes: real HTTP and event streams, no workers behind it.

The world is touched on the server's event loop alone: :meth:`PageServer.change` goes there.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse

import rollout_router

__all__ = ["PAGE", "TOKEN", "PageServer", "World"]

PAGE = Path(rollout_router.__file__).parent / "admin" / "page"
TOKEN = "the-admin-token"  # noqa: S105 - of a server that lives as long as a test
FIRST_EPOCH = 4_294_967_297
POLICY = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " object-src 'none'"
    ),
    "Cache-Control": "no-store",
}
START_S = 20.0
T = TypeVar("T")


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class World:
    """Workers, rollouts and a gate."""

    def __init__(self, *, rollouts: int = 3, workers: int = 2) -> None:
        self.now = datetime.now(UTC)
        self.workers = [self._worker(number) for number in range(workers)]
        self.rollouts: dict[str, dict[str, Any]] = {}
        self.timelines: dict[str, list[dict[str, Any]]] = {}
        for number in range(rollouts):
            self.add(f"r-{number:05}", number)
        self.gate: dict[str, Any] = {"open": True, "by": "", "why": ""}
        self.takeovers = 0
        self.series: list[dict[str, Any]] = [self._step(number) for number in range(120)]
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.refusing = False  # streams end, and everything is 503
        self.silent = False  # streams are open, and nothing comes on them
        self.closing = False

    def add(self, rollout_id: str, number: int = 0) -> dict[str, Any]:
        """One more rollout."""
        owner = self.workers[number % len(self.workers)]
        claimed_at = _iso(self.now - timedelta(seconds=60 + number))
        row = {
            "rollout_id": rollout_id,
            "kind": "rollout",
            "state": "owned",
            "claim_epoch": FIRST_EPOCH + number,
            "worker_id": owner["id"],
            "verdict": "alive",
            "turns": number % 97,
            "body_bytes": 1000 * (number % 97),
            "sent_bytes": 100 * (number % 97),
            "in_flight": number % 2,
            "resyncs": 0,
            "claimed_at": claimed_at,
            "last_outcome": ("completed", "failed", None)[number % 3],
            "last_at": _iso(self.now - timedelta(seconds=number % 60)),
        }
        self.rollouts[rollout_id] = row
        self.timelines[rollout_id] = [self._event(row, "claim_taken", at=claimed_at)]
        owner["claims"] += 1
        return row

    def kill(self, worker_id: str) -> None:
        """Its rollouts have a dead owner."""
        self.worker(worker_id).update(verdict="dead", answers=False)
        for row in self.rollouts.values():
            if row["worker_id"] == worker_id:
                row.update(verdict="dead", state="owner_dead")

    def take_over(self, rollout_id: str, to: str) -> None:
        """Give a rollout to another worker, with a higher claim epoch."""
        row = self.rollouts[rollout_id]
        before = row["worker_id"]
        row.update(worker_id=to, claim_epoch=row["claim_epoch"] + 1000, claimed_at=_iso(self.now))
        row.update(verdict="alive", state="owned", turns=1)
        self.timelines[rollout_id].append(
            self._event(row, "claim_taken_over", from_worker=before, reason="owner_dead")
        )
        self.takeovers += 1
        self.series[-1]["takeovers"] += 1

    def worker(self, worker_id: str) -> dict[str, Any]:
        """One of them; StopIteration for a stranger."""
        return next(one for one in self.workers if one["id"] == worker_id)

    def overview(self) -> dict[str, Any]:
        """As the API has it."""
        rows = self.rollouts.values()
        sums = {
            name: sum(row[name] or 0 for row in rows)
            for name in ("in_flight", "turns", "body_bytes", "sent_bytes")
        }
        return {
            "schema": 1,
            "service": "model",
            "store_id": "5f3c0a",
            "url": "http://127.0.0.1:9000",
            "at": _iso(datetime.now(UTC)),
            "workers": self.workers,
            "gate": self.gate,
            "totals": {
                "rollouts": len(rows),
                **sums,
                "saved_bytes": sums["body_bytes"] - sums["sent_bytes"],
                "takeovers": self.takeovers,
                "resyncs": 0,
                "releases": 0,
            },
            "series": self.series,
        }

    def window(self, asked: dict[str, str]) -> dict[str, Any]:
        """The rollouts that were asked for, as the API has them."""
        rows = [row for row in self.rollouts.values() if asked.get("q", "") in row["rollout_id"]]
        for field, name in (("worker", "worker_id"), ("state",) * 2, ("outcome", "last_outcome")):
            if asked.get(field):
                rows = [row for row in rows if row[name] == asked[field]]
        sort = asked.get("sort") or "rollout_id"
        rows.sort(key=lambda row: (row[sort] is not None, row[sort]))
        if asked.get("order") == "desc":
            rows.reverse()
        offset, limit = int(asked.get("offset") or 0), int(asked.get("limit") or 100)
        return {
            "schema": 1,
            "total": len(self.rollouts),
            "matching": len(rows),
            "offset": offset,
            "rollouts": rows[offset : offset + limit],
        }

    def changed_by(self, path: str, body: dict[str, Any]) -> dict[str, Any] | str:
        """Do what was posted, or say why not."""
        self.posts.append((path, body))
        match path.split("/"):
            case ["claims", "reap"]:
                return self._reaped(yes=body["yes"])
            case ["claims", rollout_id, "force"]:
                return self._forced(rollout_id, body)
            case ["workers", worker_id, "drain"]:
                self.worker(worker_id)["leaving"] = True
                return {"worker_id": worker_id}
            case ["admission", what]:
                self.gate = {"open": what == "open", "by": "operator", "why": body.get("why", "")}
                return {"blockers": []}
        raise LookupError(path)

    def _reaped(self, *, yes: bool) -> dict[str, Any]:
        freed = [key for key, row in self.rollouts.items() if row["state"] == "owner_dead"]
        if yes:
            for rollout_id in freed:
                del self.rollouts[rollout_id]
        names = ("lost", "moved", "forgotten", "owners", "sockets", "leftovers")
        empty: dict[str, list[str]] = {name: [] for name in (*names, "unreadable", "failed")}
        return {"done": yes, "owner_missing": None, "freed": freed, **empty}

    def _forced(self, rollout_id: str, body: dict[str, Any]) -> dict[str, Any] | str:
        row = self.rollouts[rollout_id]
        if body["expect_epoch"] != row["claim_epoch"]:
            return f"rollout {rollout_id} has claim epoch {row['claim_epoch']}"
        if body["yes"]:
            del self.rollouts[rollout_id]
        return {
            "done": body["yes"],
            **{name: row[name] for name in ("rollout_id", "kind", "worker_id", "claim_epoch")},
            "fenced_epoch": row["claim_epoch"] + 1 if body["yes"] else None,
        }

    def _worker(self, number: int) -> dict[str, Any]:
        return {
            "id": f"{number:x}" * 20,
            "pid": 1000 + number,
            "socket": f"/run/{number}.sock",
            "verdict": "alive",
            "answers": True,
            "leaving": False,
            "claims": 0,
            "sessions": 0,
            "in_flight": number,
            "parked": 0,
            "bases": 3,
            "base_bytes": 2_500_000,
            "lag_ms": 1.25,
            "started_at": _iso(self.now - timedelta(hours=1)),
        }

    def _step(self, number: int) -> dict[str, Any]:
        return {
            "at": _iso(self.now - timedelta(seconds=5 * (119 - number))),
            "takeovers": 0,
            "saved_bytes": 1000 * (number % 11),
            "sent_bytes": 150 * (number % 7),
            "turns": number % 5,
        }

    def _event(self, row: dict[str, Any], event: str, **more: Any) -> dict[str, Any]:
        return {
            "at": _iso(datetime.now(UTC)),
            "event": event,
            "rollout_id": row["rollout_id"],
            "claim_epoch": row["claim_epoch"],
            "request_id": f"req-{row['claim_epoch']}",
            "reason": None,
            "from_worker": None,
            "worker_id": row["worker_id"],
            **more,
        }


class _Away(Exception):  # noqa: N818 - named by what happened
    """The address answers, and can do nothing."""


class PageServer:
    """The address, for as long as the block lasts.

    Args:
        world: what it knows at first.
        silence_s: how soon the page takes silence for a broken stream, instead of its own time.
    """

    def __init__(self, world: World | None = None, *, silence_s: float | None = None) -> None:
        self.world = world or World()
        self.silence_s = silence_s
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self._application(), log_level="error", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(START_S):
            raise TimeoutError("the server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Go away; more than once is as once."""
        if not self._thread.is_alive():
            return
        self.change(lambda world: setattr(world, "closing", True))
        self._server.should_exit = True
        self._thread.join(START_S)
        self._socket.close()

    def change(self, how: Callable[[World], T]) -> T:
        """Change the world, or look at it; whoever watches is told. Gives what *how* gives."""
        done: Future[T] = Future()

        def act() -> None:
            try:
                done.set_result(how(self.world))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)
            self._tell()

        if self._loop is None:
            raise RuntimeError("not started")
        self._loop.call_soon_threadsafe(act)
        return done.result(START_S)

    def remake(self, **shape: int) -> None:
        """Another world."""
        self.change(lambda _: setattr(self, "world", World(**shape)))

    def write_address(self, state_dir: Path) -> None:
        """Write the file in which commands find the address."""
        document = {"v": 1, "url": self.url, "token": TOKEN, "pid": 1}
        (state_dir / "admin").write_text(json.dumps(document))

    def _tell(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    @asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        yield

    async def _views(self, asked: dict[str, str]) -> AsyncIterator[str]:
        while not (self.world.closing or self.world.refusing):
            changed = self._changed
            if not self.world.silent:
                view = {"overview": self.world.overview(), "rollouts": self.world.window(asked)}
                yield f"event: view\ndata: {json.dumps(view)}\n\n"
            await changed.wait()

    async def _check(self) -> None:
        if self.world.refusing:
            raise _Away("the store is away")

    def _application(self) -> FastAPI:
        app = FastAPI(lifespan=self._life, openapi_url=None)

        @app.exception_handler(_Away)
        async def _away(_: Request, error: Exception) -> JSONResponse:
            return _error(503, str(error))

        @app.get("/api/overview", dependencies=[Depends(self._check)])
        async def _overview() -> JSONResponse:
            return JSONResponse(self.world.overview())

        @app.get("/api/rollouts", dependencies=[Depends(self._check)])
        async def _rollouts(request: Request) -> JSONResponse:
            return JSONResponse(self.world.window(dict(request.query_params)))

        @app.get("/api/rollouts/{rollout_id:path}")
        async def _rollout(rollout_id: str) -> JSONResponse:
            row = self.world.rollouts.get(rollout_id)
            timeline = self.world.timelines.get(rollout_id, [])
            if row is None and not timeline:
                return _error(404, f"nothing is known of rollout {rollout_id}")
            return JSONResponse({"schema": 1, "rollout": row, "claim": None, "timeline": timeline})

        self._add_stream_and_changes(app)
        return app

    def _add_stream_and_changes(self, app: FastAPI) -> None:
        @app.get("/api/stream", dependencies=[Depends(self._check)])
        async def _stream(request: Request) -> StreamingResponse:
            asked = dict(request.query_params)
            return StreamingResponse(self._views(asked), media_type="text/event-stream")

        @app.post("/api/{path:path}", dependencies=[Depends(self._check)])
        async def _change(path: str, request: Request) -> JSONResponse:
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return _error(401, "the admin token does not match: it lies in <state>/admin")
            said = self.world.changed_by(path, await request.json())
            self._tell()
            return _error(409, said) if isinstance(said, str) else JSONResponse(said)

        @app.get("/")
        async def _index() -> Response:
            page = (PAGE / "index.html").read_text(encoding="utf-8")
            if self.silence_s is not None:
                page = page.replace('silence-s="20"', f'silence-s="{self.silence_s}"')
            return Response(page, media_type="text/html", headers=POLICY)

        @app.get("/static/{name}")
        async def _file(name: str) -> Response:
            if not (PAGE / name).is_file():
                return Response(status_code=404)
            return FileResponse(PAGE / name, headers=POLICY)


def _error(status: int, message: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "code": "refused", "param": None}
    return JSONResponse({"error": error}, status_code=status)
