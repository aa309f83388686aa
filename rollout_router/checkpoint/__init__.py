# SPDX-License-Identifier: Apache-2.0
"""Agent sessions that continue after the death of any process, on the fences of the claims (F1).

    agent server          Sessions ── Run ── Journal         what was done, and results until taken
    environment server    Receiver ── Environments           each operation once, whoever repeats it
    operator              Checkpoints                        prepare, commit, resume, restore

Each name is imported on first use: what reads a journal needs no HTTP client. docs/checkpoint.md is
the manual, :mod:`rollout_router.checkpoint.example` a pair of servers.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rollout_router.checkpoint.client import Caller
    from rollout_router.checkpoint.control import Checkpoints
    from rollout_router.checkpoint.effects import Lost, NotPerformed, Performed
    from rollout_router.checkpoint.environment_server import EnvironmentServer
    from rollout_router.checkpoint.environments import Environments
    from rollout_router.checkpoint.errors import CheckpointRefusal
    from rollout_router.checkpoint.held import StatePort
    from rollout_router.checkpoint.journal import Journal
    from rollout_router.checkpoint.receiver import Receiver
    from rollout_router.checkpoint.refusing import Completed
    from rollout_router.checkpoint.run import Run
    from rollout_router.checkpoint.sessions import Sessions, source_digest
    from rollout_router.checkpoint.wire import Operation

__all__ = [
    "Caller",
    "CheckpointRefusal",
    "Checkpoints",
    "Completed",
    "EnvironmentServer",
    "Environments",
    "Journal",
    "Lost",
    "NotPerformed",
    "Operation",
    "Performed",
    "Receiver",
    "Run",
    "Sessions",
    "StatePort",
    "source_digest",
]

_HOME: Final[Mapping[str, str]] = {
    "Caller": "client",
    "CheckpointRefusal": "errors",
    "Checkpoints": "control",
    "Completed": "refusing",
    "EnvironmentServer": "environment_server",
    "Environments": "environments",
    "Journal": "journal",
    "Lost": "effects",
    "NotPerformed": "effects",
    "Operation": "wire",
    "Performed": "effects",
    "Receiver": "receiver",
    "Run": "run",
    "Sessions": "sessions",
    "StatePort": "held",
    "source_digest": "sessions",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found
