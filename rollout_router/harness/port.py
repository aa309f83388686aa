# SPDX-License-Identifier: Apache-2.0
"""What the conformance run needs of a harness. Another harness is another module like ``pi.py``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Harness", "Place", "Start", "Told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folders of one run; they exist and are empty before it."""

    home: Path  # HOME, and the harness's own files
    work: Path  # where its tools run; its path may stand in prompts
    shell: Path  # the program that its shell tool must run in place of bash


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process to start: the environment is whole, nothing is inherited."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a harness printed about its run."""

    answer: str | None  # the text that it ended with
    model_calls: int  # answers of the model that it took in
    problems: tuple[str, ...]  # anything that went wrong in its eyes, a retry too


class Harness(Protocol):
    """One harness: what to install, how to point it at the shim, and how to read what it says."""

    @property
    def name(self) -> str:
        """What it is called in commands and folders."""

    @property
    def packages(self) -> Mapping[str, str]:
        """The npm packages that it consists of, each with its exact version."""

    @property
    def install_scripts(self) -> Sequence[str]:
        """Those of the packages whose install script must run."""

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """A command that shows that the installation works, and what it must print."""

    def set_up(self, place: Place, *, base_url: str, model: str) -> None:
        """Write the files that point it at *base_url*, an OpenAI base URL that ends in ``/v1``."""

    def start(self, installed: Path, place: Place, *, model: str, prompt: str) -> Start:
        """How one run is started, after :meth:`set_up`, without any network beyond loopback."""

    def read(self, lines: Iterable[str]) -> Told:
        """Understand its standard output."""
