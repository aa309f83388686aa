# SPDX-License-Identifier: Apache-2.0
"""Which runs a conformance run consists of, and what each has to reach. Pure data.

Every run of a scenario is compared with the one in full whose owner lived.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from rollout_router.harness.port import CONTEXT_LLM_TOKENS

__all__ = ["FLOORS", "KILLS", "MODES", "PLAIN_FLOORS", "Mode", "context_llm_tokens"]


class Mode(Enum):
    """How the bodies of a run travel, and whether its owner is killed between two calls."""

    FULL = "in full"
    DELTAS = "deltas"
    FULL_KILLED = "in full, owner killed"
    DELTAS_KILLED = "deltas, owner killed"

    @property
    def deltas(self) -> bool:
        """Whether the gateway takes deltas."""
        return self not in {Mode.FULL, Mode.FULL_KILLED}

    @property
    def killed(self) -> bool:
        """Whether the owner is killed."""
        return self in {Mode.FULL_KILLED, Mode.DELTAS_KILLED}


MODES: Final[Mapping[str, Sequence[Mode]]] = {
    "long": tuple(Mode),
    "mixed": (Mode.FULL, Mode.DELTAS, Mode.DELTAS_KILLED),
    "compaction": (Mode.FULL, Mode.DELTAS),
    "faults": (Mode.FULL, Mode.DELTAS),
}
"""The runs of each scenario, by its name; the first is what the others are compared with."""

KILLS: Final[Mapping[str, str]] = {"long": "10", "mixed": "4"}
"""The step within which the owner is killed, of each scenario in which it ever is."""

FLOORS: Final[Mapping[tuple[str, Mode], float]] = {
    ("long", Mode.DELTAS): 28.0,
    ("long", Mode.DELTAS_KILLED): 15.0,
    ("compaction", Mode.DELTAS): 12.0,
    ("mixed", Mode.DELTAS): 9.0,
    ("mixed", Mode.DELTAS_KILLED): 6.5,
    ("faults", Mode.DELTAS): 10.0,
}
"""How many times fewer bytes of bodies have to leave the sandbox than the harness wrote.

Of *mixed* and *faults*: three quarters of what the worst harness reached. Below it whole requests
were sent again and again; one of them alone may hide, where parallel calls begin together.
"""

PLAIN_FLOORS: Final[Mapping[tuple[str, Mode], float]] = {
    ("long", Mode.DELTAS): 10.0,
    ("mixed", Mode.DELTAS): 3.3,
    ("mixed", Mode.DELTAS_KILLED): 1.9,
    ("faults", Mode.DELTAS): 4.2,
}
"""The same, had nothing been compressed."""

_SMALL: Final = 64_000  # so that ten steps are much more than what a harness keeps of its history
_SMALLS: Final = {"hermes": 100_000}  # below, its room for the answer leaves none to compact for


def context_llm_tokens(harness: str, scenario: str) -> int:
    """The context that *harness* is told of: a small one where it has to compact."""
    return _SMALLS.get(harness, _SMALL) if scenario == "compaction" else CONTEXT_LLM_TOKENS
