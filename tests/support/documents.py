# SPDX-License-Identifier: Apache-2.0
"""The commands of the documentation: every fenced block that a reader may type, page by page."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "blocks_of"]

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

ANOTHER_TERMINAL = "<!-- runs: in another terminal -->"
"""Stands above a block whose commands stay in front of their terminal, such as a server's."""

_SHELLS = {"sh", "bash", "console"}
_PROGRAMS = {
    *("cd", "curl", "docker", "export", "git", "kill", "make", "nginx", "pip", "podman", "python"),
    *("python3", "rollout-router", "sudo", "systemctl"),
}
_HERE = re.compile(r"<<'(\w+)'\n")
"""What follows is typed as it stands, up to a line that is this word."""

_FENCE = re.compile(
    r"(?:^(?P<comment><!-- runs: .*? -->)\n+)?^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of commands. *page* is below the repository; *line* its first command's."""

    page: str
    line: int
    text: str
    another_terminal: bool

    def commands(self) -> Iterator[str]:
        """One command after the other: a line, with those that continue it."""
        waiting = ""
        for line in self.text.splitlines():
            waiting += line
            if _is_whole(waiting):
                if shlex.split(_HERE.split(waiting)[0], comments=True):
                    yield waiting
                waiting = ""
            else:
                waiting += "\n"
        if waiting.strip():
            raise ValueError(f"{self.page}:{self.line}: the last command has no end: {waiting}")


def blocks_of(page: Path) -> list[Block]:
    """The blocks of *page* that hold commands: those of a shell, and plain ones that begin so.

    Raises:
        ValueError: a comment above a block says what nobody understands.
    """
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    found = []
    for match in _FENCE.finditer(text):
        if match["comment"] not in {None, ANOTHER_TERMINAL}:
            raise ValueError(f"{name}: {match['comment']} is not {ANOTHER_TERMINAL}")
        begin = {line.split(maxsplit=1)[0] for line in match["text"].splitlines() if line.strip()}
        plain = not match["language"] and begin & _PROGRAMS
        if match["language"] in _SHELLS or plain:
            found.append(
                Block(
                    page=name,
                    line=text.count("\n", 0, match.start("text")) + 1,
                    text=match["text"],
                    another_terminal=match["comment"] is not None,
                )
            )
    return found


def _is_whole(command: str) -> bool:
    if here := _HERE.search(f"{command}\n"):
        return command.endswith(f"\n{here[1]}")
    if command.endswith("\\"):
        return False
    try:
        shlex.split(command, comments=True)
    except ValueError:  # a quotation that is still open
        return False
    return True
