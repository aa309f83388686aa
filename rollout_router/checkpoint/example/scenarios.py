# SPDX-License-Identifier: Apache-2.0
"""What the user of a world wants, in which order, and where it shows that the user has it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rollout_router.checkpoint.digests import canonical, digest

__all__ = ["SCENARIOS", "Goal", "Scenario"]


@dataclass(frozen=True, slots=True)
class Goal:
    """One wish. ``{number}`` stands for a telephone number that the seed decides."""

    ask: str  # what the user says when its turn has come
    hint: str  # what it answers to a question
    table: str  # where the wish shows
    row: Mapping[str, Any]  # what a row there must have; of a text, what it must contain


@dataclass(frozen=True, slots=True)
class Scenario:
    """A conversation: the wishes in order, and what the world begins with."""

    goals: tuple[Goal, ...]
    online: tuple[str, ...] = ("wifi",)  # settings that are on
    contacts: tuple[str, ...] = ("Ada Lovelace", "Alan Turing", "Grace Hopper")
    messages_max: int = 40  # of the conversation, after those that it begins with

    @property
    def digest(self) -> str:
        """Of all that decides how it goes."""
        return digest(canonical(asdict(self)))


_LATE: Final = Goal(
    "Tell Ada that I will be late.",
    "Just write: I will be late.",
    "messages",
    {"to": "Ada Lovelace", "text": "late"},
)
_MILK: Final = Goal(
    "Remind me in 30 minutes to buy milk.",
    "In 30 minutes, please.",
    "reminders",
    {"text": "milk", "minutes": 30},
)
_LINUS: Final = Goal(
    "Save my friend Linus as a contact.",
    "His number is {number}.",
    "contacts",
    {"name": "Linus", "number": "{number}"},
)
_QUIET: Final = Goal(
    "Now turn the wifi off.", "The wifi alone.", "settings", {"name": "wifi", "on": False}
)

SCENARIOS: Final[Mapping[str, Scenario]] = {
    "message": Scenario((_LATE,)),
    "offline": Scenario((_LATE,), online=()),
    "errands": Scenario((_LATE, _MILK, _LINUS, _QUIET)),
    "short": Scenario((_LATE, _MILK), messages_max=6),
}
