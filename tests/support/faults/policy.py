# SPDX-License-Identifier: Apache-2.0
"""A model that is a function of its request: it reaches the goal of the scenario "message".

Its first turn has two calls, so that a session stands between them; its cookie counts its turns.
"""

import json
from collections.abc import Mapping
from typing import Any

from rollout_router.checkpoint.digests import canonical, digest

__all__ = ["sample"]


def sample(body: Mapping[str, Any], turn: int) -> dict[str, Any]:
    """The response to a request of OpenAI's Responses, and ``turn`` for its cookie."""
    told = [
        json.loads(one["output"]) for one in body["input"] if "call_id" in one and "output" in one
    ]
    if not told:
        said = [
            _call(turn, 1, "set_setting", name="cellular", on=True),
            _call(turn, 2, "find_contacts", name="Ada"),
        ]
    elif len(told) == 2:  # the results of the first turn
        contact_id = told[1]["contacts"][0]["contact_id"]
        said = [_call(turn, 1, "send_message", contact_id=contact_id, text="I will be late.")]
    else:
        text = {"type": "output_text", "text": "It is sent."}
        said = [{"type": "message", "role": "assistant", "content": [text]}]
    return {
        "id": f"response-{digest(canonical([body, turn]))[:12]}",
        "output": said,
        "usage": {"input_tokens": len(body["input"]), "output_tokens": len(said)},
    }


def _call(turn: int, number: int, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"call-{turn}-{number}",
        "name": tool,
        "arguments": canonical(arguments),
    }
