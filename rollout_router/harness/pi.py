# SPDX-License-Identifier: Apache-2.0
"""Pi, the coding agent: its pinned packages, its configuration, and the events that it prints.

It runs on a Node.js of its own from npm, since it needs a newer one than many machines have. With
``--mode json`` it exits with 0 even when a model call failed, so its events are read as well.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rollout_router.harness.configuration import compact_at, environment
from rollout_router.harness.events import NoEvent, events
from rollout_router.harness.port import Dialect, Packages, Setup, Target, Told

__all__ = ["Pi"]

_PROVIDER: Final = "gym"
_PACKAGE: Final = "@earendil-works/pi-coding-agent"
_HOME: Final = PurePosixPath(".pi", "agent")
_KEY: Final = "ROLLOUT_API_KEY"
_ANSWER_LLM_TOKENS_MAX: Final = 8_192
_APIS: Final = {
    Dialect.CHAT: "openai-completions",
    Dialect.RESPONSES: "openai-responses",
    Dialect.MESSAGES: "anthropic-messages",
}


class Pi:
    """Pi, speaking Chat Completions by its own choice."""

    name: Final = "pi"
    in_process: Final = False
    subagents: Final = False
    dialects: Final[Sequence[Dialect]] = tuple(_APIS)
    packages: Packages = Packages(
        npm={_PACKAGE: "1.6.0", "node": "24.21.0"},
        npm_install_scripts=("node",),  # it fetches the binary of this machine
    )

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """See the port."""
        return [*_program(installed), "--version"], self.packages.npm[_PACKAGE]

    def set_up(self, home: PurePosixPath, target: Target) -> Setup:
        """See the port."""
        return Setup(
            files={
                _HOME / "models.json": json.dumps(_models(target)) + "\n",
                _HOME / "settings.json": json.dumps(_settings(target)) + "\n",
            },
            environment={
                **environment(home),
                "PI_CODING_AGENT_DIR": str(home / _HOME),
                "PI_OFFLINE": "1",
                "PI_SKIP_VERSION_CHECK": "1",
                "PI_TELEMETRY": "0",
                _KEY: target.api_key,
            },
        )

    def command(self, installed: Path, target: Target, prompt: str) -> Sequence[str]:
        """See the port. Where *prompt* begins with ``@``, Pi takes it for the name of a file."""
        return [
            *_program(installed),
            *("-p", "--mode", "json", "--offline"),
            *("--provider", _PROVIDER, "--model", target.model),
            *("--", prompt),
        ]

    def read(self, lines: Iterable[str]) -> Told:
        """See the port."""
        answer: str | None = None
        model_calls = 0
        usage: Counter[str] = Counter()
        problems: list[str] = []
        settled = False
        for event in events(lines):
            if isinstance(event, NoEvent):
                problems.append(event)
                continue
            if event["type"] == "auto_retry_start" and problems[-1:] == [_failed(event)]:
                problems.pop()  # the same failure, whose retry is told now
            problem = _problem(event)
            if problem is not None:
                problems.append(problem)
            settled = settled or event["type"] == "agent_settled"
            message = event.get("message", {})
            if event["type"] == "message_end" and message.get("role") == "assistant":
                usage.update(_counts(message))
                if not _has_failed(message):
                    model_calls += 1
                    answer = _text(message)
        if not settled:
            problems.append("never said that it was done")
        return Told(answer=answer, model_calls=model_calls, usage=usage, problems=tuple(problems))


def _program(installed: Path) -> list[str]:
    modules = installed / "node_modules"
    cli = modules / _PACKAGE / "dist" / "bundle" / "cli.js"
    return [str(modules / "node" / "bin" / "node"), str(cli)]


def _models(target: Target) -> dict[str, Any]:
    described = {
        "id": target.model,
        "name": target.model,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": target.context_llm_tokens,
        "maxTokens": min(_ANSWER_LLM_TOKENS_MAX, target.context_llm_tokens),
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    messages = target.dialect is Dialect.MESSAGES
    provider = {
        "baseUrl": target.base_url.removesuffix("/v1") if messages else target.base_url,
        "api": _APIS[target.dialect],
        "apiKey": f"${_KEY}",  # a literal key could begin a command or name a variable
        "models": [described],
    }
    return {"providers": {_PROVIDER: provider}}


def _settings(target: Target) -> dict[str, Any]:
    window = target.context_llm_tokens
    compaction = {"reserveTokens": window - compact_at(window), "keepRecentTokens": window // 10}
    return {"compaction": compaction}


def _has_failed(message: Mapping[str, Any]) -> bool:
    return message.get("stopReason") in {"error", "aborted"}


def _failed(failure: Mapping[str, Any]) -> str:
    return f"a model call ended in {failure.get('errorMessage', 'an error')!r}"


def _problem(event: Mapping[str, Any]) -> str | None:
    """What went wrong in Pi's eyes, if this event says so."""
    match event["type"]:
        case "message_end" if _has_failed(event["message"]):
            return _failed(event["message"])
        case "auto_retry_start":
            return f"retried: {event.get('errorMessage')!r}"
        case "tool_execution_end" if event.get("isError"):
            return f"tool {event.get('toolName')} failed"
        case "compaction_start":
            return f"compacted: {event.get('reason')}"
        case "agent_settled" if event.get("aborted"):
            return "the run was aborted"
    return None


def _text(message: Mapping[str, Any]) -> str:
    blocks = message.get("content", [])
    return "".join(block["text"] for block in blocks if block.get("type") == "text")


def _counts(message: Mapping[str, Any]) -> dict[str, int]:
    usage = message.get("usage", {})
    return {name: count for name, count in usage.items() if isinstance(count, int)}
