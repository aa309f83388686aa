# SPDX-License-Identifier: Apache-2.0
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.recording import on_a_loop

from rollout_router.checkpoint import client as client_module
from rollout_router.checkpoint.client import Answer, Caller
from rollout_router.checkpoint.effects import Lost, NotPerformed
from rollout_router.checkpoint.errors import CODES, CheckpointRefusal
from rollout_router.checkpoint.wire import Operation

OPERATION = Operation(
    rollout_id="r", sequence=3, store_id="s", claim_epoch=9, environment_id="e"
)  # fmt: skip


class Wire:
    """A server that answers each request with the same bytes, and what it was sent."""

    def __init__(self, answer: bytes | None, *, kept: int = 1) -> None:
        self.answer, self.kept, self.connections = answer, kept, 0
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.left = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer *kept* requests of a connection; the next one is read, and the connection cut."""
        self.connections += 1
        try:
            for number in range(self.kept + 1):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.rstrip().split("\r\n")
                headers = {name.lower(): value for name, value in (x.split(": ", 1) for x in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                self.requests.append((first, headers, body))
                if self.answer is None:
                    await reader.read()  # until the client leaves
                if self.answer is None or number == self.kept:
                    break
                writer.write(self.answer)
                await writer.drain()
                if b"content-length: 99" in self.answer:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            self.left.set()


@asynccontextmanager
async def calling(wire: Wire, **named: Any) -> AsyncIterator[Caller]:
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Caller(f"http://127.0.0.1:{port}/", **named) as caller:
            yield caller
        if wire.connections:
            await wire.left.wait()


def said(status: int, body: bytes | str = b"{}", *lines: str) -> bytes:
    text = body.encode() if isinstance(body, str) else body
    head = [f"HTTP/1.1 {status} x", f"content-length: {len(text)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + text


def error(code: str) -> str:
    return json.dumps({"error": {"message": "no", "code": code}})


RETRY = "retry-after: 2"
PERFORMED = [
    (said(200, '{"a":1}'), 200, {"a": 1}),
    (said(201, "[]"), 201, []),
    (said(204, ""), 204, None),
    (said(400, '{"error":"a text"}'), 400, {"error": "a text"}),
    (said(404, error("model_unknown")), 404, json.loads(error("model_unknown"))),
    (said(422, '{"error":{"code":null}}'), 422, {"error": {"code": None}}),
    (said(413, ""), 413, None),
    # What succeeded is a result, whatever it speaks of.
    (said(200, error("gap")), 200, json.loads(error("gap"))),
    (said(200, error("checkpoint_parked")), 200, json.loads(error("checkpoint_parked"))),
]
NOT_PERFORMED = [
    (said(503, "", RETRY), 2.0),
    (said(503, error("environment_unavailable"), "retry-after: 0.5"), 0.5),
    (said(503, error("draining"), "retry-after: 1"), 1.0),
    (said(429, "slow down"), 0.0),
    (said(429, "{}", "retry-after: Wed, 21 Oct 2026 07:28:00 GMT"), 0.0),
    (said(429, "{}", RETRY), 2.0),
    (said(409, error("checkpoint_parked")), 0.0),
    (said(409, error("checkpoint_parked"), RETRY), 2.0),
    (said(500, error("environment_failed")), 0.0),
]
LOST = [
    said(500),
    said(502, error("owner_lost_in_flight")),
    said(503),
    *(said(503, "", f"retry-after: {text}") for text in ("soon", "-1", "nan", "inf", "")),
    said(504),
    said(301, "", "location: /elsewhere"),
    said(307, "", "location: /elsewhere"),
    said(200, "no JSON"),
    said(200, "[" * 100_000),
    said(200, "9" * 5_000),
    said(200, b"\xff\xfe"),
    said(404, "<html>"),
    b"HTTP/1.1 200 x\r\ncontent-length: 99\r\n\r\n{}",
    b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\ncontent-length: 99\r\n\r\n2\r\n{}\r\n",
    b"no HTTP\r\n\r\n",
    said(200, b"not deflated", "content-encoding: gzip"),
]


@pytest.mark.parametrize(("answer", "status", "document"), PERFORMED)
@on_a_loop
async def test_an_answer_of_the_application_is_the_result(
    answer: bytes, status: int, document: Any
) -> None:
    wire = Wire(answer)
    async with calling(wire) as caller:
        found = await caller.post(OPERATION, "/p", {"é": None})
    assert found == Answer(status=status, document=document, cookies={}, revision=None)
    ((first, headers, body),) = wire.requests
    assert first == "POST /p HTTP/1.1"
    assert json.loads(body) == {"é": None}
    assert Operation.from_headers(headers) == OPERATION
    assert "cookie" not in headers


@pytest.mark.parametrize(("answer", "retry_after_s"), NOT_PERFORMED)
@on_a_loop
async def test_a_refusal_before_anything_happened_is_not_performed(
    answer: bytes, retry_after_s: float
) -> None:
    wire = Wire(answer)
    async with calling(wire) as caller:
        with pytest.raises(NotPerformed) as refusal:
            await caller.post(OPERATION, "/p", None)
    assert refusal.value.retry_after_s == retry_after_s
    assert len(wire.requests) == 1


@pytest.mark.parametrize("answer", LOST)
@on_a_loop
async def test_any_other_answer_is_lost_and_the_operation_was_sent_once(answer: bytes) -> None:
    wire = Wire(answer)
    async with calling(wire) as caller:
        with pytest.raises(Lost):
            await caller.post(OPERATION, "/p", None)
    assert (len(wire.requests), wire.connections) == (1, 1)


@pytest.mark.parametrize(
    "code", ["stale_attempt", "operation_conflict", "environment_unknown", "environment_lost"]
)
@on_a_loop
async def test_a_code_of_ours_is_a_refusal_with_its_outcome(code: str) -> None:
    wire = Wire(said(CODES[code].status, error(code)))
    async with calling(wire) as caller:
        with pytest.raises(CheckpointRefusal, match="/p") as refusal:
            await caller.post(OPERATION, "/p", None)
    assert (refusal.value.code, refusal.value.outcome) == (code, CODES[code].outcome)


@on_a_loop
async def test_a_server_that_takes_no_connection_performed_nothing() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        async with Caller(f"http://127.0.0.1:{nobody.getsockname()[1]}") as caller:
            with pytest.raises(NotPerformed, match="no connection"):
                await caller.post(OPERATION, "/p", None)
            with pytest.raises(CheckpointRefusal, match="could not be given up") as refusal:
                await caller.forget("e")
    assert refusal.value.code == "environment_unreachable"
    with pytest.raises(RuntimeError):
        await Caller("http://127.0.0.1").post(OPERATION, "/p", None)


@on_a_loop
async def test_an_answer_that_does_not_come_in_time_is_lost() -> None:
    wire = Wire(None)
    async with calling(wire, timeout_s=0.05) as caller:
        with pytest.raises(Lost, match="Timeout"):
            await caller.post(OPERATION, "/p", None)


@on_a_loop
async def test_an_answer_that_is_too_long_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_BYTES_MAX", 8)
    async with calling(Wire(said(200, "[0,0,0,0]"))) as caller:
        with pytest.raises(Lost, match="longer"):
            await caller.post(OPERATION, "/p", None)
    async with calling(Wire(said(200, "[0,0,00]"[:6] + "0]"))) as caller:
        with pytest.raises(Lost, match="200"):
            await caller.post(OPERATION, "/p", None)


@pytest.mark.parametrize("kept", [1, 2])
@on_a_loop
async def test_what_a_kept_connection_lost_is_not_sent_again(kept: int) -> None:
    wire = Wire(said(200), kept=kept)
    async with calling(wire) as caller:
        for _ in range(kept):
            await caller.post(OPERATION, "/p", {})
        with pytest.raises(Lost):
            await caller.post(OPERATION, "/p", {})
    assert (len(wire.requests), wire.connections) == (kept + 1, 1)


COOKIES = ['set-cookie: a="x;y"; Path=/; HttpOnly', "set-cookie: b=1=2; Max-Age=9"]


@on_a_loop
async def test_cookies_go_back_as_they_came() -> None:
    wire = Wire(said(200, "{}", *COOKIES), kept=2)
    async with calling(wire) as caller:
        answer = await caller.post(OPERATION, "/p", {})
        assert answer.cookies == {"a": '"x;y"', "b": "1=2"}
        await caller.post(OPERATION, "/p", {}, cookies=answer.cookies)
        wire.left.set()
    assert [headers.get("cookie") for _, headers, _ in wire.requests] == [
        None,  # and there is no jar of its own
        'a="x;y"; b=1=2',
    ]


@pytest.mark.parametrize(
    ("text", "revision"),
    [("7", 7), ("", None), ("-1", None), ("1.0", None), ("x", None), ("9" * 5_000, None)],
)
@on_a_loop
async def test_a_revision_is_a_number_or_none(text: str, revision: int | None) -> None:
    async with calling(Wire(said(200, "{}", f"operation-revision: {text}"))) as caller:
        assert (await caller.post(OPERATION, "/p", {})).revision == revision


@pytest.mark.parametrize(
    ("answer", "code"),
    [(said(204, ""), None), (said(503, "", RETRY), "environment_unreachable")],
)
@on_a_loop
async def test_an_environment_is_forgotten_or_it_says_so(answer: bytes, code: str | None) -> None:
    wire, told = Wire(answer), None
    async with calling(wire) as caller:
        try:
            await caller.forget("e-1")
        except CheckpointRefusal as refusal:
            told = refusal.code
    assert told == code
    assert wire.requests[0][0] == "DELETE /ng-control/v1/environments/e-1 HTTP/1.1"
