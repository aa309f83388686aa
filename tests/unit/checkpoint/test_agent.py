# SPDX-License-Identifier: Apache-2.0
"""The example's agent with a model and an environment that fail as servers do, on real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fastapi import FastAPI
from support.folders import private_folder
from support.recording import TASK, World, dump, on_a_loop, said_after, sql

from rollout_router.asgi import Message
from rollout_router.call import CALL_KEY, Call
from rollout_router.checkpoint import run as run_module
from rollout_router.checkpoint.example.agent import create_agent
from rollout_router.checkpoint.tool_session import Next
from rollout_router.checkpoint.wire import Operation
from rollout_router.claims import FileClaimStore

OPERATIONS = ["seed", "model", "step", "step", "model", "step", "model", "close", "verify"]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where the agents' claim store is, which they only read, and their folders beside it."""
    with private_folder() as place:
        FileClaimStore.open(place / "state", service="agent")
        yield place


@pytest.fixture
def folder(place: Path) -> Path:
    path = place / str(len(list(place.iterdir())))
    path.mkdir(mode=0o700)
    return path


class Servers:
    """A model and an environment; *faults* are answers in place of the next ones of a kind.

    A fault is an answer that nothing was done for, or CUT: it was done, and the answer is not sent.
    """

    CUT = "cut"

    def __init__(self, faults: dict[str, list[Any]] | None = None) -> None:
        self.faults, self.world = faults or {}, World()
        self.asked: list[str] = []
        self.cookies: list[str | None] = []
        self.forgotten: list[str] = []
        self.held, self.reached = "", asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rsplit("/", 1)[1].replace("responses", "model")
        assert request.path.startswith("/ng-rollout/r/")
        self.asked.append(kind)
        operation = Operation.from_headers({k.lower(): v for k, v in request.headers.items()})
        if kind == self.held:
            self.held = ""
            self.reached.set()
            await asyncio.Event().wait()
        fault = self.faults[kind].pop(0) if self.faults.get(kind) else None
        if fault is not None and fault != self.CUT:
            status, text, headers = fault
            return web.Response(status=status, text=text, headers=headers)
        document, headers = await request.json(), {}
        if kind == "model":
            assert operation.environment_id is None
            self.cookies.append(request.headers.get("cookie"))
            document = said_after(document["input"])
            headers["set-cookie"] = f"{document['id']}=x; Path=/"
        else:
            done = self.world.act(Next(kind=kind, request=document), operation)
            document, headers["operation-revision"] = done.value, str(done.revision)
        if fault == self.CUT and request.transport is not None:
            request.transport.close()
        return web.json_response(document, headers=headers)

    async def forget(self, request: web.Request) -> web.StreamResponse:
        self.forgotten.append(request.match_info["environment_id"])
        return web.Response(status=204)


@asynccontextmanager
async def agent_with(folder: Path, servers: Servers) -> AsyncIterator[FastAPI]:
    served = web.Application()
    served.router.add_post("/{path:.*}", servers.answer)
    served.router.add_delete("/ng-control/v1/environments/{environment_id}", servers.forget)
    async with AsyncExitStack() as stack:
        runner = web.AppRunner(served, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}".format(*runner.addresses[0])
        told = {
            "TOOL_AGENT_STATE_DIR": str(folder.parent / "state"),
            "TOOL_AGENT_JOURNAL": str(folder / "journal.sqlite3"),
            "TOOL_AGENT_RUN": "run-1",
            "TOOL_AGENT_MODEL_URL": url,
            "TOOL_AGENT_ENVIRONMENT_URL": url,
        }
        app = create_agent(told)
        await stack.enter_async_context(app.router.lifespan_context(app))
        yield app


async def ask(
    app: FastAPI,
    path: str = "/ng-rollout/r/run",
    body: Any = TASK,
    *,
    epoch: int | None = 1,
    leaves: asyncio.Event | None = None,
) -> tuple[int, bytes]:
    """The status and body that *app* answers a call with, which *leaves* may end."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    come: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if not come:
            await (leaves or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        return come.pop()

    async def send(message: Message) -> None:
        sent.append(dict(message))

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }
    if epoch is not None:
        store_id = app.state.sessions._journal.store_id
        scope[CALL_KEY] = Call(rollout_id="r", claim_epoch=epoch, worker_id="w", store_id=store_id)
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])


@pytest.fixture(scope="module")
def expected(place: Path) -> bytes:
    """What a session says that nothing happened to: the same in every place."""
    servers, calm = Servers(), place / "calm"
    calm.mkdir(mode=0o700)

    async def told() -> tuple[int, bytes]:
        async with agent_with(calm, servers) as app:
            return await ask(app)

    status, said = asyncio.run(told())
    assert (status, servers.asked) == (200, OPERATIONS)
    return said


def code_of(answer: tuple[int, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[1])["error"]["code"]


@on_a_loop
async def test_a_session_is_played_told_again_and_acknowledged(folder: Path) -> None:
    servers, acknowledge = Servers(), "/sessions/r/acknowledge"
    async with agent_with(folder, servers) as app:
        status, said = await ask(app)
        document = json.loads(said)
        assert (status, document["result"]["reward"]) == (200, 0.5)
        assert servers.cookies == [None, "call-0=x", "call-0=x; call-1=x"]
        assert await ask(app, "/sessions/r/run", epoch=2) == (200, said)
        wrong = await ask(app, acknowledge, {"receipt": "x"}, epoch=2)
        assert code_of(wrong) == (409, "receipt_mismatch")
        assert servers.forgotten == []
        for _ in range(2):
            taken = {"receipt": document["receipt"]}
            status, told = await ask(app, acknowledge, taken, epoch=2)
            assert (status, json.loads(told)) == (200, {"acknowledged": document["receipt"]})
        assert code_of(await ask(app, epoch=2)) == (410, "result_acknowledged")
    assert servers.asked == OPERATIONS
    assert servers.forgotten == list(servers.world.environments)


RETRY = {"retry-after": "0"}
PARKED = '{"error":{"code":"checkpoint_parked"}}'
MALFORMED: list[Any] = [
    (200, "{}", {}),
    (200, '{"output":[]}', {}),
    (200, '{"id":"x","output":[{"type":"message","content":"text"}]}', {}),
    (200, '{"id":"x","output":[],"usage":[1]}', {}),
    (200, "null", {}),
]
FAULTS: dict[str, dict[str, list[Any]]] = {
    **{f"{kind} cut": {kind: [Servers.CUT] * 2} for kind in dict.fromkeys(OPERATIONS)},
    **{f"{kind} busy": {kind: [(503, "", RETRY)]} for kind in dict.fromkeys(OPERATIONS)},
    **{f"{kind} parked": {kind: [(409, PARKED, {})]} for kind in ("model", "step")},
    **{f"{kind} wrong": {kind: [(404, "{}", {})]} for kind in OPERATIONS if kind != "model"},
    "model slow down": {"model": [(429, '{"error":{"message":"rate"}}', {})] * 3},
    "model failed": {"model": [(500, "{}", {}), (502, "", {}), (504, "x", {})]},
    "model malformed": {"model": MALFORMED},
    "step malformed": {"step": [(200, "{}", {}), (200, '{"observation":[]}', {})]},
    "verify malformed": {"verify": [(200, '{"reward":"1"}', {}), (200, "{}", {})]},
}


@pytest.mark.parametrize("what", FAULTS)
@on_a_loop
async def test_what_servers_do_is_nothing_to_the_result(
    folder: Path, expected: bytes, what: str
) -> None:
    servers = Servers(FAULTS[what])
    number = sum(len(faults) for faults in FAULTS[what].values())
    async with agent_with(folder, servers) as app:
        assert await ask(app) == (200, expected)
    assert len(servers.asked) == len(OPERATIONS) + number
    assert set(servers.world.applied.values()) == {1}


@pytest.mark.parametrize("kind", dict.fromkeys(OPERATIONS))
@on_a_loop
async def test_a_client_that_leaves_closes_nothing_and_the_next_call_goes_on(
    folder: Path, kind: str
) -> None:
    servers, leaves = Servers(), asyncio.Event()
    servers.held = kind
    async with agent_with(folder, servers) as app:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(app, leaves=leaves))
            await servers.reached.wait()
            leaves.set()
        before, at = list(servers.asked), OPERATIONS.index(kind)
        assert before == OPERATIONS[: at + 1]
        assert len(dump(folder)["operation"]) == at
        status, _ = await ask(app, epoch=2)
    assert status == 200
    assert servers.asked == [*before, *OPERATIONS[at:]]
    assert set(servers.world.applied.values()) == {1}


@pytest.mark.parametrize("status", [401, 403, 404, 410])
@on_a_loop
async def test_a_model_server_that_is_not_the_right_one_is_named_at_once_and_never_a_sample(
    folder: Path, status: int
) -> None:
    wrong: Any = (status, '{"error": {"message": "no such model"}}', {})
    servers = Servers({"model": [wrong]})
    async with agent_with(folder, servers) as app:
        answered, told = await ask(app)
        message = json.loads(told)["error"]["message"]
        assert (answered, servers.asked.count("model")) == (503, 1)
        assert f"{status}: no such model" in message
        assert sql(folder, "SELECT status, next FROM rollout") == [("open", 2)]


@on_a_loop
async def test_a_model_that_refuses_the_conversation_ends_it_and_it_says_so(folder: Path) -> None:
    servers = Servers({"model": [(400, '{"error":{"code":"context_length"}}', {})]})
    async with agent_with(folder, servers) as app:
        status, said = await ask(app)
    assert (status, servers.asked) == (200, ["seed", "model", "close", "verify"])
    assert json.loads(said)["result"]["stopped"] == "model_400"


REFUSED = {
    "no revision": ("step", (200, '{"observation":[],"done":false}', {}), "revision_mismatch", 500),
    "another's": ("step", (409, '{"error":{"code":"operation_conflict"}}', {}), "", 409),
    "stale": ("seed", (409, '{"error":{"code":"stale_attempt"}}', {}), "stale_attempt", 409),
    "long busy": ("verify", (503, "", {"retry-after": "9000"}), "operation_unavailable", 503),
    "always wrong": ("verify", (404, "{}", {}), "operation_unavailable", 503),
}


@pytest.mark.parametrize("what", REFUSED)
@on_a_loop
async def test_no_refusal_of_an_environment_is_a_reward(folder: Path, what: str) -> None:
    kind, fault, code, status = REFUSED[what]
    servers = Servers({kind: [fault] * (run_module.LOST_MAX if "always" in what else 1)})
    async with agent_with(folder, servers) as app:
        told = await ask(app)
        assert code_of(told) == (status, code or "operation_conflict")
        assert dump(folder)["outbox"] == []
        open_still = code in ("operation_unavailable", "stale_attempt")
        assert (await ask(app, epoch=2))[0] == (200 if open_still else 409)


@on_a_loop
async def test_an_environment_that_is_lost_begins_the_rollout_anew(
    folder: Path, expected: bytes
) -> None:
    servers = Servers({"close": [(410, '{"error":{"code":"environment_lost"}}', {})]})
    async with agent_with(folder, servers) as app:
        status, said = await ask(app)
    again = [*OPERATIONS[: OPERATIONS.index("close") + 1], *OPERATIONS]
    assert (status, servers.asked) == (200, again)
    assert json.loads(said)["result"]["usage"] == json.loads(expected)["result"]["usage"]
    assert len(servers.world.environments) == 2
    assert servers.forgotten == list(servers.world.environments)[:1]


@pytest.mark.parametrize(
    ("path", "body", "epoch", "told"),
    [
        ("run", {**TASK, "steps_max": 0}, 1, (400, "task_invalid")),
        ("run", {"scenario": "s"}, 1, (400, "task_invalid")),
        ("run", b"{", 1, (400, "task_invalid")),
        ("run", b"\xff", 1, (400, "task_invalid")),
        ("run", b"[" * 100_000, 1, (400, "task_invalid")),
        ("run", b'{"scenario":"s","seed":NaN}', 1, (400, "task_invalid")),
        ("acknowledge", {}, 1, (400, "acknowledgement_invalid")),
        ("acknowledge", [], 1, (400, "acknowledgement_invalid")),
        ("acknowledge", {"receipt": 1}, 1, (400, "acknowledgement_invalid")),
        ("acknowledge", {"receipt": "x"}, 1, (404, "rollout_unknown")),
        ("run", TASK, None, (400, "rollout_unclaimed")),
        ("acknowledge", {"receipt": "x"}, None, (400, "rollout_unclaimed")),
    ],
)
@on_a_loop
async def test_f1_what_makes_no_sense_or_has_no_claim_changes_nothing(
    folder: Path, *, path: str, body: Any, epoch: int | None, told: tuple[int, str]
) -> None:
    servers = Servers()
    async with agent_with(folder, servers) as app:
        before = dump(folder)
        assert code_of(await ask(app, f"/ng-rollout/r/{path}", body, epoch=epoch)) == told
        assert dump(folder) == before
    assert servers.asked == []
