# SPDX-License-Identifier: Apache-2.0
"""What an agent is led through in a conformance run: pure data, and the words that carry it.

A step is one command, ``sh ./step LABEL``, in a workspace; what it prints holds its marker, so that
a conversation says by itself how far it has come, whatever was retried or compacted on the way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

__all__ = [
    "ANSWER_ID",
    "MAIN",
    "SCENARIOS",
    "Fault",
    "Kind",
    "Scenario",
    "Step",
    "command",
    "marker",
    "progress",
    "prompt",
    "subagent_progress",
    "subagent_prompt",
]

MAIN: Final = "conf-main"
"""Stands in the user's prompt and in every summary, and in no subagent's conversation."""

ANSWER_ID: Final = re.compile(r"conf_[a-z]+\d*_\d+_\d+")
"""What names an answer of the model, in all its tool call ids and in every text that ends a turn:
the conversation, the steps done before it, and which delivery of that question it is."""

SUBAGENT_STEPS: Final = 2

_MARKER: Final = re.compile(r"conf-step-(\d+)([ab]?)-done")


class Kind(StrEnum):
    """How the model has a step done."""

    SHELL = "shell"
    PARALLEL = "parallel"  # two commands in one answer
    SUBAGENT = "subagent"  # by a subagent with a conversation of its own; else as SHELL


class Fault(StrEnum):
    """What meets the first request for a step; each harness asks again after any of them."""

    UNAVAILABLE = "unavailable"  # 503 with Retry-After
    BUSY = "busy"  # 429 with Retry-After; without it Codex gives up
    CUT = "cut"  # after its beginning; where more has come, some act on it and some not, by chance
    CLOSED = "closed"  # before any answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do."""

    kind: Kind = Kind.SHELL
    output_bytes: int = 5_000  # of one command, roughly; no harness shortens that much


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Steps, counted from 1, and what happens beside them."""

    name: str
    steps: tuple[Step, ...]
    compact_every: int | None = None  # the model reports a full context after as many steps
    faults: Mapping[int, Fault] = field(default_factory=lambda: MappingProxyType({}))

    def labels(self, number: int, *, subagents: bool) -> tuple[str, ...]:
        """The commands of step *number* by label; *subagents*: whether the harness has them."""
        kind = self.steps[number - 1].kind
        if kind is Kind.PARALLEL:
            return f"{number}a", f"{number}b"
        if kind is Kind.SUBAGENT and subagents:
            return tuple(f"sub-{number}-{k}" for k in range(1, SUBAGENT_STEPS + 1))
        return (str(number),)

    def calls(self, *, subagents: bool) -> int:
        """Answers in full that the main conversation and its subagents need, faults aside.

        Not among them: titles, summaries, and what a harness asks while a subagent runs.
        """
        delegated = [step for step in self.steps if step.kind is Kind.SUBAGENT and subagents]
        return len(self.steps) + 1 + len(delegated) * (SUBAGENT_STEPS + 1)


def command(label: str) -> str:
    """What the model has the shell run; it does not hold the marker."""
    return f"sh ./step {label}"


def marker(label: str) -> str:
    """What the command prints in its first and last line."""
    return f"conf-step-{label}-done"


def progress(text: str) -> int:
    """The highest step whose markers stand in *text*; 0: none. One step runs after another."""
    seen: dict[int, set[str]] = {}
    for number, half in _MARKER.findall(text):
        seen.setdefault(int(number), set()).add(half)
    return max((n for n, halves in seen.items() if "" in halves or len(halves) > 1), default=0)


def subagent_progress(text: str, number: int) -> int:
    """The same, for what the subagent of step *number* has done."""
    done = re.findall(marker(rf"sub-{number}-(\d+)"), text)
    return max(map(int, done), default=0)


def prompt(scenario: Scenario) -> str:
    """What the user asks for."""
    return (
        f"Work through the scenario {scenario.name} ({MAIN}). Run each step with your shell tool, "
        "exactly as it is given, in order, and each one once. When all steps are done, answer with "
        "one short line."
    )


def subagent_prompt(number: int) -> str:
    """What the main conversation asks of a subagent."""
    return f"This is conf-subagent {number}. Run its steps in the shell, then say that it is done."


_LONG: Final = 100_000

SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario(name="long", steps=(Step(),) * 20),
            Scenario(
                name="mixed",
                steps=(
                    Step(),
                    Step(kind=Kind.PARALLEL),
                    Step(output_bytes=_LONG),
                    Step(),
                    Step(kind=Kind.SUBAGENT),
                    Step(kind=Kind.PARALLEL),
                    Step(),
                ),
            ),
            Scenario(name="compaction", steps=(Step(),) * 30, compact_every=10),
            Scenario(
                name="faults",
                steps=(Step(),) * 7,
                faults=MappingProxyType(
                    {
                        2: Fault.UNAVAILABLE,
                        3: Fault.CUT,
                        5: Fault.CLOSED,
                        6: Fault.BUSY,
                    }
                ),
            ),
        )
    }
)
