# SPDX-License-Identifier: Apache-2.0
"""The folder in which a harness's tools run, and the check of what they did there.

Its program ``step`` does one step: it notes it in ``log``, appends the step's text to its file in
``out``, so that a step that ran twice shows, and prints it. The texts look like what builds and
tests print, and are the same in every run. zlib makes 5 KB of them 4.3 times shorter; it made
recorded outputs of 3 to 6 KB 2.6, 2.9 and 4.3 times shorter (quartiles), so ratios that compress
them are ratios for texts that compress well.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rollout_router.harness.pause import PAUSE_AT, PROCEED, REACHED
from rollout_router.harness.scenario import Kind, Scenario, marker

__all__ = ["make_workspace", "text_of", "verify"]

_PROGRAM: Final = f"""\
#!/bin/sh
# Does one step: sh ./step LABEL
set -eu
cd "$(dirname "$0")"
if [ -e {PAUSE_AT} ] && [ "$(cat {PAUSE_AT})" = "$1" ]; then
    rm {PAUSE_AT}
    echo "$1" > {REACHED}
    read -r _ < {PROCEED}
fi
echo "$1" >> log
cat "texts/$1" >> "out/step-$1"
cat "texts/$1"
"""
_ROOMS: Final = ("codec", "index", "ledger", "lexer", "planner", "replay", "socket", "store")
_THINGS: Final = ("bounds", "checksum", "cursor", "deadline", "header", "offset", "quota", "window")
_VERBS: Final = ("accepts", "drops", "keeps", "merges", "orders", "rejects", "restores", "splits")


def make_workspace(folder: Path, scenario: Scenario) -> None:
    """Fill *folder*, which exists and is empty. A step stops in it as pause.py says."""
    (folder / "step").write_text(_PROGRAM)
    (folder / "log").touch()
    for name in ("out", "texts"):
        (folder / name).mkdir()
    for label, text in _texts(scenario):
        (folder / "texts" / label).write_text(text)


def verify(folder: Path, scenario: Scenario, *, subagents: bool) -> list[str]:
    """What is wrong with the work in *folder*; empty: each step ran once, in order, in full.

    Args:
        folder: as :func:`make_workspace` filled it, after the run.
        scenario: the same.
        subagents: whether the harness has them.
    """
    ran = (folder / "log").read_text().split()
    found = []
    expected: list[str] = []
    for number in range(1, len(scenario.steps) + 1):
        labels = scenario.labels(number, subagents=subagents)
        if scenario.steps[number - 1].kind is Kind.PARALLEL:  # they may end in any order
            labels = tuple(sorted(labels, key=lambda label: _place(ran, label)))
        expected += labels
    if ran != expected:
        found.append(f"the steps ran as {' '.join(ran)}, not as {' '.join(expected)}")
    texts = dict(_texts(scenario))
    files = {
        "step": _PROGRAM,
        "log": "".join(f"{label}\n" for label in ran),
        **{f"texts/{label}": text for label, text in texts.items()},
        **{f"out/step-{label}": texts[label] for label in expected},
    }
    there = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.is_dir() and str(path.relative_to(folder)) not in {PAUSE_AT, REACHED, PROCEED}
    }
    found += [f"{name} is missing" for name in sorted(files.keys() - there)]
    found += [f"{name} is not of any step" for name in sorted(there - files.keys())]
    for name in sorted(there & files.keys()):
        if (folder / name).read_text(errors="replace") != files[name]:
            found.append(f"{name} does not hold what it should")
    return found


def text_of(label: str, output_bytes: int) -> str:
    """What step *label* prints: about *output_bytes*, its marker in its first and last line."""
    numbers = random.Random(label)  # noqa: S311 - the same text in every run
    room = numbers.choice(_ROOMS)
    lines = [f"step {label}: {marker(label)}"]
    size = len(lines[0])
    while size < output_bytes:
        lines.append(_line(numbers, room, len(lines)))
        size += len(lines[-1]) + 1
    lines.append(f"step {label} is finished: {marker(label)}")
    return "\n".join(lines) + "\n"


def _texts(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """The texts of all commands by label, those that only some harnesses run among them."""
    for number, step in enumerate(scenario.steps, start=1):
        for subagents in {False, step.kind is Kind.SUBAGENT}:
            for label in scenario.labels(number, subagents=subagents):
                yield label, text_of(label, step.output_bytes)


def _place(ran: list[str], label: str) -> int:
    return ran.index(label) if label in ran else len(ran)


def _line(numbers: random.Random, room: str, at: int) -> str:
    """A line of the report of a build and its tests."""
    thing, verb = (numbers.choice(words) for words in (_THINGS, _VERBS))
    source = f"src/{room}/{thing}.c"
    match numbers.randrange(5):
        case 0:
            return f"[{at:4}] CC  {source} -> build/{room}-{thing}.o"
        case 1:
            line, column = numbers.randrange(1, 900), numbers.randrange(1, 100)
            return f"{source}:{line}:{column}: warning: unused variable '{thing}_{verb}'"
        case 2:
            passed = f"{numbers.randrange(1, 4000) / 1000:.3f}s"
            return f"tests/test_{room}.py::test_{room}_{verb}_{thing} PASSED ({passed})"
        case 3:
            size, digest = numbers.randrange(100, 90_000), f"{numbers.getrandbits(48):012x}"
            return f"  wrote {size:6} bytes to build/{room}.a, digest {digest}"
        case _:
            return f"INFO {room}: {verb} {thing} at offset {numbers.randrange(1 << 20)}"
