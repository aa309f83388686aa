# SPDX-License-Identifier: Apache-2.0
"""The tools of a world: what a model is offered, and what each does to the tables. Pure.

A call that cannot be done is an observation that says so, and changes nothing: a mistake of the
model's is data.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from rollout_router.checkpoint.digests import canonical

__all__ = ["FOUND_MAX", "TEXT_MAX", "TOOLS", "Tables", "call", "offered"]

TEXT_MAX: Final = 500
"""Characters of one argument; with the bound on messages, it bounds the tables."""

FOUND_MAX: Final = 5
"""Rows that a search shows."""

Tables = dict[str, list[dict[str, Any]]]


class _World(Protocol):
    """What a tool may use of a world."""

    tables: Tables
    minute: int

    def draw(self, what: str) -> str: ...


class _MistakeError(ValueError):
    """Why a call cannot be done, for the model."""


def offered() -> list[dict[str, Any]]:
    """The tools in the form of OpenAI's Responses; every parameter is required."""
    return [
        {
            "type": "function",
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": dict(parameters),
                "required": list(parameters),
                "additionalProperties": False,
            },
            "strict": True,
        }
        for name, (description, parameters, _) in TOOLS.items()
    ]


def call(world: _World, name: Any, arguments: Any) -> str:
    """Do one call; *arguments* as a model writes them, in JSON text, or as an object.

    Returns:
        The JSON text of the result, or of ``{"error": why}``: ASCII, at most a few KiB.
    """
    if not isinstance(name, str) or name not in TOOLS:
        return canonical({"error": f"there is no such tool; there are {', '.join(TOOLS)}"})
    _, parameters, run = TOOLS[name]
    try:
        return canonical(run(world, **_checked(parameters, arguments)))
    except _MistakeError as mistake:
        return canonical({"error": str(mistake)})


def _checked(parameters: Mapping[str, Mapping[str, Any]], arguments: Any) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise _MistakeError("the arguments are not JSON") from None
    if not isinstance(arguments, dict) or arguments.keys() != parameters.keys():
        raise _MistakeError(f"the arguments are an object with {', '.join(parameters)}")
    for name, form in parameters.items():
        if not _fits(arguments[name], form):
            raise _MistakeError(f"{name} must fit {canonical(form)}")
    return arguments


def _fits(value: Any, form: Mapping[str, Any]) -> bool:
    match form["type"]:
        case "string":
            known = form.get("enum", (value,))
            return type(value) is str and 0 < len(value) <= TEXT_MAX and value in known
        case "integer":
            return type(value) is int and form["minimum"] <= value <= form["maximum"]
        case _:
            return type(value) is bool


def _set_setting(world: _World, *, name: str, on: bool) -> Any:
    row = next(row for row in world.tables["settings"] if row["name"] == name)
    row["on"] = on
    return row


def _find_contacts(world: _World, *, name: str) -> Any:
    found = [row for row in world.tables["contacts"] if name.casefold() in row["name"].casefold()]
    return {"contacts": found[:FOUND_MAX], "found": len(found)}


def _add_contact(world: _World, *, name: str, number: str) -> Any:
    row = {"contact_id": world.draw("contact"), "name": name, "number": number}
    world.tables["contacts"].append(row)
    return {"contact_id": row["contact_id"]}


def _send_message(world: _World, *, contact_id: str, text: str) -> Any:
    if not any(row["on"] for row in world.tables["settings"]):
        raise _MistakeError("the phone is offline: cellular and wifi are off")
    for contact in world.tables["contacts"]:
        if contact["contact_id"] == contact_id:
            told = {"message_id": world.draw("message"), "minute": world.minute}
            world.tables["messages"].append({**told, "to": contact["name"], "text": text})
            return told
    raise _MistakeError("no contact has this contact_id")


def _add_reminder(world: _World, *, text: str, minutes: int) -> Any:
    told = {"reminder_id": world.draw("reminder"), "due": world.minute + minutes}
    world.tables["reminders"].append({**told, "text": text, "minutes": minutes})
    return told


_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}

TOOLS: Final[Mapping[str, tuple[str, Mapping[str, Mapping[str, Any]], Callable[..., Any]]]] = {
    "set_setting": (
        "Turn cellular or wifi on or off. A message needs one of them.",
        {"name": {"type": "string", "enum": ["cellular", "wifi"]}, "on": {"type": "boolean"}},
        _set_setting,
    ),
    "find_contacts": ("Contacts whose name contains this.", {"name": _TEXT}, _find_contacts),
    "add_contact": ("Save a contact.", {"name": _TEXT, "number": _TEXT}, _add_contact),
    "send_message": ("Write to a contact.", {"contact_id": _TEXT, "text": _TEXT}, _send_message),
    "add_reminder": (
        "Remind the user of something in so many minutes.",
        {"text": _TEXT, "minutes": {"type": "integer", "minimum": 1, "maximum": 100_000}},
        _add_reminder,
    ),
}
"""What each is for, the JSON schemas of its arguments, and what it does."""
