# SPDX-License-Identifier: Apache-2.0
"""A tool-using session: seed, turns of one model call and its actions, close, verify. Pure.

Everything that the session knows is a fold over the results of its operations, and the next
operation is decided from that alone. So the loop that plays it needs no state of its own, and what
a boundary record says of a session is computed from its journal, never written beside it.

Where it stops early, because the model refused or the budget is used up, the environment is closed
and verified all the same, and the result says why it stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

from rollout_router.checkpoint.rows import Effect

__all__ = ["TRANSITIONS", "Boundary", "Next", "Phase", "SessionTask", "ToolSession"]

Boundary = Literal[
    "pending_model",
    "pending_action",
    "action_complete",
    "turn_complete",
    "pending_close",
    "pending_verify",
]
"""Between two operations, where a session that is not finished can go on."""

Phase = Literal["pending_seed", Boundary, "finished"]

TRANSITIONS: Final[Mapping[tuple[Phase, str], tuple[Phase, ...]]] = {
    ("pending_seed", "seed"): ("pending_model",),
    ("pending_model", "model"): ("pending_action", "pending_close"),
    ("turn_complete", "model"): ("pending_action", "pending_close"),
    ("pending_action", "step"): ("action_complete", "turn_complete", "pending_close"),
    ("action_complete", "step"): ("action_complete", "turn_complete", "pending_close"),
    ("pending_close", "close"): ("pending_verify",),
    ("pending_verify", "verify"): ("finished",),
}
"""Which phases may follow a phase and the result of its operation. What is not listed is a bug."""

_EFFECTS: Final[Mapping[str, Effect]] = {
    "seed": "keyed",
    "model": "resample",
    "step": "keyed",
    "close": "keyed",
    "verify": "keyed",
}
_OK: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTask:
    """What a session starts from.

    Raises:
        ValueError: a value makes no sense.
    """

    scenario: str
    seed: int
    model: str = "scripted"
    steps_max: int = 64  # model calls

    def __post_init__(self) -> None:
        if self.steps_max < 1:
            raise ValueError(f"a session has at least one model call, not {self.steps_max}")

    @classmethod
    def from_document(cls, document: Any) -> Self:
        """Read it from JSON.

        Raises:
            ValueError: a field is missing, unknown or of another type.
        """
        known = {"scenario": str, "seed": int, "model": str, "steps_max": int}
        if not isinstance(document, dict):
            raise ValueError("a task is an object")  # noqa: TRY004 - bad input, whatever its type
        for name, value in document.items():
            if name not in known or type(value) is not known[name]:
                raise ValueError(f"a task has {', '.join(known)}, each of its type; see {name!r}")
        missing = {"scenario", "seed"} - document.keys()
        if missing:
            raise ValueError(f"a task needs {', '.join(sorted(missing))}")
        return cls(**document)


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The next operation of a session."""

    kind: str
    request: Any  # everything that decides what it does

    @property
    def effect(self) -> Effect:
        """How it may be repeated."""
        return _EFFECTS[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSession:
    """A session after some of its operations. Made by :meth:`begin` and :meth:`after`."""

    task: SessionTask
    environment_id: str
    phase: Phase = "pending_seed"
    tools: tuple[Any, ...] = ()
    items: tuple[Any, ...] = ()  # the conversation: observations and what the model said, in order
    output: tuple[Any, ...] = ()  # of it, what came after the first observation
    usage: Mapping[str, int] = field(default_factory=dict)  # of all model calls together
    cookies: Mapping[str, str] = field(default_factory=dict)  # of the model server, merged
    model_call_ids: tuple[str, ...] = ()
    actions: tuple[Any, ...] = ()  # of the turn that is under way
    cursor: int = 0  # of the next of them
    stopped: str = ""  # why no more turns come
    reward: float | None = None
    details: Any = None

    @classmethod
    def begin(cls, task: SessionTask, environment_id: str) -> Self:
        """A session before its first operation."""
        return cls(task=task, environment_id=environment_id)

    @property
    def steps_left(self) -> int:
        """Model calls that it may still make."""
        return self.task.steps_max - len(self.model_call_ids)

    def next(self) -> Next | None:
        """What comes next; None where the session is finished."""
        named = {"environment_id": self.environment_id}
        match self.phase:
            case "pending_seed":
                scene = {"scenario": self.task.scenario, "seed": self.task.seed}
                return Next(kind="seed", request={**named, **scene})
            case "pending_model" | "turn_complete":
                asked = {"model": self.task.model, "input": self.items, "tools": self.tools}
                return Next(kind="model", request={"body": asked, "cookies": self.cookies})
            case "pending_action" | "action_complete":
                return Next(kind="step", request={**named, **self.actions[self.cursor]})
            case "pending_close":
                return Next(kind="close", request=named)
            case "pending_verify":
                return Next(kind="verify", request=named)
            case "finished":
                return None

    def after(self, kind: str, value: Any) -> "ToolSession":
        """The session after the result of its next operation.

        Raises:
            ValueError: it does not wait for an operation of this kind.
            KeyError, TypeError: the result has another form.
        """
        if (self.phase, kind) not in TRANSITIONS:
            raise ValueError(f"a session in {self.phase} has no {kind}")
        done = _FOLDS[kind](self, value)
        if done.phase not in TRANSITIONS[self.phase, kind]:
            raise ValueError(f"{kind} does not lead from {self.phase} to {done.phase}")
        return done

    def result(self) -> dict[str, Any]:
        """The result of a finished session.

        Raises:
            ValueError: it is not finished: there is no reward.
        """
        if self.phase != "finished":
            raise ValueError(f"a session in {self.phase} has no result")
        return {
            "reward": self.reward,
            "details": self.details,
            "output": self.output,
            "usage": self.usage,
            "cookies": self.cookies,
            "model_call_ids": self.model_call_ids,
            "stopped": self.stopped,
        }


def _seeded(session: ToolSession, value: Any) -> ToolSession:
    return replace(
        session,
        phase="pending_model",
        tools=tuple(value["tools"]),
        items=tuple(value["observation"]),
    )


def _sampled(session: ToolSession, value: Any) -> ToolSession:
    cookies = {**session.cookies, **value["cookies"]}
    if value["status"] != _OK:
        return replace(
            session, cookies=cookies, phase="pending_close", stopped=f"model_{value['status']}"
        )
    response = value["response"]
    said = tuple(response["output"])
    actions = _actions(said)
    return replace(
        session,
        phase="pending_action" if actions else "pending_close",
        cookies=cookies,
        items=(*session.items, *said),
        output=(*session.output, *said),
        usage=_added(session.usage, response.get("usage") or {}),
        model_call_ids=(*session.model_call_ids, str(response["id"])),
        actions=actions,
        cursor=0,
        stopped="" if actions else "model_said_nothing",
    )


def _acted(session: ToolSession, value: Any) -> ToolSession:
    observed = tuple(value["observation"])
    cursor = session.cursor + 1
    phase: Phase = "action_complete" if cursor < len(session.actions) else "turn_complete"
    stopped = ""
    if value["done"]:
        phase, stopped = "pending_close", "done"
    elif phase == "turn_complete" and session.steps_left == 0:
        phase, stopped = "pending_close", "steps_max"
    return replace(
        session,
        phase=phase,
        stopped=stopped,
        items=(*session.items, *observed),
        output=(*session.output, *observed),
        cursor=cursor,
    )


def _closed(session: ToolSession, value: Any) -> ToolSession:  # noqa: ARG001 - the form of a fold
    return replace(session, phase="pending_verify")


def _verified(session: ToolSession, value: Any) -> ToolSession:
    reward = value["reward"]
    if type(reward) not in (int, float):
        raise TypeError(f"a reward is a number, not {reward!r}")
    return replace(session, phase="finished", reward=float(reward), details=value["details"])


_FOLDS: Final = {
    "seed": _seeded,
    "model": _sampled,
    "step": _acted,
    "close": _closed,
    "verify": _verified,
}


def _actions(said: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the model asked to do: its calls, one an action, or else its text."""
    calls = tuple(
        {
            "calls": [
                {
                    "call_id": item["call_id"],
                    "name": item["name"],
                    "arguments": item["arguments"],
                }
            ]
        }
        for item in said
        if item.get("type") == "function_call"
    )
    if calls:
        return calls
    text = "".join(
        part.get("text", "")
        for item in said
        if item.get("type") == "message"
        for part in item.get("content", ())
    )
    return ({"text": text},) if text else ()


def _added(usage: Mapping[str, int], more: Mapping[str, Any]) -> dict[str, int]:
    """Both together; what is not a count of LLM tokens is left out."""
    counts = {name: value for name, value in more.items() if type(value) is int}
    return {name: usage.get(name, 0) + counts.get(name, 0) for name in (*usage, *counts)}
