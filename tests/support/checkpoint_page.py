# SPDX-License-Identifier: Apache-2.0
"""The parts of docs/checkpoint.md that are drawn from the tables of the code."""

from collections import defaultdict
from collections.abc import Iterable

from rollout_router.checkpoint import phases, tool_session
from rollout_router.checkpoint.errors import CODES

__all__ = ["drawn"]


def _diagram(edges: Iterable[tuple[str, str, str]]) -> str:
    """Edges from, event, to; several events of one pair share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for before, event, after in edges:
        arrows[before, after].append(event)
    ends = {"none": "[*]"}
    lines = [
        f"    {ends.get(before, before)} --> {ends.get(after, after)}: {', '.join(events)}"
        for (before, after), events in arrows.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def drawn() -> list[str]:
    """Each part, as the page has it."""
    codes = ["| code | status | outcome |", "|---|---|---|"]
    codes += [f"| `{name}` | {code.status} | {code.outcome} |" for name, code in CODES.items()]
    session = [
        (before, kind, after)
        for (before, kind), allowed in tool_session.TRANSITIONS.items()
        for after in allowed
    ]
    checkpoint = [(before, event, after) for (before, event), after in phases.TRANSITIONS.items()]
    return ["\n".join(codes), _diagram(session), _diagram(checkpoint)]
