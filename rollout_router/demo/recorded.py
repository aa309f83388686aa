# SPDX-License-Identifier: Apache-2.0
"""Recorded rollouts: every ``*.jsonl`` of a folder, one ``{"rollout_id", "items"}`` a line."""

import json
from collections.abc import Iterator
from pathlib import Path

from rollout_router.demo.conversation import Rollout, Unplayable

__all__ = ["read_rollouts"]


def read_rollouts(folder: Path) -> list[Rollout]:
    """All rollouts of *folder*, by file name and line. Blank lines are passed over.

    Raises:
        Unplayable: names the file, the line, and what is wrong with it.
        OSError: the folder or a file cannot be read.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise Unplayable(f"{folder} holds no *.jsonl: there are no rollouts to play")
    found: dict[str, tuple[Rollout, str]] = {}
    for place, line in _lines(files):
        try:
            rollout = _rollout(line)
        except Unplayable as error:
            raise Unplayable(f"{place}: {error}") from error
        if rollout.rollout_id in found:
            earlier = found[rollout.rollout_id][1]
            raise Unplayable(f"{place}: rollout {rollout.rollout_id} is in {earlier} already")
        found[rollout.rollout_id] = (rollout, place)
    if not found:
        raise Unplayable(f"the *.jsonl of {folder} are empty: there are no rollouts to play")
    return [rollout for rollout, _ in found.values()]


def _lines(files: list[Path]) -> Iterator[tuple[str, bytes]]:
    for path in files:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", line


def _rollout(line: bytes) -> Rollout:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Unplayable(f"this is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise Unplayable("this is no JSON object")
    rollout_id, items = document.get("rollout_id"), document.get("items")
    if not isinstance(rollout_id, str):
        raise Unplayable("it has no string 'rollout_id'")
    if not isinstance(items, list):
        raise Unplayable("it has no list 'items'")
    return Rollout(rollout_id=rollout_id, items=items)
