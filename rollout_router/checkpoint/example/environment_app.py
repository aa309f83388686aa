# SPDX-License-Identifier: Apache-2.0
"""The environment server: ``serve --app rollout_router.checkpoint.example.environment_app:app``.

``TOOL_ENVIRONMENT_FILE`` names the file that its environments are kept in. With
``TOOL_ENVIRONMENT_RESTART_ONLY`` set their states are not: what a process held goes with it, and
the rollouts begin again from their input.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from rollout_router.asgi import Receive, Scope, Send
from rollout_router.checkpoint.environments import Environments
from rollout_router.checkpoint.example.ending import asking_to_end
from rollout_router.checkpoint.example.environment import create_environment
from rollout_router.checkpoint.receiver import Receiver

__all__ = ["EnvironmentApp", "app"]


class EnvironmentApp:
    """Worlds behind a receiver, from the start of its lifespan to its end.

    Nothing is opened before: a server may import it in one process and serve it in others.
    """

    def __init__(self, told: Mapping[str, str]) -> None:
        self._told = told
        self._receiver: Receiver | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "lifespan":
            if self._receiver is None:
                raise RuntimeError("it is served with a lifespan")
            await self._receiver(scope, receive, send)
            return
        path = Path(self._told["TOOL_ENVIRONMENT_FILE"])
        environments = await asyncio.to_thread(Environments, path, on_poisoned=asking_to_end())
        try:
            app, worlds = create_environment()
            state = None if self._told.get("TOOL_ENVIRONMENT_RESTART_ONLY") else worlds
            self._receiver = Receiver(app, environments, state=state, creates=_makes)
            await self._receiver(scope, receive, send)
        finally:
            self._receiver = None
            await asyncio.to_thread(environments.close)


def _makes(scope: Scope) -> bool:
    return str(scope["path"]).endswith("/seed")


app = EnvironmentApp(os.environ)
