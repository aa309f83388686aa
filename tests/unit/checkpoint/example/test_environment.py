# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.example import environment, tools
from rollout_router.checkpoint.example.environment import Worlds, create_environment

PREFIXES = ["", "/ng-rollout/r1", "/sessions/r-2.x"]
SEED = {"environment_id": "r1", "scenario": "message", "seed": 3}
NAMED = {"environment_id": "r1"}
JSON = {"content-type": "application/json"}
SAY = {**NAMED, "text": "Anything else?"}


class Server:
    """An environment server, asked without a socket."""

    def __init__(self) -> None:
        self.app, self.worlds = create_environment()

    def ask(self, path: str, document: Any) -> tuple[int, Any]:
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()

        async def posted() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://world") as client:
                return await client.post(path, content=raw, headers=JSON)

        answer = asyncio.run(posted())
        is_json = answer.headers["content-type"] == "application/json"
        return answer.status_code, answer.json() if is_json else answer.text

    def done(self, path: str, document: Any) -> Any:
        status, answer = self.ask(path, document)
        assert status == 200, answer
        return answer

    def refused(self, path: str, document: Any) -> tuple[int, str]:
        status, answer = self.ask(path, document)
        assert not {"reward", "observation", "closed"} & answer.keys()
        return status, answer["error"]["code"]


@pytest.fixture
def server() -> Server:
    return Server()


def use(name: str, arguments: Any) -> dict[str, Any]:
    return {**NAMED, "calls": [{"call_id": "c1", "name": name, "arguments": arguments}]}


def output(answer: Any) -> Any:
    return json.loads(answer["observation"][0]["output"])


def write_to_ada(server: Server, prefix: str = "") -> Any:
    found = output(server.done(f"{prefix}/step", use("find_contacts", '{"name":"Ada"}')))
    arguments = {"contact_id": found["contacts"][0]["contact_id"], "text": "late"}
    return server.done(f"{prefix}/step", use("send_message", json.dumps(arguments)))


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_session_is_played_from_seed_to_verify(server: Server, prefix: str) -> None:
    seeded = server.done(f"{prefix}/seed", SEED)
    assert seeded.keys() == {"environment_id", "observation", "tools", "baseline"}
    assert seeded["environment_id"] == "r1"
    assert seeded["baseline"] == len(seeded["observation"]) == 2
    assert seeded["tools"] == tools.offered()
    assert "message_id" in output(write_to_ada(server, prefix))
    over = server.done(f"{prefix}/step", {**NAMED, "text": "Done."})
    assert over["done"] is True
    assert server.done(f"{prefix}/close", NAMED) == {"closed": True, "messages": 6}
    verified = server.done(f"{prefix}/verify", NAMED)
    assert verified["reward"] == 1.0
    assert server.done(f"{prefix}/verify", NAMED) == verified


@pytest.mark.parametrize(
    ("path", "document"), [("/step", SAY), ("/close", NAMED), ("/verify", NAMED)]
)
def test_an_unknown_environment_never_has_a_reward(
    server: Server, path: str, document: Any
) -> None:
    assert server.refused(path, document) == (404, "environment_unknown")
    server.done("/seed", SEED)
    server.done("/close", NAMED)
    server.worlds.forget("r1")
    server.worlds.forget("r1")
    assert server.refused(path, document) == (404, "environment_unknown")
    assert server.worlds.export("r1") is None


@pytest.mark.parametrize(
    ("before", "path", "document"),
    [
        ([], "/verify", NAMED),
        (["/close"], "/step", SAY),
        (["/close"], "/close", NAMED),
    ],
)
def test_what_comes_at_another_time_is_refused_and_changes_nothing(
    server: Server, before: Sequence[str], path: str, document: Any
) -> None:
    server.done("/seed", SEED)
    for earlier in before:
        server.done(earlier, NAMED)
    state = server.worlds.export("r1")
    assert server.refused(path, document) == (409, "environment_phase")
    assert server.worlds.export("r1") == state


def test_an_environment_is_seeded_once(server: Server) -> None:
    server.done("/seed", SEED)
    state = server.worlds.export("r1")
    assert server.refused("/seed", {**SEED, "seed": 4}) == (409, "environment_exists")
    assert server.worlds.export("r1") == state


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/seed", {**SEED, "scenario": "unheard of"}),
        ("/seed", {**SEED, "seed": "3"}),
        ("/seed", {**SEED, "more": 1}),
        ("/seed", {**SEED, "environment_id": "a/b"}),
        ("/seed", {**SEED, "environment_id": "a\n"}),
        ("/seed", {**SEED, "environment_id": "\ud800"}),
        ("/seed", b"{"),
        ("/step", NAMED),
        ("/step", {**NAMED, "calls": []}),
        ("/step", {**SAY, "calls": [{"call_id": "c1"}]}),
        ("/step", {**NAMED, "text": 7}),
        ("/step", {**NAMED, "text": 7, "calls": [{"call_id": "c1"}]}),
        ("/step", {**NAMED, "calls": [{"name": "find_contacts"}]}),
    ],
)
def test_what_no_agent_should_send_is_refused(server: Server, path: str, document: Any) -> None:
    assert server.refused(path, document) == (400, "operation_invalid")


@pytest.mark.parametrize(
    "step",
    [
        use("fly", "{}"),
        use("find_contacts", "{"),
        use("find_contacts", {"name": "\ud800"}),
        {**NAMED, "calls": [{"call_id": "\ud800"}]},
        {**NAMED, "calls": [{"call_id": "c1", "name": None, "arguments": [1], "type": "x"}]},
        {**NAMED, "text": ""},
        {**NAMED, "text": "\ud800?"},
    ],
)
def test_whatever_a_model_writes_is_answered(server: Server, step: Any) -> None:
    server.done("/seed", SEED)
    answer = server.done("/step", step)
    assert len(answer["observation"]) == 1
    assert answer["done"] is False


def test_an_error_of_the_server_is_no_observation_and_leaves_the_world(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.done("/seed", SEED)
    state = server.worlds.export("r1")

    def broken(world: Any, *, name: str) -> None:
        world.tables["contacts"].clear()
        raise ValueError(name)

    description, parameters, _ = tools.TOOLS["find_contacts"]
    with monkeypatch.context() as patch:
        patch.setitem(tools.TOOLS, "find_contacts", (description, parameters, broken))
        assert server.ask("/step", use("find_contacts", {"name": "Ada"}))[0] == 500
    assert server.worlds.export("r1") == state


@pytest.mark.parametrize("at", ["/step", "/close", "/verify"])
def test_an_environment_lives_on_in_another_server(server: Server, at: str) -> None:
    rest = [("/step", SAY), ("/close", NAMED), ("/verify", NAMED)]
    server.done("/seed", SEED)
    write_to_ada(server)
    names = [name for name, _ in rest]
    for path, document in rest[: names.index(at)]:
        server.done(path, document)
    state = server.worlds.export("r1")
    assert state is not None

    other = Server()
    other.worlds.restore("r1", state)
    for path, document in rest[names.index(at) :]:
        assert other.done(path, document) == server.done(path, document)
    assert other.done("/verify", NAMED)["reward"] == 1.0
    assert other.worlds.export("r1") == server.worlds.export("r1")


def test_a_restore_sets_an_environment_back(server: Server) -> None:
    server.done("/seed", SEED)
    state = server.worlds.export("r1")
    assert state is not None
    first = server.done("/step", SAY)
    server.worlds.restore("r1", state)
    assert server.done("/step", SAY) == first


def test_a_state_that_is_none_is_refused_and_changes_nothing(server: Server) -> None:
    server.done("/seed", SEED)
    state = server.worlds.export("r1")
    with pytest.raises(ValueError, match="state of a world"):
        server.worlds.restore("r1", b"{}")
    assert server.worlds.export("r1") == state


def test_a_full_server_takes_no_more_and_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "WORLDS_MAX", 2)
    worlds = Worlds()
    for name in ("a", "b"):
        worlds.seed(name, "message", 1)
    state = worlds.export("a")
    assert state is not None
    with pytest.raises(CheckpointRefusal) as caught:
        worlds.seed("c", "message", 1)
    assert (caught.value.code, caught.value.retry_after) == ("environment_unavailable", True)
    worlds.restore("a", state)  # it is one of those
    worlds.forget("b")
    worlds.seed("c", "message", 1)
