# SPDX-License-Identifier: Apache-2.0
"""What two runs of one harness may write differently, as rules with names. Pure.

A rule replaces what a harness makes up anew in each run: ids and times. Bodies that are equal as
they are need none. Each rule that was needed is counted, and the report names it.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["RULES", "Rule", "normalised", "same"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that differs from run to run and means nothing."""

    name: str
    why: str
    apply: Callable[[str], tuple[str, int]]
    """The text without it, and how often it stood there."""


def _pattern(name: str, why: str, pattern: str, mark: str) -> Rule:
    compiled = re.compile(pattern)
    return Rule(name=name, why=why, apply=lambda text: compiled.subn(mark, text))


def _numbered(name: str, why: str, pattern: str) -> Rule:
    """Each by its place of first appearance: that two are the same stays visible."""
    compiled = re.compile(pattern)

    def apply(text: str) -> tuple[str, int]:
        seen: dict[str, int] = {}

        def number(found: re.Match[str]) -> str:
            return f"<{name} {seen.setdefault(found[0], len(seen) + 1)}>"

        return compiled.subn(number, text)

    return Rule(name=name, why=why, apply=apply)


def _sorted_metadata(text: str) -> tuple[str, int]:
    """``client_metadata`` with its keys in order."""
    key = '"client_metadata":'
    parts: list[str] = []
    count = at = 0
    while (found := text.find(key, at)) >= 0:
        start = found + len(key)
        try:
            value, end = _DECODER.raw_decode(text, start)
        except ValueError:
            break  # the words stand in a message
        parts += [text[at:start], _sorted(value)]
        at = end
        count += 1
    return "".join([*parts, text[at:]]), count


_DECODER: Final = json.JSONDecoder()


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


RULES: Final[Sequence[Rule]] = (
    Rule(
        name="order of client_metadata",
        why="Codex writes the keys of this object in a random order in each call",
        apply=_sorted_metadata,
    ),
    _numbered(
        "uuid",
        "sessions, threads, turns and windows get a random id",
        r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])",
    ),
    _pattern(
        "id of an OpenCode thing",
        "sessions, messages, parts and kept outputs get an id that begins with the time",
        r"\b(ses|msg|prt|tool|per|usr)_[0-9a-f]{12}[0-9A-Za-z]{14}\b",
        r"<\1-id>",
    ),
    _pattern(
        "time at which a turn began",
        "Codex writes it into the metadata of each call",
        r'(turn_started_at_unix_ms\\*"):\d+',
        r"\1:<time>",
    ),
    _pattern(
        "seconds that a command took",
        "Codex tells the model the wall time of each command",
        r"Wall time: \d+(?:\.\d+)? seconds",
        "Wall time: <time> seconds",
    ),
    _pattern(
        "seconds that a subagent took",
        "Hermes tells the model how long its subagents worked",
        r'(duration_seconds\\*"): [\d.]+',
        r"\1: <time>",
    ),
    _pattern(
        "id of a delegation",
        "Hermes names the log of a subagent at random",
        r"\bdeleg_[0-9a-f]{8}\b",
        "deleg_<id>",
    ),
    _pattern(
        "nickname of a subagent",
        "Codex gives each subagent a name from a list, at random",
        r'(\\*"nickname\\*":\\*")[^"\\]+',
        r"\1<name>",
    ),
    _pattern(
        "file of a long output",
        "Pi keeps what it cuts off in a file with a random name",
        r"\bpi-bash-[0-9a-f]{16}\b",
        "pi-bash-<id>",
    ),
    _pattern(
        "chunk of a command's output",
        "Codex gives each piece of output a random name",
        r"Chunk ID: [0-9a-f]+",
        "Chunk ID: <id>",
    ),
)


def normalised(text: str) -> tuple[str, Counter[str]]:
    """*text* without what the rules name, and how often each rule found something."""
    used: Counter[str] = Counter()
    for rule in RULES:
        text, count = rule.apply(text)
        if count:
            used[rule.name] += count
    return text, used


def same(one: str, other: str, used: Counter[str]) -> bool:
    """Whether two texts mean the same; rules that were needed for it are counted in *used*."""
    if one == other:
        return True
    (one, found), (other, also) = normalised(one), normalised(other)
    if one == other:
        used.update(found | also)
    return one == other
