# SPDX-License-Identifier: Apache-2.0
"""A gateway whose application is the benchmark's, and what its worker processes hold."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil

from rollout_router.processes import Gateway

__all__ = ["pids_of", "resident_bytes", "started"]

_APP: Final = "rollout_router.bench.app:app"


def started(stack: ExitStack, folder: Path, *arguments: str) -> Gateway:
    """A gateway in *folder*, which is made, with more flags of ``serve``; *stack* stops it.

    Raises:
        ServiceFailed: it did not start.
    """
    folder.mkdir()
    gateway = Gateway(folder, "--app", _APP, *arguments)
    stack.callback(gateway.service.stop)
    return gateway


def pids_of(gateway: Gateway) -> list[int]:
    """The workers, all of which have said that they are ready."""
    return [worker["pid"] for worker in json.loads(gateway.ready_file.read_text())["workers"]]


def resident_bytes(gateway: Gateway) -> int:
    """Resident memory of all workers together."""
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids_of(gateway))
