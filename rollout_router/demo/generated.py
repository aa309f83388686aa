# SPDX-License-Identifier: Apache-2.0
"""Invented rollouts, the same ones every time: as long and as mixed as those that agents leave.

Thirty shapes, from 7 to 272 items and from 13 KB to 155 KB as a line of JSON. The number of items
is exact, the size to two percent. Most bytes are in the outputs of tools, a few of which are long.
"""

import json
import random
from collections.abc import Callable
from typing import Any, Final

from rollout_router.demo.conversation import Rollout

__all__ = ["COUNT", "SHAPES", "generate"]

SHAPES: Final = (
    # items, KB, opening. The first few are a fair sample of all.
    (58, 50, "task"),
    (43, 52, "model"),
    (120, 96, "user"),
    (16, 30, "service"),
    (84, 82, "task"),
    (23, 39, "model"),
    (50, 41, "user"),
    (14, 29, "service"),
    (18, 86, "task"),
    (34, 37, "model"),
    (272, 155, "user"),
    (11, 14, "service"),
    (146, 126, "task"),
    (47, 75, "model"),
    (20, 16, "user"),
    (14, 13, "service"),
    (21, 15, "task"),
    (55, 87, "model"),
    (40, 21, "user"),
    (17, 28, "service"),
    (37, 58, "task"),
    (7, 13, "model"),
    (52, 36, "user"),
    (9, 18, "model"),
    (10, 15, "model"),
    (12, 20, "model"),
    (13, 21, "model"),
    (22, 25, "model"),
    (28, 41, "model"),
    (31, 24, "model"),
)
"""``task`` opens with system and user, ``user`` with the user alone, ``service`` with a system
message and a greeting of the assistant, ``model`` with a turn of the model."""

COUNT: Final = len(SHAPES)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS: Final = _words(
    "anchor basin beacon buffer cabinet canal carton cellar chart clock column compass cradle"
    " crane dial drawer engine ferry filter gauge harbour hatch hinge index kettle ladder ledger"
    " lantern lever loom margin mast meter orchard packet parcel pier pilot pulley quarry rack"
    " ramp reel sail scale shelf signal silo spindle stamp switch tide timber track tunnel valve"
    " vault weight winch window"
)
_VERBS: Final = _words(
    "align balance check close count drain fasten fold gather join label lift list load mark"
    " measure move note open order pack pair raise read record refill release repair return seal"
    " sort split stack store sum test trace turn weigh wind"
)
_ADJECTIVES: Final = _words(
    "broad calm clear cold early empty even fine flat fresh heavy inner late left level light"
    " long loose narrow near open outer plain right rough round sharp short small steady upper"
)


def generate(count: int = COUNT) -> list[Rollout]:
    """The first *count* rollouts; beyond thirty the shapes come again, with other texts."""
    return [_Writer(number).rollout() for number in range(count)]


class _Writer:
    """Writes one rollout; its number is the seed of everything in it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._random = random.Random(number)  # noqa: S311 - texts, not secrets
        self._items: list[dict[str, Any]] = []
        self._calls = 0

    def rollout(self) -> Rollout:
        count, kilobytes, opening = SHAPES[self._number % COUNT]
        self._open(opening)
        while (left := count - len(self._items) - 1) > 0:  # one is for the last word
            possible = [p for p in self._patterns(opening) if p[0] <= left and left - p[0] != 1]
            self._random.choice(possible)[1]()
        self._say(2)
        rollout_id = f"generated-{self._number:02d}"
        document = {"rollout_id": rollout_id, "items": self._items}
        empty = len(json.dumps(document, separators=(",", ":")))
        self._fill_outputs(kilobytes * 1000 - empty)
        return Rollout(rollout_id=rollout_id, items=self._items)

    def _open(self, opening: str) -> None:
        if opening in {"task", "service"}:
            self._message("system", 12)
        if opening in {"task", "user"}:
            self._message("user", 25)
        if opening == "service":
            self._talk()

    def _patterns(self, opening: str) -> list[tuple[int, Callable[[], None]]]:
        """What may come next, and how many items it has; twice means twice as likely."""
        patterns = [
            (2, self._work),
            (3, self._say_and_work),
            (3, self._say_and_work),
            (3, self._think_and_work),
            (4, self._work_twice_at_once),
        ]
        return [*patterns, (2, self._talk)] if opening == "service" else patterns

    def _talk(self) -> None:
        self._say(1)
        self._message("user", 2)

    def _work(self) -> None:
        self._call()
        self._output(self._calls)

    def _say_and_work(self) -> None:
        self._say(1)
        self._work()

    def _think_and_work(self) -> None:
        summary = [{"type": "summary_text", "text": self._sentences(2)}]
        self._items.append(
            {"type": "reasoning", "id": f"rs_{len(self._items)}", "summary": summary}
        )
        self._work()

    def _work_twice_at_once(self) -> None:
        self._call()
        self._call()
        self._output(self._calls - 1)
        self._output(self._calls)

    def _message(self, role: str, sentences: int) -> None:
        content = self._sentences(sentences)
        self._items.append({"type": "message", "role": role, "content": content})

    def _say(self, sentences: int) -> None:
        text = {"type": "output_text", "text": self._sentences(sentences), "annotations": []}
        self._items.append(
            {
                "type": "message",
                "role": "assistant",
                "id": f"msg_{len(self._items)}",
                "status": "completed",
                "content": [text],
            }
        )

    def _call(self) -> None:
        self._calls += 1
        tool, arguments = self._random.choice(
            (
                ("run", {"command": f"./{self._verb()} --{self._noun()} {self._path()}"}),
                ("read_file", {"path": self._path(), "first_line": self._below(400)}),
                ("search", {"pattern": f"{self._noun()}_{self._noun()}", "path": "."}),
                ("edit_file", {"path": self._path(), "old": self._code(), "new": self._code()}),
            )
        )
        self._items.append(
            {
                "type": "function_call",
                "call_id": self._call_id(self._calls),
                "name": tool,
                "arguments": json.dumps(arguments),
                "status": "completed",
            }
        )

    def _output(self, call: int) -> None:
        self._items.append(
            {"type": "function_call_output", "call_id": self._call_id(call), "output": ""}
        )

    def _fill_outputs(self, bytes_wanted: int) -> None:
        """Share the bytes out unevenly: many outputs are short, and a few are most of it."""
        outputs = [item for item in self._items if item["type"] == "function_call_output"]
        weights = [self._random.paretovariate(1.2) for _ in outputs]
        for item, weight in zip(outputs, weights, strict=True):
            item["output"] = self._lines(int(bytes_wanted * weight / sum(weights)))

    def _lines(self, bytes_wanted: int) -> str:
        """Lines of one kind; a line end counts two bytes, as JSON writes it."""
        write = self._random.choice((self._code, self._log, self._listing))
        text = ""
        size = 0
        while size < bytes_wanted:
            line = write()[: bytes_wanted - size]
            text += line + "\n"
            size += len(line) + 2
        return text

    def _code(self) -> str:
        indent = "    " * self._below(4)
        call = f"{self._verb()}_{self._noun()}({self._noun()}, {self._below(90)})"
        return f"{indent}{self._noun()}_{self._noun()} = self.{call}"

    def _log(self) -> str:
        time = f"{self._below(24):02d}:{self._below(60):02d}:{self._below(60):02d}"
        mark = f"{self._random.getrandbits(32):08x}"
        return f"{time} {self._noun()}[{self._below(9000)}]: {mark} {self._sentence()}"

    def _listing(self) -> str:
        return f"{self._path()}:{self._below(900)}: {self._noun()} {self._below(10**6)} bytes"

    def _sentences(self, count: int) -> str:
        return " ".join(self._sentence() for _ in range(count))

    def _sentence(self) -> str:
        adjective = self._random.choice(_ADJECTIVES)
        first = f"{self._verb().capitalize()} the {adjective} {self._noun()}"
        return f"{first} and {self._verb()} the {self._noun()} of the {self._noun()}."

    def _path(self) -> str:
        return f"{self._noun()}/{self._noun()}_{self._noun()}.py"

    def _call_id(self, call: int) -> str:
        return f"call_{self._number:02d}_{call:04d}"

    def _noun(self) -> str:
        return self._random.choice(_NOUNS)

    def _verb(self) -> str:
        return self._random.choice(_VERBS)

    def _below(self, bound: int) -> int:
        return self._random.randrange(bound)
