# SPDX-License-Identifier: Apache-2.0
"""The model of a conformance run: it decides by the conversation, and writes down what it saw.

It keeps how often each question was put: so the first request for a step can meet its fault, and
each answer has an id of its own, the same in every run that goes the same way. And a subagent that
runs beside its parent ends once the parent waits for it: so the parent hears of it in one place.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, Self, TextIO

from rollout_router.errors import ResponseCut
from rollout_router.gateway.dialects import Turn, usage_of
from rollout_router.gateway.model import ModelAnswer, ModelRequest, problem
from rollout_router.gateway.script import Say
from rollout_router.gateway.scripted import Scripted, answer_with
from rollout_router.harness.decision import Decision, decide
from rollout_router.harness.scenario import Fault, Scenario

__all__ = ["CLOSED", "ConformanceModel"]

CLOSED: Final = 444
"""The status of an answer that is none: the server closes the connection."""

_RETRY_AFTER: Final = [(b"retry-after", b"1")]
_REFUSED: Final = {
    Fault.UNAVAILABLE: (503, "overloaded", _RETRY_AFTER),
    Fault.BUSY: (429, "rate_limit_exceeded", _RETRY_AFTER),
    Fault.CLOSED: (CLOSED, "closed", []),
}
_FULL_PERCENT: Final = 99  # OpenCode keeps 8,192 LLM tokens free, the others more
_STEP_BYTES: Final = 4_500  # about what a step adds to a request


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reply:
    """An answer, before it is written down."""

    decision: Decision
    answer_id: str
    fault: Fault | None
    usage: tuple[int, int]


class ConformanceModel:
    """Plays *scenario*, behind the gateway's ``Model`` port.

    Args:
        scenario: what is played.
        log: gets a line of JSON for each request, in the order of their arrival: ``number`` (from
            1), ``path``, ``query``, ``headers`` (pairs, as they came), ``sha256``, ``body`` (as
            text), ``answer_id``, ``conversation``, ``done`` (steps), ``fault`` (null: an answer in
            full) and ``usage`` (input, output).
        context_llm_tokens: of the model, as the harness was told; nearly as many are reported as
            used where the harness is to compact.
    """

    reads_documents = True

    def __init__(self, scenario: Scenario, log: TextIO, *, context_llm_tokens: int) -> None:
        self._scenario = scenario
        self._log = log
        self._full_llm_tokens = context_llm_tokens * _FULL_PERCENT // 100
        self._deliveries: Counter[tuple[str, int]] = Counter()
        self._awaited: dict[int, asyncio.Event] = {}  # subagents that run, by their step
        self._numbers = 0
        self._catalogue = Scripted()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    @asynccontextmanager
    async def answer(self, request: ModelRequest) -> AsyncIterator[ModelAnswer]:
        """Answer as the conversation wants it; look-ups get a model of any name."""
        dialect, document = request.dialect, request.document
        if dialect is None or document is None:
            async with self._catalogue.answer(request) as found:
                yield found
            return
        text = request.body.decode()
        reply = self._reply(decide(self._scenario, dialect, document, text))
        self._write(request, text, reply)
        await self._in_order(reply.decision)
        if reply.fault in _REFUSED:
            status, code, headers = _REFUSED[reply.fault]
            yield problem(status, "a fault", code=code, dialect=dialect, headers=headers)
            return
        said, name = reply.decision.named(reply.answer_id), reply.answer_id
        if reply.fault:  # a text before the tool call, so that the beginning is not of the call
            said = [Say(text="It is next."), *said]
        turn = Turn(said=said, model=document["model"], name=name, usage=reply.usage)
        answer = answer_with(turn, dialect, document)
        yield replace(answer, parts=_cut(answer.parts)) if reply.fault else answer

    def _reply(self, decision: Decision) -> _Reply:
        key = decision.conversation, decision.done
        self._deliveries[key] += 1
        first = self._deliveries[key] == 1
        return _Reply(
            decision=decision,
            answer_id=f"conf_{decision.conversation}_{decision.done}_{self._deliveries[key]}",
            fault=self._scenario.faults.get(decision.asks or 0) if first else None,
            usage=self._usage(decision, first=first),
        )

    def _usage(self, decision: Decision, *, first: bool) -> tuple[int, int]:
        """Made up, from what is the same in every run; the context is full every so often."""
        every = self._scenario.compact_every
        since = decision.done % every if every else decision.done
        given, made = usage_of(decision.said, (since + 1) * _STEP_BYTES)
        full = every and since == 0 and decision.done and decision.asks and first
        return self._full_llm_tokens if full else given, made

    async def _in_order(self, decision: Decision) -> None:
        if decision.starts is not None:
            self._awaited.setdefault(decision.starts, asyncio.Event())
        if decision.awaits in self._awaited:
            self._awaited[decision.awaits].set()
        if decision.ends in self._awaited:
            await self._awaited[decision.ends].wait()

    def _write(self, request: ModelRequest, text: str, reply: _Reply) -> None:
        self._numbers += 1
        line = {
            "number": self._numbers,
            "path": request.path,
            "query": request.query.decode(),
            "headers": [[part.decode("latin-1") for part in pair] for pair in request.headers],
            "sha256": hashlib.sha256(request.body).hexdigest(),
            "body": text,
            "answer_id": reply.answer_id,
            "conversation": reply.decision.conversation,
            "done": reply.decision.done,
            "fault": reply.fault,
            "usage": reply.usage,
        }
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()


async def _cut(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The first event of an answer; half of it where it is not streamed."""
    whole = [part async for part in parts]
    yield whole[0] if len(whole) > 1 else whole[0][: len(whole[0]) // 2]
    raise ResponseCut("cut as the scenario wants it")
