# SPDX-License-Identifier: Apache-2.0
"""Reads what a shim wrote of the times of its calls (``--timings-file``). Pure."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["GYM", "SANDBOX", "by_rollout", "stages_of"]

SANDBOX: Final[Mapping[str, str]] = {
    "sandbox local hop": "local_hop_ms",
    "sandbox delta": "delta_ms",
    "sandbox other": "other_ms",
}
"""The stages on the sandbox side, by the key of a call's line that holds each."""

_GYM: Final = ("claim", "admission", "read", "hop", "rebuild")
GYM: Final = (*(f"gym {name}" for name in _GYM), "gym other")
"""The stages on the gym's side, for a gateway that tells them (``serve --server-timing``)."""


def by_rollout(lines: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The calls of each rollout, as the lines of the file tell them, in their order.

    Raises:
        KeyError, ValueError: one is no such line.
    """
    calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for call in map(json.loads, lines):
        calls[call["rollout"]].append(call)
    return calls


def stages_of(call: Mapping[str, Any]) -> dict[str, float]:
    """The stages that one call had, by name, in milliseconds; the application is none of them.

    Args:
        call: a line of the file.

    Raises:
        KeyError, ValueError: it is no such line.
    """
    found = {name: float(call[key]) for name, key in SANDBOX.items()}
    told = _server_timing(call["server_timing"] or "")
    found |= {f"gym {name}": told[name] for name in _GYM if name in told}
    if "app" in told:
        spent_ms = sum(told.get(name, 0.0) for name in (*_GYM, "app"))
        found["gym other"] = max(0.0, call["wait_ms"] - spent_ms)  # rounding may make it less
    return found


def _server_timing(header: str) -> dict[str, float]:
    """Milliseconds by name."""
    entries = (entry.strip().partition(";dur=") for entry in header.split(","))
    return {name: float(duration) for name, _, duration in entries if duration}
