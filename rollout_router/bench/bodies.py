# SPDX-License-Identifier: Apache-2.0
"""Request bodies of an agent's conversation, of a size that is asked for. Pure and repeatable."""

import json
import random
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["TURNS", "TURN_BYTES", "Conversation"]

TURN_BYTES: Final = 4_096
"""Of the tool output in a turn, about what recorded runs of harnesses had."""

TURNS: Final = 8
"""So many turns follow the history, and then it begins anew, so that its size stays what it is."""

_SAMPLE: Final = """
the a of error in file line test passed failed return value def class import self None True assert
expected 0x7f 127.0.0.1 warning: INFO src/model/router.py README.md 42 3.14 { } [ ]
"""
_WORDS: Final = _SAMPLE.split()


class Conversation:
    """A history of about *history_bytes*, and turns of *turn_bytes* of output that follow it.

    The bodies are what Chat Completions sends: compact JSON with the whole history each time.

    Raises:
        ValueError: *history_bytes* is below one turn.
    """

    def __init__(self, history_bytes: int, *, turn_bytes: int = TURN_BYTES) -> None:
        if history_bytes < TURN_BYTES:
            raise ValueError(f"a history has {TURN_BYTES} bytes or more, not {history_bytes}")
        self._messages: list[dict[str, Any]] = []
        self._turn_bytes = turn_bytes
        self._turns = 0
        size = 0
        while size < history_bytes:
            turn = _turn(self._turns, min(TURN_BYTES, history_bytes - size))
            self._turns += 1
            self._messages += turn
            size += len(_json(turn))

    def bodies(self) -> Iterator[bytes]:
        """Bodies without end, as a rollout sends them: each is the one before and a turn more.

        After :data:`TURNS` turns the next body is the history and one new turn, as after a
        compaction. No two bodies are the same.
        """
        number = self._turns
        while True:
            messages = list(self._messages)
            for _ in range(TURNS):
                messages += _turn(number, self._turn_bytes)
                number += 1
                yield _body(messages)

    def history(self) -> bytes:
        """The body before them."""
        return _body(self._messages)


def _body(messages: list[dict[str, Any]]) -> bytes:
    return _json({"model": "bench", "messages": messages, "stream": False})


def _turn(number: int, output_bytes: int) -> list[dict[str, Any]]:
    call = {"id": f"call_{number:06}", "type": "function"}
    command = json.dumps({"command": f"run step {number}"})
    function = {"name": "bash", "arguments": command}
    return [
        {"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]},
        {"role": "tool", "tool_call_id": call["id"], "content": _text(number, output_bytes)},
    ]


def _text(seed: int, size: int) -> str:
    words = random.Random(seed)  # noqa: S311 - repeatable text, not secrets
    parts = []
    left = size
    while left > 0:
        part = words.choice(_WORDS) + words.choice(" \n")
        parts.append(part)
        left -= len(part)
    return "".join(parts)


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
