# SPDX-License-Identifier: Apache-2.0
"""A phone, its tools and its user: the state of one environment. Pure.

No clock and no randomness come from outside: identifiers, the time and the user's words are drawn
from a generator that is part of the state. So equal steps give equal bytes, and a step that is lost
or done twice changes all that comes after it.

    open ──step──▶ open      until the user has what it wants, or the conversation is too long
    open ──step──▶ over      then it can only be closed
    open, over ──close──▶ closed     scored; the score is part of the state
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

from rollout_router.checkpoint.digests import canonical, chained, link
from rollout_router.checkpoint.example.scenarios import SCENARIOS, Goal, Scenario
from rollout_router.checkpoint.example.tools import Tables, call

__all__ = ["SCHEMA", "World", "WrongPhase"]

SCHEMA: Final = 1

_SYSTEM: Final = (
    "You use the phone of the user with your tools, and talk to the user in plain text. Ask where"
    " you do not know something, and say when it is done."
)
_NUDGES: Final = (
    "Not yet, I think.",
    "It does not look done.",
    "I still see nothing of it.",
    "Hm.",
)


class WrongPhase(Exception):  # noqa: N818 - says what it is
    """This cannot be done now; nothing changed. The message says what can."""


@dataclass(slots=True, kw_only=True)
class World:
    """One environment. Made by :meth:`begin` and :meth:`from_bytes`."""

    scenario: str
    seed: int
    generator: str  # the link that the next draw goes on from
    minute: int
    number: str  # that the user knows, and tells who asks
    tables: Tables
    asked: int  # of the user's goals
    baseline: int  # messages that the conversation began with
    messages: int  # of the whole conversation: a call and its result are two
    phase: Literal["open", "over", "closed"]
    score: dict[str, Any] | None

    @classmethod
    def begin(cls, scenario: str, seed: int) -> tuple[Self, list[dict[str, Any]]]:
        """A new world, and the first observation.

        Raises:
            KeyError: there is no such scenario.
        """
        told = SCENARIOS[scenario]
        settings = [{"name": name, "on": name in told.online} for name in ("cellular", "wifi")]
        world = cls(
            scenario=scenario,
            seed=seed,
            generator=chained("world", scenario, seed),
            minute=0,
            number="",
            tables={"contacts": [], "messages": [], "reminders": [], "settings": settings},
            asked=1,
            baseline=2,
            messages=2,
            phase="open",
            score=None,
        )
        world.number = world._draw_number()
        world.tables["contacts"] = [
            {"contact_id": world.draw("contact"), "name": name, "number": world._draw_number()}
            for name in told.contacts
        ]
        return world, [_message("system", _SYSTEM), _message("user", told.goals[0].ask)]

    def step(
        self, *, calls: Sequence[dict[str, Any]] | None = None, text: str | None = None
    ) -> tuple[list[dict[str, Any]], bool]:
        """Do *calls*, each ``{call_id, name, arguments}``, or hear the agent's *text*.

        Returns:
            What is new for the agent, one item a call or the user's answer, and whether the
            conversation is over. An item has at most a few KiB, and calls beyond the bound on
            messages are not done.

        Raises:
            WrongPhase: it is over, or closed.
            ValueError: neither calls nor text, or both.
        """
        if self.phase != "open":
            raise WrongPhase(f"the conversation is {self.phase}: no step can follow")
        if bool(calls) == (text is not None):
            raise ValueError("a step takes calls or a text")
        self.draw("text" if calls is None else "calls")
        if text is not None:
            observation = [_message("user", self._answer(text))]
            self.messages += 2
        else:
            observation = [self._result(one) for one in calls or ()]
        if self._is_full():
            self.phase = "over"
        return observation, self.phase == "over"

    def close(self) -> dict[str, Any]:
        """End the conversation and score it: ``{"reward", "details"}``, the reward from 0 to 1.

        Raises:
            WrongPhase: it is closed already.
        """
        if self.phase == "closed":
            raise WrongPhase("the conversation is closed already")
        met = {goal.ask: self._is_met(goal) for goal in self._told.goals}
        details = {
            "goals": met,
            "messages": self.messages - self.baseline,
            "minute": self.minute,
            "generator": self.generator,  # every step has drawn from it
        }
        self.phase = "closed"
        self.score = {"reward": sum(met.values()) / len(met), "details": details}
        return self.score

    def verified(self) -> dict[str, Any]:
        """The score, as often as it is asked.

        Raises:
            WrongPhase: it is not closed: there is no score.
        """
        if self.score is None:
            raise WrongPhase(f"the conversation is {self.phase}, not closed: there is no score")
        return self.score

    def to_bytes(self) -> bytes:
        """The whole state, in canonical JSON."""
        return canonical({**asdict(self), **self._marks()}).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read what :meth:`to_bytes` wrote: the same next observation, and the same reward.

        Raises:
            ValueError: it is damaged, or of another schema or scenario.
        """
        document = json.loads(raw)
        try:
            world = cls(**{one.name: document[one.name] for one in fields(cls)})
            same = world.to_bytes() == raw
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the state of a world: {error!r}") from error
        if not same:
            raise ValueError("the state of a world of another form, schema or scenario")
        return world

    def draw(self, what: str) -> str:
        """Twelve digits for *what*, which every later draw depends on too; some time passes."""
        self.generator = link(self.generator, what)
        self.minute += 1 + int(self.generator[0], 16) % 5
        return self.generator[-12:]

    @property
    def _told(self) -> Scenario:
        return SCENARIOS[self.scenario]

    def _marks(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "scenario_digest": self._told.digest}

    def _draw_number(self) -> str:
        return f"+1555{int(self.draw('number'), 16) % 10**7:07}"

    def _is_full(self) -> bool:
        return self.messages >= self._told.messages_max + self.baseline

    def _result(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._is_full():
            output = canonical({"error": "not done: the conversation is too long"})
        else:
            self.messages += 2
            output = call(self, asked["name"], asked["arguments"])
        return {"type": "function_call_output", "call_id": asked["call_id"], "output": output}

    def _answer(self, text: str) -> str:
        """What the user says to *text*; it ends the conversation when it has what it wants."""
        goals = self._told.goals
        if all(self._is_met(goal) for goal in goals[: self.asked]):
            if self.asked == len(goals):
                self.phase = "over"
                return "Thank you, that is all."
            self.asked += 1
            return f"Thank you. {goals[self.asked - 1].ask}"
        open_goal = next(goal for goal in goals if not self._is_met(goal))
        if "?" in text:
            return open_goal.hint.format(number=self.number)
        return f"{_NUDGES[int(self.draw('nudge'), 16) % len(_NUDGES)]} {open_goal.ask}"

    def _is_met(self, goal: Goal) -> bool:
        wanted = {
            name: value.format(number=self.number) if isinstance(value, str) else value
            for name, value in goal.row.items()
        }
        return any(
            all(_fits(row[name], value) for name, value in wanted.items())
            for row in self.tables[goal.table]
        )


def _fits(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, str):
        return wanted.casefold() in found.casefold()
    return bool(found == wanted)


def _message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}
