# SPDX-License-Identifier: Apache-2.0
"""An agent on the OpenAI SDK, of each generation: sdk_agent.py, its deltas made in its process."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

import rollout_router
from rollout_router.harness.configuration import environment
from rollout_router.harness.events import NoEvent, events
from rollout_router.harness.install import python
from rollout_router.harness.port import Dialect, Packages, Setup, Target, Told

__all__ = ["OpenAISdk"]

# Ours come last on the path, so that the SDK's own environment decides what it stands on.
_RUN: Final = """\
import sys
sys.path.append(sys.argv.pop(1))
from rollout_router.harness.sdk_agent import main
sys.exit(main())
"""
_VERSION: Final = "import importlib.metadata as m; print(m.version('openai'))"


class OpenAISdk:
    """The agent on one version of the SDK.

    Args:
        name: what it is called.
        version: of ``openai`` on PyPI.
    """

    in_process: Final = True
    subagents: Final = False
    dialects: Final[Sequence[Dialect]] = (Dialect.CHAT, Dialect.RESPONSES)

    def __init__(self, name: str, version: str) -> None:
        self.name = name
        self.packages = Packages(pypi={"openai": version})

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """See the port."""
        return [str(python(installed)), "-I", "-c", _VERSION], self.packages.pypi["openai"]

    def set_up(self, home: PurePosixPath, target: Target) -> Setup:
        """See the port; the command names the rest of the target."""
        key = {"OPENAI_API_KEY": target.api_key}
        return Setup(files={}, environment={**environment(home), **key})

    def command(self, installed: Path, target: Target, prompt: str) -> Sequence[str]:
        """See the port."""
        return [
            *(str(python(installed)), "-P", "-c", _RUN, str(_root())),
            *("--base-url", target.base_url, "--model", target.model),
            *("--api", target.dialect.value, f"--prompt={prompt}"),
        ]

    def read(self, lines: Iterable[str]) -> Told:
        """See the port."""
        answer: str | None = None
        model_calls = 0
        usage: Counter[str] = Counter()
        problems: list[str] = []
        sent: Mapping[str, int] = {}
        for event in events(lines):
            if isinstance(event, NoEvent):
                problems.append(event)
            elif event["type"] == "call":
                model_calls += 1
                usage.update(_counts(event["usage"]))
            elif event["type"] == "failed":
                problems.append(event["error"])
            elif event["type"] == "done":
                answer = event["answer"]
                (sent,) = event["statistics"]["rollouts"].values()
        if answer is None:
            problems.append("never said that it was done")
        return Told(
            answer=answer,
            model_calls=model_calls,
            usage=usage,
            problems=tuple(problems),
            sent=sent,
        )


def _root() -> Path:
    """The folder from which this package is imported."""
    return Path(sys.modules[rollout_router.__name__].__file__ or "").parents[1]


def _counts(usage: Mapping[str, Any] | None) -> dict[str, int]:
    return {name: count for name, count in (usage or {}).items() if isinstance(count, int)}
