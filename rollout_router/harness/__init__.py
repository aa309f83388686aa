# SPDX-License-Identifier: Apache-2.0
"""Real agent harnesses at the sandbox side, and the run that shows that they notice nothing.

A harness is one module behind the small port in ``port.py``. Nothing here is imported by a server.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rollout_router.harness.codex import Codex
from rollout_router.harness.hermes import Hermes
from rollout_router.harness.openai_sdk import OpenAISdk
from rollout_router.harness.opencode import OpenCode
from rollout_router.harness.pi import Pi
from rollout_router.harness.port import Harness

__all__ = ["HARNESSES"]

_KNOWN: Final[tuple[Harness, ...]] = (
    Codex(),
    OpenCode(),
    Pi(),
    Hermes(),
    OpenAISdk("openai2", "2.24.0"),
    OpenAISdk("openai3", "3.57.0"),
)

HARNESSES: Final[Mapping[str, Harness]] = MappingProxyType({one.name: one for one in _KNOWN})
"""All that can be installed and run, by name."""
