# SPDX-License-Identifier: Apache-2.0
"""The points of a session at which faults happen, and tables of cells over them.

The session is that of the policy: 1 seed, 2 model, 3 and 4 a call each, 5 model, 6 a call, 7 model,
8 a text, 9 close, 10 verify. Its points are in the order in which a calm one reaches them.
"""

from random import Random
from typing import Final

import pytest

__all__ = [
    "ACTIONS",
    "AGENT",
    "COMMITS",
    "DONE",
    "ONCE",
    "POINTS",
    "REQUESTS",
    "SAMPLES",
    "WRITES",
    "Stop",
    "cells",
    "each",
    "two_deaths",
]

Stop = list[str]  # process, point, target; and action, where it is one of a cell

ACTIONS: Final = ("1", "3", "4", "6", "8", "9", "10")
SAMPLES: Final = ("2", "5", "7")
WRITES: Final = ("unwritten", "commit", "written")
DONE: Final = ("deliver", "acknowledge", "forget")  # the targets of a session that is completed


def operation(target: str) -> list[Stop]:
    """The points of one operation of the session, in their order; without an action."""
    points = [["agent", "begun", target]]
    if target in ACTIONS:
        points += [["environment", one, target] for one in ("arrived", *WRITES, "replied")]
    else:
        points += [["outside", one, target] for one in ("arrived", "replied")]
    return points + [["agent", one, target] for one in WRITES]


_OPEN = [["agent", one, "open"] for one in ("started", *WRITES)]
_OPERATIONS = [point for number in range(1, 11) for point in operation(str(number))]
_COMPLETE = [["agent", one, "complete"] for one in WRITES]
_DELIVER = [["agent", "told", "deliver"], ["agent", "taken", "deliver"]]
_FORGET = [["environment", one, "forget"] for one in ("arrived", *WRITES, "replied")]
_ACKNOWLEDGE = [
    ["agent", "started", "acknowledge"],
    *_FORGET,
    *(["agent", one, "acknowledge"] for one in WRITES),
]
POINTS = [*_OPEN, *_OPERATIONS, *_COMPLETE, *_DELIVER, *_ACKNOWLEDGE]
AGENT = [point for point in POINTS if point[0] == "agent"]
REQUESTS = [point for point in POINTS if point[1] == "arrived"]
COMMITS = [point for point in POINTS if point[1] == "commit"]


def cells(*everyday: str, **tables: list[list[Stop]]) -> pytest.MarkDecorator:
    """All cells of the tables; those that are not named are long."""
    found = {
        "-".join([name, *cell[0][:3]]).replace(" ", "-"): cell
        for name, table in tables.items()
        for cell in table
    }
    assert found.keys() >= set(everyday)
    assert len(found) == sum(map(len, tables.values()))
    long = [pytest.mark.long]
    return pytest.mark.parametrize(
        "stops",
        [
            pytest.param(stops, id=name, marks=[] if name in everyday else long)
            for name, stops in found.items()
        ],
    )


def each(points: list[Stop], *actions: str) -> list[list[Stop]]:
    """A cell for each point, in which *actions* happen at it, one each time that it is reached."""
    return [[[*point, action] for action in actions] for point in points]


_PAYING = {  # where its agent dies, and how often the rollout starts again
    ("agent", "begun", "{}"): 0,
    ("agent", "unwritten", "intent {}"): 0,
    ("agent", "commit", "intent {}"): 0,
    ("agent", "written", "intent {}"): 1,
    ("outside", "arrived", "{}"): 1,
    ("outside", "replied", "{}"): 1,
    ("agent", "unwritten", "{}"): 1,
    ("agent", "commit", "{}"): 1,
    ("agent", "written", "{}"): 0,
}
ONCE = {
    f"{action}-{point}-{target}".format(number).replace(" ", "-"): (
        [who, point, target.format(number), action],
        restarts,
    )
    for (who, point, target), restarts in _PAYING.items()
    for number in (1, 2, 3)
    for action in (
        "kill agent",
        *["freeze begun"] * (point != "commit"),  # nobody begins while it holds the lock
        *["lose"] * (point == "replied"),
    )
}


def two_deaths(seed: int) -> list[Stop]:
    """Two deaths, the second after the first."""
    random = Random(seed)  # noqa: S311 - a table, drawn
    while True:
        one, two = sorted(random.randrange(len(POINTS)) for _ in range(2))
        first, second = POINTS[one], POINTS[two]
        # An operation that was applied is not applied again: its points there pass once.
        recorded = second[0] == "environment" and second[1] in WRITES and second[2] != "forget"
        if one < two and not (recorded and first[2] == second[2]):
            whom = [random.choice(["agent", "environment", "both"]) for _ in range(2)]
            return [[*first, f"kill {whom[0]}"], [*second, f"kill {whom[1]}"]]
