# SPDX-License-Identifier: Apache-2.0
"""The model of a conformance run: ids, faults, usage, and what it writes down."""

import asyncio
import hashlib
import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollout_router.errors import ResponseCut
from rollout_router.gateway.model import Dialect, ModelRequest
from rollout_router.harness.model import CLOSED, ConformanceModel
from rollout_router.harness.scenario import (
    ANSWER_ID,
    SCENARIOS,
    Fault,
    Scenario,
    Step,
    marker,
    prompt,
    subagent_prompt,
)

STRING = {"command": {"type": "string"}}
SCHEMA = {"type": "object", "properties": STRING, "required": ["command"]}
TOOLS = {
    Dialect.CHAT: {"type": "function", "function": {"name": "bash", "parameters": SCHEMA}},
    Dialect.RESPONSES: {"type": "function", "name": "bash", "parameters": SCHEMA},
    Dialect.MESSAGES: {"name": "bash", "input_schema": SCHEMA},
}
AGENTS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"properties": {}}}
    for name in ("spawn_agent", "wait_agent")
]


MIXED = SCENARIOS["mixed"]
ENDS = {  # what follows a call's arguments
    Dialect.CHAT: '"finish_reason":"tool_calls"',
    Dialect.RESPONSES: '"status":"completed"',
    Dialect.MESSAGES: '"stop_reason":"tool_use"',
}


@dataclass
class Played:
    """A model, and what it wrote."""

    scenario: Scenario
    log: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.model = ConformanceModel(self.scenario, self.log, context_llm_tokens=100_000)

    async def ask(
        self,
        text: str,
        *,
        dialect: Dialect = Dialect.RESPONSES,
        stream: bool = True,
        tools: Any = None,
    ) -> tuple[int, bytes]:
        key = "input" if dialect is Dialect.RESPONSES else "messages"
        document = {
            "model": "m",
            key: [{"role": "user", "content": text}],
            "tools": [TOOLS[dialect]] if tools is None else tools,
            "stream": stream,
        }
        request = ModelRequest(
            method="POST",
            path=dialect.value,
            query=b"beta=true",
            headers=[(b"X-Title", "\u00e9".encode("latin-1"))],
            body=json.dumps(document).encode(),
            dialect=dialect,
            document=document,
        )
        async with self.model.answer(request) as answer:
            parts: list[bytes] = []
            try:
                async for part in answer.parts:
                    parts.append(part)  # noqa: PERF401 - those before a cut count
            except ResponseCut:
                return -1, b"".join(parts)
            return answer.status, b"".join(parts)

    def written(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def asked(self, *texts: str, **how: Any) -> list[tuple[int, bytes]]:
        async def ask() -> list[tuple[int, bytes]]:
            return [await self.ask(text, **how) for text in texts]

        return asyncio.run(ask())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", Dialect)
def test_every_answer_holds_its_id_and_no_other(dialect: Dialect, *, stream: bool) -> None:
    run = Played(MIXED)
    texts = prompt(MIXED), marker("1"), marker("1"), marker("7")
    answers = run.asked(*texts, dialect=dialect, stream=stream)
    ids = ["conf_main_0_1", "conf_main_1_1", "conf_main_1_2", "conf_main_7_1"]
    assert [status for status, _ in answers] == [200] * 4
    assert [set(ANSWER_ID.findall(body.decode())) for _, body in answers] == [{id_} for id_ in ids]
    assert [line["answer_id"] for line in run.written()] == ids


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault.UNAVAILABLE, 503), (Fault.BUSY, 429), (Fault.CLOSED, CLOSED), (Fault.CUT, -1)],
)
@pytest.mark.parametrize("dialect", Dialect)
def test_the_first_request_for_a_step_meets_its_fault(
    dialect: Dialect, fault: Fault, status: int
) -> None:
    run = Played(Scenario(name="two", steps=(Step(), Step()), faults={2: fault}))
    texts = [marker(str(done)) for done in (0, 1, 1, 2)]
    assert [each[0] for each in run.asked(*texts, dialect=dialect)] == [200, status, 200, 200]
    assert [line["fault"] for line in run.written()] == [None, fault, None, None]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", Dialect)
def test_an_answer_is_cut_after_its_beginning(dialect: Dialect, *, stream: bool) -> None:
    run = Played(Scenario(name="one", steps=(Step(),), faults={1: Fault.CUT}))
    (_, body), (_, again) = run.asked("", "", dialect=dialect, stream=stream)
    cut, whole = body.decode(), again.decode()
    if stream:
        assert cut.startswith(("data: ", "event: "))
        assert cut.endswith("\n\n")
        assert '"name":"bash"' in whole
        assert '"name":"bash"' not in cut
        assert ENDS[dialect] in whole
    else:
        json.loads(whole)
        with pytest.raises(ValueError, match=r"line 1"):
            json.loads(cut)


def test_a_full_context_is_reported_once_every_so_many_steps() -> None:
    run = Played(Scenario(name="full", steps=(Step(),) * 4, compact_every=2))
    run.asked(*(marker(str(done)) for done in (0, 1, 2, 2, 3, 4)))
    given = [line["usage"][0] for line in run.written()]
    assert [tokens > 50_000 for tokens in given] == [False, False, True, False, False, False]
    assert given[0] == given[3] == given[5]


def test_each_request_is_written_down_as_it_came() -> None:
    run = Played(MIXED)
    run.asked("é", dialect=Dialect.CHAT)
    (line,) = run.written()
    assert json.loads(line["body"])["messages"][0]["content"] == "é"
    assert line["sha256"] == hashlib.sha256(line["body"].encode()).hexdigest()
    assert (line["number"], line["path"]) == (1, "/v1/chat/completions")
    assert (line["conversation"], line["done"], line["fault"]) == ("main", 0, None)


def test_a_subagent_beside_its_parent_ends_once_it_is_waited_for() -> None:
    run = Played(MIXED)
    tools = [TOOLS[Dialect.RESPONSES], *AGENTS]
    here = f"conf-main {marker('4')}"
    order = []

    async def ask(name: str, text: str) -> None:
        _, body = await run.ask(text, tools=tools)
        order.append((name, name.encode() in body))

    async def play() -> None:
        await ask("spawn_agent", here)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(marker("5"), subagent_prompt(5) + marker("sub-5-2")))
            tasks.create_task(ask("wait_agent", here + subagent_prompt(5)))

    asyncio.run(play())
    assert order == [("spawn_agent", True), ("wait_agent", True), (marker("5"), True)]
    assert [line["conversation"] for line in run.written()] == ["main", "sub5", "main"]


def test_a_subagent_that_its_parent_stands_still_for_waits_for_nobody() -> None:
    ((status, body),) = Played(MIXED).asked(subagent_prompt(5) + marker("sub-5-2"))
    assert (status, marker("5").encode() in body) == (200, True)
