# SPDX-License-Identifier: Apache-2.0
"""Hermes: its pinned packages, its configuration, and what it prints.

Its one-shot mode waits for its subagents, and prints the answer alone. What it used goes to a file,
which is printed behind the answer, so that :meth:`Hermes.read` sees both.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rollout_router.harness.configuration import compact_at, environment, yaml
from rollout_router.harness.install import python
from rollout_router.harness.port import Dialect, Packages, Setup, Target, Told

__all__ = ["Hermes"]

_PROVIDER: Final = "gym"
_HOME: Final = PurePosixPath(".hermes")
_KEY: Final = "ROLLOUT_API_KEY"
_USAGE: Final = "--- what hermes says that it used ---"
_API_MODES: Final = {
    Dialect.CHAT: "chat_completions",
    Dialect.RESPONSES: "codex_responses",
    Dialect.MESSAGES: "anthropic_messages",
}
# $0 is its Python, $1 the prompt. Its own exit code stays that of the whole.
_RUN: Final = f"""\
used="$HERMES_HOME/usage.json"
rm -f "$used"
"$0" -P -m hermes_cli.main --usage-file "$used" -z "$1"
code=$?
printf '\\n%s\\n' '{_USAGE}'
if [ -f "$used" ]; then cat "$used"; fi
exit $code
"""
_VERSION: Final = "import importlib.metadata as m; print(m.version('hermes-agent'))"


class Hermes:
    """Hermes, speaking Chat Completions by its own choice."""

    name: Final = "hermes"
    in_process: Final = False
    subagents: Final = True
    dialects: Final[Sequence[Dialect]] = (Dialect.CHAT, Dialect.MESSAGES, Dialect.RESPONSES)
    # Messages needs that SDK, and fails with a newer one.
    packages: Packages = Packages(pypi={"hermes-agent": "0.19.0", "anthropic": "0.87.0"})

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        """See the port."""
        return [str(python(installed)), "-I", "-c", _VERSION], self.packages.pypi["hermes-agent"]

    def set_up(self, home: PurePosixPath, target: Target) -> Setup:
        """See the port."""
        return Setup(
            files={_HOME / "config.yaml": yaml(_configuration(target)) + "\n"},
            environment={
                **environment(home),
                "HERMES_HOME": str(home / _HOME),
                _KEY: target.api_key,
            },
        )

    def command(self, installed: Path, target: Target, prompt: str) -> Sequence[str]:  # noqa: ARG002 - the port's; the configuration names the target
        """See the port."""
        return ["/bin/sh", "-c", _RUN, str(python(installed)), prompt]

    def read(self, lines: Iterable[str]) -> Told:
        """See the port. It prints nothing of retries and compactions."""
        said, mark, used = "".join(lines).rpartition(f"\n{_USAGE}\n")
        try:
            report = json.loads(used) if mark else None
        except ValueError:
            report = None
        if not isinstance(report, dict):
            problem = f"never said what it used: {used[:200]!r}"
            return Told(answer=None, model_calls=None, usage={}, problems=(problem,))
        usage = {
            name: count
            for name, count in report.items()
            if name.endswith("_tokens") and isinstance(count, int)
        }
        problems = []
        if report.get("failed") or not report.get("completed"):
            problems.append(f"the run failed: {report.get('failure') or said[:200]!r}")
        return Told(
            answer=said.rstrip("\n") or None,
            model_calls=report.get("api_calls"),
            usage=usage,
            problems=tuple(problems),
        )


def _configuration(target: Target) -> dict[str, Any]:
    messages = target.dialect is Dialect.MESSAGES
    provider = {
        "name": _PROVIDER,
        "base_url": target.base_url.removesuffix("/v1") if messages else target.base_url,
        "key_env": _KEY,
        "api_mode": _API_MODES[target.dialect],
        "default_model": target.model,
    }
    window = target.context_llm_tokens
    return {
        "model": {"default": target.model, "provider": _PROVIDER, "context_length": window},
        "providers": {_PROVIDER: provider},
        "compression": {
            "threshold": compact_at(window) / window,
            # Like Pi's here: about a tenth of the window stays as it is, however few messages.
            "target_ratio": 0.1,
            "protect_last_n": 4,
        },
        # A line of the system prompt that comes or not by how fast the machine is, within seconds.
        "agent": {"environment_probe": False},
        # Both fetch programs from the Internet, at every start.
        "security": {"tirith_enabled": False, "allow_lazy_installs": False},
    }
