# SPDX-License-Identifier: Apache-2.0
"""OpenCode: its pinned package, its configuration, and the events that it prints.

It is one binary with its own runtime. Of its title call and of its subagents' calls it prints
nothing, and of a call that it tried again only that it began twice, where the first had begun.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rollout_router.harness.configuration import environment
from rollout_router.harness.port import Dialect, Packages, Setup, Target, Told
from rollout_router.transport.sandbox.opencode import serialized

__all__ = ["OpenCode"]

_PROVIDER: Final = "gym"
_PACKAGE: Final = "opencode-linux-x64"
_ANSWER_LLM_TOKENS_MAX: Final = 8_192
_CLIENTS: Final = {  # all of them are inside the binary
    Dialect.CHAT: "@ai-sdk/openai-compatible",
    Dialect.RESPONSES: "@ai-sdk/openai",
    Dialect.MESSAGES: "@ai-sdk/anthropic",
}
_QUIET: Final = (  # each is a call to somewhere else
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_SHARE",
)
_FOLDERS: Final = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
    "TMPDIR": "tmp",
}
_CONFIG: Final = PurePosixPath("gym")  # read last: a task's own configuration does not undo it
_LOCK: Final = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
_NOTHING_TO_INSTALL: Final = {  # else it asks npm's registry for that, in each of its folders
    folder / name: text
    for folder in (_CONFIG, PurePosixPath(_FOLDERS["XDG_CONFIG_HOME"], "opencode"))
    for name, text in (("package-lock.json", json.dumps(_LOCK)), ("node_modules/.keep", ""))
}
_LINE_SHOWN: Final = 200


class OpenCode:
    """OpenCode, in all its dialects.

    Args:
        system_prompt: replaces its own for the agent ``build`` and arrives as it is written; None
            leaves its own.
    """

    name: Final = "opencode"
    in_process: Final = False
    subagents: Final = True
    dialects: Final[Sequence[Dialect]] = tuple(_CLIENTS)
    packages: Final = Packages(npm={_PACKAGE: "1.18.33"})

    def __init__(self, system_prompt: str | None = None) -> None:
        self._system_prompt = system_prompt

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """See the port."""
        return [_program(installed), "--version"], self.packages.npm[_PACKAGE]

    def set_up(self, home: PurePosixPath, target: Target) -> Setup:
        """See the port; what *target* says is subject to OpenCode's ``{env:NAME}`` and ``{file:}``.

        Raises:
            ValueError: the system prompt is empty or no Unicode text.
        """
        text = serialized(_config(target), self._system_prompt)
        return Setup(
            files={_CONFIG / "opencode.json": text, **_NOTHING_TO_INSTALL},
            environment={
                **environment(home),
                **{name: str(home / folder) for name, folder in _FOLDERS.items()},
                "OPENCODE_CONFIG_DIR": str(home / _CONFIG),
                **dict.fromkeys(_QUIET, "1"),
            },
        )

    def command(self, installed: Path, target: Target, prompt: str) -> Sequence[str]:
        """See the port. A prompt with a space in it reaches the model in quotation marks."""
        model = f"{_PROVIDER}/{target.model}"
        return [
            *(_program(installed), "run", "--auto", "--format", "json"),
            *("--model", model, "--", prompt),
        ]

    def read(self, lines: Iterable[str]) -> Told:
        """See the port. Title calls and subagents are in neither the calls nor the usage."""
        reading = _Reading()
        for line in lines:
            try:
                reading.take(json.loads(line))
            except (ValueError, LookupError, TypeError, AttributeError):
                reading.problems.append(f"unreadable: {line[:_LINE_SHOWN]!r}")
        return reading.told()


class _Reading:
    """What the events so far have said."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._begun: set[str] = set()  # messages
        self._texts: dict[str, list[str]] = {}  # by message
        self._ended: list[str] = []  # messages, one for each answer that was taken in
        self._usage: Counter[str] = Counter()

    def take(self, event: Mapping[str, Any]) -> None:
        """One line."""
        kind = event["type"]
        if kind == "error":
            error = event["error"]
            self.problems.append(f"error: {error['name']}: {error.get('data', {}).get('message')}")
            return
        part = event["part"]
        message = part["messageID"]
        match kind:
            case "step_start":
                if message in self._begun:
                    self.problems.append("retried: a model call broke off and was made again")
                self._begun.add(message)
            case "step_finish":
                self._finish(message, part)
            case "text" if part.get("synthetic"):
                if part.get("metadata", {}).get("compaction_continue"):
                    self.problems.append("compacted: the history was replaced by a summary")
            case "text":
                self._texts.setdefault(message, []).append(part["text"])
            case "tool_use" if part["state"]["status"] == "error" or part["tool"] == "invalid":
                state = part["state"]
                why = state.get("error", state.get("output"))
                self.problems.append(f"tool failed: {part['tool']}: {why}")

    def told(self) -> Told:
        """The whole."""
        if not self._ended or self._begun - set(self._ended):
            self.problems.append("unfinished: the run ended within a model call, or before one")
        answer = self._texts.get(self._ended[-1]) if self._ended else None
        return Told(
            answer=None if answer is None else "".join(answer),
            model_calls=len(self._ended),
            usage=dict(self._usage),
            problems=tuple(self.problems),
        )

    def _finish(self, message: str, part: Mapping[str, Any]) -> None:
        self._ended.append(message)
        if part["reason"] not in {"stop", "tool-calls"}:
            self.problems.append(f"ended early: a model call ended in {part['reason']!r}")
        tokens = part["tokens"]
        for name in ("input", "output", "reasoning"):
            self._usage[name] += tokens[name]
        for name in ("read", "write"):
            self._usage[f"cache_{name}"] += tokens["cache"][name]


def _program(installed: Path) -> str:
    return str(installed / "node_modules" / _PACKAGE / "bin" / "opencode")


def _config(target: Target) -> dict[str, Any]:
    """*context_llm_tokens* holds the answer too: compaction comes that much earlier."""
    answer = min(_ANSWER_LLM_TOKENS_MAX, target.context_llm_tokens // 2)
    described = {
        "name": target.model,
        "tool_call": True,
        "limit": {"context": target.context_llm_tokens, "output": answer},
    }
    model = f"{_PROVIDER}/{target.model}"
    provider = {
        "npm": _CLIENTS[target.dialect],
        "name": _PROVIDER,
        "options": {"baseURL": target.base_url, "apiKey": target.api_key},
        "models": {target.model: described},
    }
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "model": model,
        "small_model": model,  # for titles; else it would look for one elsewhere
        "enabled_providers": [_PROVIDER],
        "provider": {_PROVIDER: provider},
    }
