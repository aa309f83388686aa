# SPDX-License-Identifier: Apache-2.0
"""A policy model that gives the user of a tool world what it asks for. Pure.

What it says, its identity, its usage and the cookies that it sets are functions of the request
alone: a sample that is drawn again is the same. ``home`` is set by the first answer and never
again, ``turn`` by each; without the ``home`` of the first, a later answer is another one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rollout_router.checkpoint.digests import canonical, digest

__all__ = ["REWARD", "sampled"]

REWARD: Final = 1.0
"""Of every scenario that has room for its goals."""

_Said = str | list[tuple[str, dict[str, Any]]]
"""A text, or calls."""


def sampled(body: Mapping[str, Any], cookies: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """The response in the form of OpenAI's Responses, and the cookies that it sets."""
    items = body["input"]
    named = digest(canonical([body, dict(cookies)]))
    said = _said(items)
    output: list[dict[str, Any]]
    if isinstance(said, str):
        output = [
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": said}],
            }
        ]
    else:
        output = [
            {
                "type": "function_call",
                "call_id": f"call-{named[:12]}-{number}",
                "name": name,
                "arguments": canonical(arguments),
            }
            for number, (name, arguments) in enumerate(said)
        ]
    usage = {"input_tokens": 10 * len(items), "output_tokens": 3 * len(output)}
    response = {"id": f"resp-{named[:24]}", "output": output, "usage": usage}
    set_now = {"turn": named[:16]}
    return response, set_now if "home" in cookies else {"home": named[16:32], **set_now}


def _said(items: Sequence[Mapping[str, Any]]) -> _Said:
    users = [place for place, item in enumerate(items) if item.get("role") == "user"]
    wish, since = items[users[-1]]["content"], items[users[-1] + 1 :]
    found = [json.loads(item["output"]) for item in since if "output" in item]
    for part, results, say in _TURNS:
        if part in wish and len(found) == results:
            return say(wish, found)
    return "It is done."


_TURNS: Final[Sequence[tuple[str, int, Callable[[str, list[Any]], _Said]]]] = (
    (
        *("Ada", 0),
        lambda _, __: [
            ("set_setting", {"name": "cellular", "on": True}),
            ("find_contacts", {"name": "Ada"}),
        ],
    ),
    (
        *("Ada", 2),
        lambda _, found: [
            (
                "send_message",
                {"contact_id": found[1]["contacts"][0]["contact_id"], "text": "She will be late."},
            )
        ],
    ),
    (
        *("milk", 0),
        lambda _, __: [
            ("add_reminder", {"text": "Buy milk", "minutes": 30}),
            ("find_contacts", {"name": "Grace"}),
        ],
    ),
    ("Linus", 0, lambda _, __: "Which number does Linus have?"),
    (
        *("His number is ", 0),
        lambda wish, _: [
            ("add_contact", {"name": "Linus", "number": wish.partition(" is ")[2].rstrip(".")})
        ],
    ),
    ("wifi", 0, lambda _, __: [("set_setting", {"name": "wifi", "on": False})]),
)
"""What is said where the wish has this part and so many results followed it. Two calls in a turn
where one does not need what the other finds."""
