# SPDX-License-Identifier: Apache-2.0
"""What is seen of cells that a bench plays, and what must be true of it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Seen", "check", "playing"]

TESTS = Path(__file__).parents[2]

Seen = dict[str, Any]


@contextmanager
def playing(program: str) -> Iterator[Callable[[Mapping[str, Any]], Seen]]:
    """What plays one cell after another, in one process."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-m", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as bench:
        told_to, heard_from = bench.stdin, bench.stdout
        assert told_to is not None
        assert heard_from is not None
        played: dict[str, Seen] = {}

        def play(told: Mapping[str, Any]) -> Seen:
            cell = json.dumps(told)
            if cell not in played:
                told_to.write(cell + "\n")
                told_to.flush()
                played[cell] = json.loads(heard_from.readline())
            return played[cell]

        yield play
        told_to.close()
        assert bench.wait() == 0


def check(seen: Seen, calm: Seen) -> None:
    """A session ended as a calm one does."""
    assert not seen["failed"], seen["failed"]
    assert not seen["unreached"]
    assert seen["effects"] == calm["effects"]
    assert {tuple(one) for one in seen["receipts"]} == {tuple(calm["receipts"][0])}
    rows = seen["journal"]["rows"]
    assert [_lasting(row) for row in rows] == [_lasting(row) for row in calm["journal"]["rows"]]
    for epoch, before in seen["takeovers"]:
        assert rows[: len(before["rows"])] == before["rows"]
        assert all(row[1] >= epoch for row in rows[len(before["rows"]) :])
    assert len(seen["outside"]) - len(calm["outside"]) <= sum(row[8] for row in rows)
    assert seen["left"] == {"operations": [], "payloads": [], "environments": []}


def _lasting(row: list[Any]) -> list[Any]:
    """A row without its claim epoch, and the samples that were lost before it."""
    return [*row[:1], *row[2:8], *row[9:]]
