# SPDX-License-Identifier: Apache-2.0
"""What is needed of a harness, to point it at a shim and to run it. One module a harness.

Everything here is pure: an adapter says which files, which environment and which command; others
write, install and start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol

__all__ = ["CONTEXT_LLM_TOKENS", "Dialect", "Harness", "Packages", "Setup", "Target", "Told"]

CONTEXT_LLM_TOKENS = 200_000  # far above what most runs need, so that nothing is compacted


class Dialect(StrEnum):
    """How a harness calls a model."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """What a harness consists of: packages by name, each with its exact version."""

    npm: Mapping[str, str] = field(default_factory=dict)
    npm_install_scripts: Sequence[str] = ()  # those of them whose install script must run
    pypi: Mapping[str, str] = field(default_factory=dict)  # into an environment of their own
    python: tuple[tuple[int, int], tuple[int, int]] = ((3, 11), (3, 13))  # of it: least and most


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The model that a harness is pointed at."""

    base_url: str  # ends in /v1, whatever the dialect; an adapter takes off what its own adds
    model: str
    dialect: Dialect
    api_key: str = "unused"
    context_llm_tokens: int = CONTEXT_LLM_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What points a harness at a target."""

    files: Mapping[PurePosixPath, str]  # below the harness's home, relative to it
    environment: Mapping[str, str]  # on top of PATH; HOME and everything that the harness reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a harness printed about its run."""

    answer: str | None  # the text that it ended with
    model_calls: int | None  # answers of the model that it took in; None: it does not say
    usage: Mapping[str, int]  # LLM tokens in its own words, summed over the run; empty: not said
    problems: tuple[str, ...]  # what went wrong in its eyes; ``retried: …``, ``compacted: …``
    sent: Mapping[str, int] = field(default_factory=dict)  # by one that sends deltas itself


class Harness(Protocol):
    """One harness."""

    @property
    def name(self) -> str:
        """What it is called in commands and folders."""

    @property
    def in_process(self) -> bool:
        """Whether it sends deltas itself, so that no shim stands before it."""

    @property
    def subagents(self) -> bool:
        """Whether the model may have it start others, with conversations of their own."""

    @property
    def dialects(self) -> Sequence[Dialect]:
        """Those that it speaks here; the first is its own choice."""

    @property
    def packages(self) -> Packages:
        """What to install."""

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """A command that shows that the installation works, and what it must print."""

    def set_up(self, home: PurePosixPath, target: Target) -> Setup:
        """What points it at *target*; *home* is an absolute folder of its own."""

    def command(self, installed: Path, target: Target, prompt: str) -> Sequence[str]:
        """Starts one run after :meth:`set_up`, without any network beyond loopback."""

    def read(self, lines: Iterable[str]) -> Told:
        """Understand its standard output."""
