# SPDX-License-Identifier: Apache-2.0
"""NeMo Gym's ToolSandbox server, whose environments outlive its process and can be carried over.

Only the gym's own Python imports this: it needs NeMo Gym 0.7 and what ToolSandbox asks for.

* The state of an environment is what the stock server holds of it but the roles, which keep
  nothing: the context with its tables and its console, the scenario's evaluation, the caps; after
  the close its score. Scenarios read the clock and shuffle their tools when they are built, so
  none of it is taken from those of the process that restores.
* It is written by dill, as ToolSandbox itself copies a context between parallel calls. To read it
  is to run what it says: whoever may write the file, or import a document, may run code here.
* It is read where Python and packages are those that wrote it. Elsewhere the environment is lost,
  and its rollout starts again from its input.
* An environment has the id that its operation names, and its score stays until it is given up.
  Where the stock server has none it answers a reward of 0.0; this one refuses.
"""

import asyncio
import platform
from collections.abc import Container
from importlib.metadata import version
from pathlib import Path
from typing import Final

import dill
import polars as pl
from fastapi import FastAPI, Request
from resources_servers.toolsandbox.app import ToolSandboxResourcesServer
from resources_servers.toolsandbox.schemas import (
    ToolSandboxCloseRequest,
    ToolSandboxCloseResponse,
    ToolSandboxResourcesServerConfig,
    ToolSandboxSeedSessionRequest,
    ToolSandboxSeedSessionResponse,
    ToolSandboxStepRequest,
    ToolSandboxStepResponse,
    ToolSandboxVerifyRequest,
    ToolSandboxVerifyResponse,
)

from rollout_router.asgi import App, Receive, Scope, Send
from rollout_router.checkpoint.digests import canonical
from rollout_router.checkpoint.environments import Environments
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.receiver import Receiver
from rollout_router.checkpoint.wire import ENVIRONMENT

__all__ = ["KeptToolSandbox", "KeptToolSandboxConfig", "SandboxStates"]

_MADE_WITH: Final = canonical(
    {
        "python": platform.python_version_tuple()[:2],
        "polars": pl.__version__,
        **{name: version(name) for name in ("dill", "nemo-gym")},
    }
).encode()
"""The first line of every state."""


class KeptToolSandboxConfig(ToolSandboxResourcesServerConfig):  # type: ignore[misc]  # Gym is not there for the checker
    """The stock configuration, and where environments are kept.

    Attributes:
        environments_file: a SQLite file on a local disk, for all workers of this server.
    """

    environments_file: Path


class KeptToolSandbox(ToolSandboxResourcesServer):  # type: ignore[misc]  # as above
    """The stock server behind a receiver: every change is an operation that names itself."""

    config: KeptToolSandboxConfig

    def setup_webserver(self) -> FastAPI:
        """The stock application; its environments are opened when it starts."""
        app: FastAPI = super().setup_webserver()
        app.add_middleware(_Kept, server=self)
        return app

    async def seed_session(
        self, request: Request, body: ToolSandboxSeedSessionRequest
    ) -> ToolSandboxSeedSessionResponse:
        """Begin the environment that the operation names."""
        if not 0 <= body.task_idx < (known := len(self.scenario_index)):
            raise CheckpointRefusal(
                "operation_invalid", f"there are scenarios 0 to {known - 1}, and no {body.task_idx}"
            )
        environment_id = request.headers[ENVIRONMENT]
        made = await super().seed_session(request, body)
        self.envs[environment_id] = self.envs.pop(made.env_id)
        return made.model_copy(update={"env_id": environment_id})

    async def step(self, request: Request, body: ToolSandboxStepRequest) -> ToolSandboxStepResponse:
        """One turn, of an environment that is not closed."""
        _check(request, body.env_id, self.envs, "it is closed")
        return await super().step(request, body)

    async def close(
        self, request: Request, body: ToolSandboxCloseRequest
    ) -> ToolSandboxCloseResponse:
        """Score an environment, once."""
        _check(request, body.env_id, self.envs, "it is closed already")
        return await super().close(request, body)

    async def verify(
        self, request: Request, body: ToolSandboxVerifyRequest
    ) -> ToolSandboxVerifyResponse:
        """The score of an environment that is closed."""
        environment_id = body.response.env_id
        _check(request, environment_id, self.scoring, "it is not closed: there is no score")
        score = self.scoring[environment_id]
        verdict = await super().verify(body)  # takes the score away
        self.scoring[environment_id] = score
        return verdict


class SandboxStates:
    """The port through which the states of a server's environments come and go."""

    def __init__(self, server: ToolSandboxResourcesServer) -> None:
        self._server = server

    def export(self, environment_id: str) -> bytes | None:
        """The whole state of an environment; None where there is none."""
        played = self._server.envs.get(environment_id)
        score = self._server.scoring.get(environment_id)
        if played is None and score is None:
            return None
        if played is not None:
            played = {name: value for name, value in played.items() if name != "roles"}
        state: bytes = dill.dumps((played, score))
        return _MADE_WITH + b"\n" + state

    def restore(self, environment_id: str, state: bytes) -> None:
        """Make an environment what it was when *state* was exported, whatever it is now.

        Raises:
            CheckpointRefusal: ``environment_lost``: another Python or package wrote it.
        """
        made_with, _, pickled = state.partition(b"\n")
        if made_with != _MADE_WITH:
            raise CheckpointRefusal(
                "environment_lost",
                f"its state was written by {made_with[:200]!r}, and this is {_MADE_WITH.decode()}",
            )
        played, score = dill.loads(pickled)  # noqa: S301 - ours, or of a document that was checked
        self.forget(environment_id)
        if played is not None:
            roles = self._server._make_roles()  # noqa: SLF001 - Gym has no other way to them
            self._server.envs[environment_id] = {**played, "roles": roles}
        if score is not None:
            self._server.scoring[environment_id] = score

    def forget(self, environment_id: str) -> None:
        """Give an environment up; again is fine."""
        self._server.envs.pop(environment_id, None)
        self._server.scoring.pop(environment_id, None)


class _Kept:
    """The receiver around a server's application, from the start of its lifespan to its end."""

    def __init__(self, app: App, *, server: KeptToolSandbox) -> None:
        self._app = app
        self._server = server
        self._receiver: Receiver | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif self._receiver is None:
            raise RuntimeError("it is served with a lifespan")
        elif scope["path"].endswith("/aggregate_metrics"):  # a POST that changes nothing
            await self._app(scope, receive, send)
        else:
            await self._receiver(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._server.config.environments_file
        environments = await asyncio.to_thread(Environments, path)
        try:
            states = SandboxStates(self._server)
            self._receiver = Receiver(self._app, environments, state=states, creates=_makes)
            await self._receiver(scope, receive, send)
        finally:
            self._receiver = None
            await asyncio.to_thread(environments.close)


def _makes(scope: Scope) -> bool:
    return str(scope["path"]).endswith("/seed_session")


def _check(request: Request, environment_id: str, held: Container[str], otherwise: str) -> None:
    """Refuse an operation whose body means another environment, or one that is not *held* now."""
    if environment_id != (named := request.headers[ENVIRONMENT]):
        raise CheckpointRefusal(
            "operation_invalid", f"its body is for environment {environment_id!r}, not for {named}"
        )
    if environment_id not in held:
        raise CheckpointRefusal("environment_phase", otherwise)
