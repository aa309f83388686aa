# SPDX-License-Identifier: Apache-2.0
"""Pi, the coding agent: its pinned packages, its configuration, and the events that it prints.

It runs on a Node.js of its own from npm, since it needs a newer one than many machines have. With
``--mode json`` it exits with 0 even when a model call failed, so its events are read as well.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rollout_router.harness.port import Place, Start, Told

__all__ = ["Pi"]

_PROVIDER: Final = "gym"
_PACKAGE: Final = "@earendil-works/pi-coding-agent"
_CONTEXT_LLM_TOKENS: Final = 200_000  # far above what a run needs, so that nothing is compacted
_ANSWER_LLM_TOKENS_MAX: Final = 8_192


class Pi:
    """Pi, speaking Chat Completions."""

    name: Final = "pi"
    packages: Final[Mapping[str, str]] = {_PACKAGE: "1.6.0", "node": "24.21.0"}
    install_scripts: Final[Sequence[str]] = ("node",)  # it fetches the binary of this machine

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """See the port."""
        return [*_command(installed), "--version"], self.packages[_PACKAGE]

    def set_up(self, place: Place, *, base_url: str, model: str) -> None:
        """See the port."""
        folder = _configuration(place)
        folder.mkdir()
        (folder / "models.json").write_text(json.dumps(_models(base_url, model)))
        (folder / "settings.json").write_text(json.dumps({"shellPath": str(place.shell)}))

    def start(self, installed: Path, place: Place, *, model: str, prompt: str) -> Start:
        """See the port."""
        loopback = "127.0.0.1,localhost"
        return Start(
            arguments=[
                *_command(installed),
                *("-p", "--mode", "json", "--offline"),
                *("--provider", _PROVIDER, "--model", model),
                prompt,
            ],
            environment={
                "HOME": str(place.home),
                "PATH": os.environ.get("PATH", os.defpath),
                "NO_PROXY": loopback,
                "no_proxy": loopback,
                "PI_CODING_AGENT_DIR": str(_configuration(place)),
                "PI_OFFLINE": "1",
                "PI_SKIP_VERSION_CHECK": "1",
                "PI_TELEMETRY": "0",
            },
            folder=place.work,
        )

    def read(self, lines: Iterable[str]) -> Told:
        """See the port."""
        answer: str | None = None
        model_calls = 0
        problems = []
        settled = False
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                problems.append(f"printed a line that is no event: {line[:200]!r}")
                continue
            problem = _problem(event)
            if problem is not None:
                problems.append(problem)
            settled = settled or event.get("type") == "agent_settled"
            message = event.get("message", {})
            if event.get("type") == "message_end" and message.get("role") == "assistant":
                model_calls += 1
                answer = _text(message)
        if not settled:
            problems.append("never said that it was done")
        return Told(answer=answer, model_calls=model_calls, problems=tuple(problems))


def _command(installed: Path) -> list[str]:
    modules = installed / "node_modules"
    cli = modules / _PACKAGE / "dist" / "bundle" / "cli.js"
    return [str(modules / "node" / "bin" / "node"), str(cli)]


def _configuration(place: Place) -> Path:
    return place.home / "agent"


def _models(base_url: str, model: str) -> dict[str, Any]:
    described = {
        "id": model,
        "name": model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": _CONTEXT_LLM_TOKENS,
        "maxTokens": _ANSWER_LLM_TOKENS_MAX,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": base_url,
        "api": "openai-completions",
        "apiKey": "unused",
        "models": [described],
    }
    return {"providers": {_PROVIDER: provider}}


def _problem(event: Mapping[str, Any]) -> str | None:
    """What went wrong in Pi's eyes, if this event says so."""
    match event.get("type"):
        case "message_end":
            message = event["message"]
            if message.get("stopReason") in {"error", "aborted"}:
                return f"a model call ended in {message.get('errorMessage', 'an error')!r}"
        case "auto_retry_start":
            return f"a model call was tried again: {event.get('errorMessage')!r}"
        case "tool_execution_end" if event.get("isError"):
            return f"tool {event.get('toolName')} failed"
        case "compaction_start":
            return "the history was compacted"
        case "agent_settled" if event.get("aborted"):
            return "the run was aborted"
    return None


def _text(message: Mapping[str, Any]) -> str:
    blocks = message.get("content", [])
    return "".join(block["text"] for block in blocks if block.get("type") == "text")
