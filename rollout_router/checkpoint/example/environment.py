# SPDX-License-Identifier: Apache-2.0
"""The environment server: worlds over HTTP, under ids that the caller chooses.

    POST …/seed     {environment_id, scenario, seed}         {environment_id, observation, tools,
                                                              baseline}
    POST …/step     {environment_id, calls} or {…, text}     {observation, done}
    POST …/close    {environment_id}                         {closed: true, messages}
    POST …/verify   {environment_id}                         {reward, details}

also below ``/ng-rollout/<id>`` and ``/sessions/<id>``. Each happens wholly or not at all: a world
is replaced by its next state, never changed in place. What is unknown, not closed or closed
already is an error, never a reward.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final, Self, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.example.scenarios import SCENARIOS
from rollout_router.checkpoint.example.tools import offered
from rollout_router.checkpoint.example.world import World, WrongPhase
from rollout_router.checkpoint.wire import IDENTIFIER

__all__ = ["WORLDS_MAX", "Worlds", "create_environment"]

WORLDS_MAX: Final = 4096
"""Environments of one server; it protects memory. Each has at most some tens of KiB."""

_PREFIXES: Final = ("", "/ng-rollout/{rollout_id}", "/sessions/{rollout_id}")
_Result = TypeVar("_Result")


class Worlds:
    """The worlds of this process; and the port through which their states come and go."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}

    def export(self, environment_id: str) -> bytes | None:
        """The whole state of an environment; None where there is none."""
        world = self._worlds.get(environment_id)
        return None if world is None else world.to_bytes()

    def restore(self, environment_id: str, state: bytes) -> None:
        """Make an environment what it was when *state* was exported, whatever it is now.

        Raises:
            ValueError: *state* is no state of a world; the environment is as it was.
            CheckpointRefusal: ``environment_unavailable``: there are too many.
        """
        self._put(environment_id, World.from_bytes(state))

    def forget(self, environment_id: str) -> None:
        """Give an environment up; again is fine."""
        self._worlds.pop(environment_id, None)

    def seed(self, environment_id: str, scenario: str, seed: int) -> dict[str, Any]:
        """Begin an environment.

        Raises:
            CheckpointRefusal: ``environment_exists``, ``operation_invalid``: no such scenario,
                ``environment_unavailable``.
        """
        if environment_id in self._worlds:
            raise _refusal("environment_exists", environment_id, "there is one already")
        if scenario not in SCENARIOS:
            known = ", ".join(SCENARIOS)
            raise _refusal("operation_invalid", environment_id, f"the scenarios are {known}")
        world, observation = World.begin(scenario, seed)
        self._put(environment_id, world)
        return {
            "environment_id": environment_id,
            "observation": observation,
            "tools": offered(),
            "baseline": world.baseline,
        }

    def change(self, environment_id: str, what: Callable[[World], _Result]) -> _Result:
        """Do *what* with the next state of a world, which becomes its state unless it raises.

        Raises:
            CheckpointRefusal: ``environment_unknown``, or ``environment_phase``: not now.
        """
        if (world := self._worlds.get(environment_id)) is None:
            raise _refusal("environment_unknown", environment_id, "there is none: seed it first")
        after = World.from_bytes(world.to_bytes())
        try:
            result = what(after)
        except WrongPhase as error:
            raise _refusal("environment_phase", environment_id, str(error)) from error
        self._worlds[environment_id] = after
        return result

    def _put(self, environment_id: str, world: World) -> None:
        if environment_id not in self._worlds and len(self._worlds) >= WORLDS_MAX:
            why = f"there are {WORLDS_MAX} already"
            raise _refusal("environment_unavailable", environment_id, why)
        self._worlds[environment_id] = world


class _Named(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    environment_id: Annotated[str, StringConstraints(pattern=rf"\A{IDENTIFIER.pattern}\z")]


class _Seed(_Named):
    scenario: str
    seed: int


class _Call(BaseModel):
    """What a model wrote, whatever it wrote."""

    call_id: Any
    name: Any = None
    arguments: Any = None


class _Step(_Named):
    calls: list[_Call] | None = None
    text: Any = None  # a text as a model may write it, also one that has no UTF-8

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        is_text = isinstance(self.text, str)
        if bool(self.calls) == is_text or not (is_text or self.text is None):
            raise ValueError("a step takes calls or a text")
        return self


def create_environment() -> tuple[FastAPI, Worlds]:
    """The application, and the port to the states of its environments."""
    worlds = Worlds()

    async def seed(asked: _Seed) -> Response:
        return _json(worlds.seed(asked.environment_id, asked.scenario, asked.seed))

    async def step(asked: _Step) -> Response:
        calls = None if asked.calls is None else [one.model_dump() for one in asked.calls]
        observation, done = worlds.change(
            asked.environment_id, lambda world: world.step(calls=calls, text=asked.text)
        )
        return _json({"observation": observation, "done": done})

    async def close(asked: _Named) -> Response:
        score = worlds.change(asked.environment_id, World.close)
        return _json({"closed": True, "messages": score["details"]["messages"]})

    async def verify(asked: _Named) -> Response:
        return _json(worlds.change(asked.environment_id, World.verified))

    app = FastAPI(title="tool world", docs_url=None, redoc_url=None, openapi_url=None)
    for kind in (CheckpointRefusal, RequestValidationError):
        app.add_exception_handler(kind, _tell)
    for prefix in _PREFIXES:
        router = APIRouter(prefix=prefix, redirect_slashes=False)
        for endpoint in (seed, step, close, verify):
            router.add_api_route(f"/{endpoint.__name__}", endpoint, methods=["POST"])
        app.include_router(router)
    return app, worlds


def _json(document: Any) -> Response:
    return Response(canonical(document), media_type="application/json")


async def _tell(request: Request, error: Exception) -> Response:
    match error:
        case CheckpointRefusal():
            refusal = error
        case RequestValidationError():
            wrong = "; ".join(f"{one['loc']}: {one['msg']}" for one in error.errors())
            refusal = CheckpointRefusal("operation_invalid", f"{request.url.path}: {wrong:.500}")
        case _:
            raise error
    response = Response(refusal.body(), refusal.status)
    response.raw_headers = refusal.headers()
    return response


def _refusal(code: str, environment_id: str, why: str) -> CheckpointRefusal:
    return CheckpointRefusal(code, f"environment {environment_id}: {why}")
