# SPDX-License-Identifier: Apache-2.0
"""Codex CLI: its pinned package, its configuration, and the events that it prints."""

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rollout_router.harness.configuration import compact_at, environment, toml
from rollout_router.harness.events import NoEvent, events
from rollout_router.harness.port import Dialect, Packages, Setup, Target, Told

__all__ = ["Codex"]

_PROVIDER: Final = "gym"
_PACKAGE: Final = "@openai/codex"
_VERSION: Final = "0.171.0"
_HOME: Final = PurePosixPath(".codex")
_KEY: Final = "ROLLOUT_API_KEY"
_ARCHITECTURES: Final = {"aarch64": ("arm64", "aarch64"), "x86_64": ("x64", "x86_64")}


class Codex:
    """Codex CLI, speaking Responses; it knows no other dialect."""

    name: Final = "codex"
    in_process: Final = False
    subagents: Final = True
    dialects: Final[Sequence[Dialect]] = (Dialect.RESPONSES,)
    packages: Packages = Packages(npm={_PACKAGE: _VERSION})

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """See the port."""
        return [_binary(installed), "--version"], f"codex-cli {_VERSION}"

    def set_up(self, home: PurePosixPath, target: Target) -> Setup:
        """See the port."""
        return Setup(
            files={_HOME / "config.toml": toml(_configuration(target))},
            environment={
                **environment(home),
                "CODEX_HOME": str(home / _HOME),
                _KEY: target.api_key,
            },
        )

    def command(self, installed: Path, target: Target, prompt: str) -> Sequence[str]:  # noqa: ARG002 - the port's; the configuration names the target
        """See the port. Its standard input must be closed: it reads a prompt there, too."""
        return [
            *(_binary(installed), "exec", "--json", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "--", prompt),
        ]

    def read(self, lines: Iterable[str]) -> Told:
        """See the port. It says neither how many answers it took in nor that it compacted.

        Of retries it tells those of streams alone.
        """
        answer: str | None = None
        usage: Counter[str] = Counter()
        problems: list[str] = []
        completed = False
        for event in events(lines):
            if isinstance(event, NoEvent):
                problems.append(event)
                continue
            completed = completed or event["type"] == "turn.completed"
            usage.update(event.get("usage", {}))
            item = event.get("item", {})
            if event["type"] == "item.completed" and item.get("type") == "agent_message":
                answer = item["text"]
            problem = _problem(event)
            if problem is not None:
                problems.append(problem)
        if not completed:
            problems.append("never said that it was done")
        return Told(answer=answer, model_calls=None, usage=usage, problems=tuple(problems))


def _binary(installed: Path) -> str:
    """The program itself; npm's is a script that needs a Node.js and starts this one."""
    machine = platform.machine()
    package, target = _ARCHITECTURES.get(machine, (machine, machine))
    vendor = installed / "node_modules" / f"{_PACKAGE}-linux-{package}" / "vendor"
    return str(vendor / f"{target}-unknown-linux-musl" / "bin" / "codex")


def _configuration(target: Target) -> dict[str, Any]:
    provider = {
        "name": _PROVIDER,
        "base_url": target.base_url,
        "env_key": _KEY,
        "wire_api": "responses",
    }
    return {
        "model": target.model,
        "model_provider": _PROVIDER,
        "model_context_window": target.context_llm_tokens,
        "model_auto_compact_token_limit": compact_at(target.context_llm_tokens),
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        # Both ask for things on the Internet; compressed bodies have no deltas.
        "features": {"plugins": False, "apps": False, "enable_request_compression": False},
        "model_providers": {_PROVIDER: provider},
    }


def _problem(event: Mapping[str, Any]) -> str | None:
    """What went wrong in Codex's eyes, if this event says so."""
    match event["type"]:
        case "error":
            message = event["message"]
            what = "retried" if message.startswith("Reconnecting") else "error"
            return f"{what}: {message}"
        case "turn.failed":
            return f"the turn failed: {event['error']['message']}"
    return None
