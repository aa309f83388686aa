# SPDX-License-Identifier: Apache-2.0
"""``rollout-router``: the group of all commands."""

import gc
from collections.abc import Mapping
from typing import Any, Final

import click

from rollout_router import __version__
from rollout_router.cli.lazy import LazyGroup

__all__ = ["main"]

_COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "admin": ("admin:admin", "Serve the admin address of a store: page, API and metrics."),
    "admission": ("admission:admission", "Close, open and see the gate of a service."),
    "bench": ("bench:bench", "Measure the stages of a turn, side by side."),
    "checkpoint": ("checkpoint:checkpoint", "Take and bring back checkpoints of agent sessions."),
    "claims": ("claims:claims", "Inspect, free and verify the claims of a store."),
    "config": ("config:config", "Show the settings of a service."),
    "demo": ("demo:demo", "Play rollouts through kills of their owners."),
    "conformance": (
        "conformance:conformance",
        "Run a real harness with deltas and in full, and compare.",
    ),
    "doctor": ("doctor:doctor", "Check a machine and a configuration before a run."),
    "harness": ("harness:harness", "Point an agent harness at a shim."),
    "keys": ("keys:keys", "Make the secret of the rollout keys, and keys."),
    "serve": ("serve:serve", "Run the gateway."),
    "sessions": ("sessions:sessions", "Inspect the sessions of a store."),
    "shim": ("shim:shim", "Run the sandbox side, or write it as one file."),
    "top": ("top:top", "Show workers and rollouts in a terminal, as it happens."),
    "workers": ("workers:workers", "Inspect the workers of a store."),
}


class _Program(LazyGroup):
    """Called as a function it is the whole program, which ends with it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().__call__(*arguments, **options)
        finally:
            # What is left goes with the process: looking through it for garbage, as Python does at
            # its end, took half as long as a process that does nothing.
            gc.freeze()


@click.group(
    cls=_Program, table=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="rollout-router")
def main() -> None:
    """Make a gym server with several worker processes behave as one."""
