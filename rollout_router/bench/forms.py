# SPDX-License-Identifier: Apache-2.0
"""The forms in which harnesses send a growing conversation, as runs of invented bodies. Pure.

Each form is what one kind of harness was seen to do to its bodies from call to call. A run has 21
calls, and compact JSON bodies of 20 to 100 KB with items of 0.3 to 8 KB; it is the same one each
time.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["CALLS", "FORMS"]

CALLS: Final = 21
"""Of a run, as the recorded ones had."""

_Item = dict[str, Any]
_TEXT: Final = """
anchor buffer check class client close config count data def delta error expected fail field file
filter first found from handle import index input item key line list load local match method model
module name node none object open order output parse path pool print queue raise read record result
return retry route row self server session set size slot split start state step store string table
task test time token trace true type update user value version write
"""
_WORDS: Final = _TEXT.split()
_RESTARTS: Final = 7
"""After so many calls a run that compacts does so, and a process ends that is resumed."""


class _Writer:
    """Writes the items of one run; texts of tools mix words, paths, numbers and digests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable texts, not secrets

    def text(self, size: int) -> str:
        lines = []
        while size > 0:
            line = " ".join(self._random.choices(_WORDS, k=self._random.randint(3, 12)))
            ending = self._random.choice(("", f":{self.number(4)}", f" {self.digest(8)}", "()"))
            lines.append(f"{' ' * self._random.choice((0, 4, 8))}{line}{ending}\n")
            size -= len(lines[-1])
        return "".join(lines)

    def size(self) -> int:
        """Of a tool's output: mostly some hundred bytes, sometimes 8 KB."""
        return min(8_000, int(300 * self._random.paretovariate(0.6)))

    def number(self, digits: int) -> int:
        return self._random.randrange(10**digits)

    def digest(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def shuffled(self, fields: Mapping[str, Any]) -> _Item:
        return dict(self._random.sample(list(fields.items()), len(fields)))

    def tools(self, count: int) -> list[_Item]:
        return [
            {
                "type": "function",
                "name": f"{word}_{number}",
                "description": self.text(1_400),
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            }
            for number, word in enumerate(_WORDS[:count])
        ]


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _turn(write: _Writer) -> list[_Item]:
    """The model's call of a tool, and the tool's output, as Chat Completions writes them."""
    call_id = f"call_{write.digest(24)}"
    arguments = json.dumps({"command": write.text(80)})
    call = {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return [
        {"role": "assistant", "content": write.text(120), "tool_calls": [call]},
        {
            "role": "tool",
            "name": "bash",
            "tool_call_id": call_id,
            "content": write.text(write.size()),
        },
    ]


def _opening(write: _Writer) -> list[_Item]:
    return [
        {"role": "system", "content": write.text(7_000)},
        {"role": "user", "content": write.text(900)},
    ]


def _grown(write: _Writer) -> Iterator[list[_Item]]:
    """The messages of each call."""
    messages = _opening(write)
    for _ in range(CALLS):
        yield list(messages)
        messages += _turn(write)


def _chat() -> Iterator[bytes]:
    """Messages grow in the middle of the body; the tools stand behind them."""
    write = _Writer(1)
    tools = write.tools(10)
    for messages in _grown(write):
        yield _json({"model": "m", "messages": messages, "stream": True, "tools": tools})


def _codex() -> Iterator[bytes]:
    """Responses: metadata at the end, in another order each call; tools before the input."""
    write = _Writer(2)
    tools = write.tools(9)
    session = write.digest(32)
    turn = {"session": session, "sandbox": "none", "turn": write.digest(32), "cwd": write.text(300)}
    metadata = {
        "x-codex-installation-id": write.digest(32),
        "x-codex-window-id": f"{session}:0",
        "x-codex-turn-metadata": json.dumps(turn),
        "session_id": session,
        "thread_id": session,
        "turn_id": turn["turn"],
        "root_turn_id": turn["turn"],
    }
    for messages in _grown(write):
        document = {"model": "m", "stream": True, "input": messages, "tools": tools}
        tail = {"prompt_cache_key": session, "client_metadata": write.shuffled(metadata)}
        yield _json({**document, "store": False, **tail})


def _marked(item: _Item, *, as_list: bool) -> _Item:
    """The item with a cache marker on its content, in the Anthropic form."""
    if as_list:
        block = {"type": "text", "text": item["content"], "cache_control": {"type": "ephemeral"}}
        return {**item, "content": [block]}
    return {**item, "cache_control": {"type": "ephemeral"}}


def _messages(marked: int, *, as_list: bool) -> Iterator[bytes]:
    """Markers on the last *marked* messages, which move with each call."""
    write = _Writer(3 + marked)
    tools = write.tools(10)
    for messages in _grown(write):
        ends = [_marked(item, as_list=as_list) for item in messages[-marked:]]
        document = {"model": "m", "messages": messages[:-marked] + ends}
        yield _json({**document, "tools": tools, "stream": True})


def _cleared() -> Iterator[bytes]:
    """The output of a tool five turns ago is cleared in each call."""
    write = _Writer(10)
    tools = write.tools(10)
    for messages in _grown(write):
        for item in messages[3:-10:2]:
            item["content"] = "[Old tool result content cleared]"
        yield _json({"model": "m", "messages": messages, "tools": tools})


def _resumed() -> Iterator[bytes]:
    """Every seven calls another process goes on, in which tools' messages have no names."""
    write = _Writer(11)
    tools = write.tools(17)
    for number, messages in enumerate(_grown(write)):
        if number % _RESTARTS == 0:
            for item in messages:
                item.pop("name", None)
        yield _json({"messages": messages, "model": "m", "stream": True, "tools": tools})


def _compacted() -> Iterator[bytes]:
    """A call that summarises has a prompt of its own; then opening, summary and last two turns."""
    write = _Writer(12)
    tools = write.tools(10)
    messages = opening = _opening(write)
    for number in range(1, CALLS + 1):
        if number % _RESTARTS:
            yield _json({"model": "m", "messages": messages, "tools": tools})
            messages = messages + _turn(write)
        else:
            task = [{"role": "system", "content": write.text(1_500)}]
            yield _json({"model": "m", "messages": task + messages[1:]})
            summary = {"role": "user", "content": write.text(1_200)}
            messages = [*opening[:1], summary, *messages[-4:]]


def _shortened() -> Iterator[bytes]:
    """At a compaction all but the last outputs become one line each, and a summary follows them."""
    write = _Writer(15)
    tools = write.tools(17)
    messages = _opening(write)
    for number in range(1, CALLS + 1):
        yield _json({"messages": messages, "model": "m", "stream": True, "tools": tools})
        if number % _RESTARTS == 0:
            for item in messages[3:-4:2]:
                item["content"] = f"[bash] ran `{item['content'][:40]}` -> exit 0"
            summary = {"role": "user", "content": write.text(1_200)}
            messages = [*messages[:-4], summary, *messages[-4:]]
        messages = messages + _turn(write)


def _redated() -> Iterator[bytes]:
    """The system prompt's first line names a time that changes with each call."""
    write = _Writer(13)
    tools = write.tools(10)
    for number, messages in enumerate(_grown(write)):
        system = {**messages[0], "content": f"Now: 12:{number:02}. {messages[0]['content']}"}
        yield _json({"model": "m", "messages": [system, *messages[1:]], "tools": tools})


def _parallel() -> Iterator[bytes]:
    """Three agents take turns; they share tools and prompt, which begins with the time."""
    write = _Writer(14)
    tools = write.tools(10)
    shared = write.text(4_000)
    agents = [[{"role": "system", "content": shared + write.text(900)}] for _ in range(3)]
    for number in range(CALLS):
        agent = agents[number % 3]
        agent += _turn(write) + _turn(write)
        system = {**agent[0], "content": f"Now: 12:{number:02}. {agent[0]['content']}"}
        yield _json({"model": "m", "messages": [system, *agent[1:]], "tools": tools})


FORMS: Final[Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "growth before the tools": _chat,
    "metadata in random order": _codex,
    "1 moving marker": lambda: _messages(1, as_list=False),
    "2 moving markers": lambda: _messages(2, as_list=False),
    "3 moving markers, text as a list": lambda: _messages(3, as_list=True),
    "old outputs cleared": _cleared,
    "names lost at a resume": _resumed,
    "compaction": _compacted,
    "outputs shortened": _shortened,
    "a time in the system prompt": _redated,
    "three agents at once": _parallel,
}
"""The bodies of one run of each form, by what is special about it."""
