# SPDX-License-Identifier: Apache-2.0
"""A small real agent on the OpenAI SDK, its history sent as deltas by a transport in its process.

    python -m rollout_router.harness.sdk_agent --base-url URL --api chat --prompt TEXT

It has one tool, a shell, and goes on until the model calls none. Answers are streamed, and the
calls of one turn run side by side. It prints a line of JSON for each answer, and one at its end.
It needs ``openai`` (2.x or 3.x), and runs on Python 3.9; of this project it needs ``transport``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import openai

__all__ = ["main"]

_INSTRUCTIONS = """\
You work on a task in a sandbox, with a shell. Nobody watches while you work, and nobody answers
questions: decide yourself, and say at the end what you decided.

How to work
- Look before you change anything: list the folder, read the files that the task names and those
  that use them, and find out how the project is built and tested.
- Make a plan of a few steps, and take one at a time. After each step look at what it did.
- Change as little as the task needs. Keep the style of the file that you change. Leave what you
  did not break as it is, and tell about it instead.
- Run the tests that cover your change before you are done, and those of the whole project where
  they take minutes. A test that fails for another reason is worth a sentence, not a change.

How to use the shell
- Each command runs in a shell of its own, in the folder of the task. Variables and the working
  directory do not last from one command to the next.
- Commands must end by themselves: no editors, no pagers, no servers in the foreground. Give long
  ones a time limit.
- Output is cut off in the middle where it is very long. Ask for what you need: a range of lines,
  the names of files, the last lines of a log.
- Run commands that do not depend on one another in the same turn, side by side.

How to end
- Say in a few sentences what you changed and why, how you checked it, and what is left to do. Name
  files by their path. Do not repeat their content.
"""
_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "The command line."}},
    "required": ["command"],
    "additionalProperties": False,
}
_ABOUT = {
    "name": "shell",
    "description": "Run a command in the sandbox's shell; gives its output and exit code.",
    "parameters": _SCHEMA,
}
_COMMAND_S = 600.0
_OUTPUT_CHARACTERS_MAX = 65_536
_ATTEMPTS_MAX = 4  # of a call whose stream is cut: of that the SDK itself tries nothing again
_TURNS_MAX = 1_000


class _Call(NamedTuple):
    """One use of the shell, as the model asked for it."""

    call_id: str
    arguments: str  # JSON


class _Turn(NamedTuple):
    """One whole answer."""

    answer_id: str
    usage: Any
    text: str
    calls: list[_Call]
    items: list[Any]  # what the next request holds of it


class _Cut(Exception):  # noqa: N818 - names what happened
    """A stream ended without its last event."""

    def __init__(self) -> None:
        super().__init__("the answer's stream ended, and the answer is not whole")


class _Chat:
    """A conversation in Chat Completions."""

    def __init__(self, prompt: str) -> None:
        self.items: list[Any] = [
            {"role": "system", "content": _INSTRUCTIONS},
            {"role": "user", "content": prompt},
        ]

    def create(self, client: Any, model: str) -> Any:
        return client.chat.completions.create(
            model=model,
            messages=self.items,
            tools=[{"type": "function", "function": _ABOUT}],
            stream=True,
            stream_options={"include_usage": True},
        )

    @staticmethod
    def turn(events: list[Any]) -> _Turn:
        text, usage, whole = "", None, False
        calls: dict[int, _Call] = {}
        for event in events:
            usage = event.usage or usage
            for choice in event.choices:
                whole = whole or choice.finish_reason is not None
                text += choice.delta.content or ""
                for part in choice.delta.tool_calls or ():
                    call = calls.get(part.index, _Call("", ""))
                    more = (part.function.arguments if part.function else None) or ""
                    calls[part.index] = _Call(part.id or call.call_id, call.arguments + more)
        if not whole:
            raise _Cut
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        asked = [calls[index] for index in sorted(calls)]
        if asked:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": _ABOUT["name"], "arguments": call.arguments},
                }
                for call in asked
            ]
        return _Turn(events[0].id, usage, text, asked, [message])

    @staticmethod
    def result(call: _Call, output: str) -> Any:
        return {"role": "tool", "tool_call_id": call.call_id, "content": output}


class _Responses:
    """A conversation in Responses; nothing of it is stored at the other side."""

    def __init__(self, prompt: str) -> None:
        self.items: list[Any] = [{"role": "user", "content": prompt}]

    def create(self, client: Any, model: str) -> Any:
        return client.responses.create(
            model=model,
            instructions=_INSTRUCTIONS,
            input=self.items,
            tools=[{"type": "function", "strict": True, **_ABOUT}],
            stream=True,
            store=False,
        )

    @staticmethod
    def turn(events: list[Any]) -> _Turn:
        if not events or events[-1].type != "response.completed":
            raise _Cut
        response = events[-1].response
        items = [item.to_dict() for item in response.output]
        calls = [
            _Call(item["call_id"], item["arguments"])
            for item in items
            if item["type"] == "function_call"
        ]
        return _Turn(response.id, response.usage, response.output_text, calls, items)

    @staticmethod
    def result(call: _Call, output: str) -> Any:
        return {"type": "function_call_output", "call_id": call.call_id, "output": output}


_APIS = {"chat": _Chat, "responses": _Responses}


class _Agent:
    """Plays one conversation; *transport* is None where the SDK's own sends whole bodies."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._conversation: Any = _APIS[args.api](args.prompt)
        name = _library() if args.flavour in {"auto", "none"} else args.flavour
        self._hx: Any = importlib.import_module(name)
        self._cuts: tuple[Any, ...] = (_Cut, openai.APIConnectionError, self._hx.TransportError)
        self.transport: Any = None
        if args.flavour != "none":
            flavour = importlib.import_module(f"rollout_router.transport.{name}")
            kind = flavour.AsyncDeltaTransport if args.asynchronous else flavour.DeltaTransport
            self.transport = kind(rollout=args.rollout)

    def play(self) -> str:
        """Until the model calls no tool; gives what it said."""
        options = self._options(self._hx.Client)
        with openai.OpenAI(**options) as client, ThreadPoolExecutor() as threads:
            for _ in range(_TURNS_MAX):
                turn = self._ask(client)
                if self._took(turn):
                    return turn.text
                self._add(turn, list(threads.map(self._run, turn.calls)))
        raise _too_long()

    async def play_async(self) -> str:
        """The same in an event loop."""
        options = self._options(self._hx.AsyncClient)
        async with openai.AsyncOpenAI(**options) as client:
            for _ in range(_TURNS_MAX):
                turn = await self._ask_async(client)
                if self._took(turn):
                    return turn.text
                runs = (asyncio.to_thread(self._run, call) for call in turn.calls)
                self._add(turn, list(await asyncio.gather(*runs)))
        raise _too_long()

    def _options(self, kind: Any) -> dict[str, Any]:
        options = {"base_url": self._args.base_url, "api_key": self._args.api_key}
        if self.transport is not None:
            options["http_client"] = kind(transport=self.transport, follow_redirects=True)
        return options

    def _ask(self, client: Any, attempts: int = _ATTEMPTS_MAX) -> _Turn:
        try:
            return self._turn(list(self._conversation.create(client, self._args.model)))
        except self._cuts:
            if attempts == 1:
                raise
        return self._ask(client, attempts - 1)

    async def _ask_async(self, client: Any, attempts: int = _ATTEMPTS_MAX) -> _Turn:
        try:
            stream = await self._conversation.create(client, self._args.model)
            return self._turn([event async for event in stream])
        except self._cuts:
            if attempts == 1:
                raise
        return await self._ask_async(client, attempts - 1)

    def _turn(self, events: list[Any]) -> _Turn:
        turn: _Turn = self._conversation.turn(events)
        return turn

    def _took(self, turn: _Turn) -> bool:
        """Say that an answer is whole; whether it is the last one."""
        usage = None if turn.usage is None else turn.usage.to_dict()
        _say(type="call", id=turn.answer_id, usage=usage)
        return not turn.calls

    def _add(self, turn: _Turn, outputs: list[str]) -> None:
        results = map(self._conversation.result, turn.calls, outputs)
        self._conversation.items += [*turn.items, *results]

    def _run(self, call: _Call) -> str:
        try:
            command = json.loads(call.arguments)["command"]
            done = subprocess.run(  # noqa: S603 - what an agent is for
                [self._args.shell, "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_S,
                check=False,
            )
        except (ValueError, KeyError, TypeError, OSError, subprocess.TimeoutExpired) as error:
            return f"not run: {error}"
        output = done.stdout.decode(errors="replace")[:_OUTPUT_CHARACTERS_MAX]
        return f"{output}\nexit code {done.returncode}"


def main(argv: list[str] | None = None) -> int:
    """Play, and print what happened; 0 where the model ended the task."""
    args = _parser().parse_args(argv)
    agent = _Agent(args)
    try:
        answer = asyncio.run(agent.play_async()) if args.asynchronous else agent.play()
    except (*agent._cuts, openai.OpenAIError) as error:  # noqa: SLF001 - this module's own
        _say(type="failed", error=f"{type(error).__name__}: {error}")
        return 1
    statistics = None if agent.transport is None else agent.transport.statistics()
    _say(type="done", answer=answer, statistics=statistics)
    return 0


def _library() -> str:
    """The HTTP library that this SDK stands on."""
    modules = (kind.__module__.split(".")[0] for kind in openai.DefaultHttpxClient.__mro__)
    return next(module for module in modules if module.startswith("httpx"))


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _too_long() -> Exception:
    return openai.OpenAIError(f"the model was not done after {_TURNS_MAX} turns")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sdk_agent", description=__doc__)
    parser.add_argument("--base-url", required=True, help="ends in /v1; may name a rollout")
    parser.add_argument("--api", choices=sorted(_APIS), default="chat")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"))
    parser.add_argument("--async", dest="asynchronous", action="store_true")
    parser.add_argument(
        "--flavour",
        choices=["auto", "httpx", "httpx2", "none"],
        default="auto",
        help="the HTTP library of the transport; none sends whole bodies",
    )
    parser.add_argument("--model", default="scripted")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--rollout", help="the id, where the base URL names none")
    parser.add_argument("--shell", default="bash", help="what runs the model's commands")
    return parser


if __name__ == "__main__":
    sys.exit(main())
