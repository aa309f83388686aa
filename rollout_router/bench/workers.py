# SPDX-License-Identifier: Apache-2.0
"""What the worker processes of a gateway hold."""

import json

import psutil

from rollout_router.processes import Gateway

__all__ = ["pids_of", "resident_bytes"]


def pids_of(gateway: Gateway) -> list[int]:
    """The workers, all of which have said that they are ready."""
    return [worker["pid"] for worker in json.loads(gateway.ready_file.read_text())["workers"]]


def resident_bytes(gateway: Gateway) -> int:
    """Resident memory of all workers together."""
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids_of(gateway))
