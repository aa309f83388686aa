# SPDX-License-Identifier: Apache-2.0
import asyncio
import fcntl
import http.client
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.metrics import counted

from rollout_router.asgi import Message, Receive, Scope, Send
from rollout_router.call import CALL_KEY, Call
from rollout_router.errors import ResponseCut
from rollout_router.gateway.app import create_app
from rollout_router.gateway.bodies import BODY_BYTES_MAX
from rollout_router.gateway.capture import Capture
from rollout_router.gateway.sink import CaptureSink
from rollout_router.gateway.upstream import Upstream

STORE = "store-1"
DELTA = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
SSE = "text/event-stream"


@pytest.fixture
def sink(tmp_path: Path) -> CaptureSink:
    return CaptureSink(tmp_path / "capture", store_id=STORE)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 1 MiB; the test fills it."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    free = os.statvfs(folder)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize))
    assert os.statvfs(folder).f_bavail == 0
    return filler


def records(sink: CaptureSink) -> list[dict[str, Any]]:
    path = sink.directory / "r1.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_f1_the_sink_is_raised_before_dispatch_once_an_epoch(
    sink: CaptureSink, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[int] = []
    raise_to = sink.raise_to

    def watched(rollout_id: str, claim_epoch: int, **more: Any) -> None:
        raised.append(claim_epoch)
        raise_to(rollout_id, claim_epoch, **more)

    monkeypatch.setattr(sink, "raise_to", watched)
    seen: list[int] = []

    async def app(_: Scope, __: Receive, send: Send) -> None:
        seen.append(sink.highest("r1"))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def scenario() -> None:
        capture = Capture(app, sink)
        for epoch in (5, 5, 6):
            assert (await drive(epoch=epoch).run(capture)).status == 204

    asyncio.run(scenario())
    assert raised == [5, 6]
    assert seen == [5, 5, 6]


def test_f1_a_claim_that_moved_runs_nothing(sink: CaptureSink, drive: Any, answering: Any) -> None:
    sink.raise_to("r1", 6)
    app = answering(b"{}")

    answer = asyncio.run(drive(epoch=5).run(Capture(app, sink)))

    error = json.loads(answer.content)["error"]
    assert (answer.status, error["code"], error["claim_epoch"]) == (503, "claim_moved", 6)
    assert answer.headers[b"retry-after"] == b"1"
    assert app.calls == 0
    assert records(sink) == []


def test_f1_a_sink_that_cannot_be_raised_runs_nothing(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    (sink.directory / ".fence" / "r1.epoch").write_bytes(b"damage")
    app = answering(b"{}")

    answer = asyncio.run(drive().run(Capture(app, sink)))

    assert (answer.status, json.loads(answer.content)["error"]["code"]) == (
        503,
        "claim_store_unavailable",
    )
    assert app.calls == 0


def test_f1_a_call_of_another_store_is_a_fault_of_the_set_up(
    tmp_path: Path, drive: Any, answering: Any
) -> None:
    sink = CaptureSink(tmp_path, store_id="store-2")

    with pytest.raises(ValueError, match=r"store-1.*store-2"):
        asyncio.run(drive().run(Capture(answering(b"{}"), sink)))


def test_f2_the_record_stands_before_the_turn_ends(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    answer = drive(body=[b'{"a"', b":1}"])
    seen: list[tuple[bytes, int]] = []
    answer.on_send = lambda message: seen.append((message.get("body", b""), len(records(sink))))
    app = answering(DELTA, DELTA + END[:9], END[9:], content_type=SSE)
    before = counted("rollout_router_stage_seconds_count", stage="capture")

    asyncio.run(answer.run(Capture(app, sink)))

    assert counted("rollout_router_stage_seconds_count", stage="capture") == before + 1
    assert seen == [(b"", 0), (DELTA, 0), (DELTA, 0), (END, 1)]
    assert answer.content == DELTA + DELTA + END
    assert app.bodies == [b'{"a":1}']
    (record,) = records(sink)
    assert (record["outcome"], record["status"]) == ("completed", 200)
    assert record["request_text"] == '{"a":1}'
    assert record["response"].encode() == DELTA + DELTA + END
    assert (record["claim_epoch"], record["worker_id"]) == (5, "w1")
    assert record["path"] == "/sessions/r1/v1/responses"
    assert re.fullmatch(r"[0-9a-f]{32}", record["model_call_id"])
    assert record["started_at"] <= record["completed_at"]


@pytest.mark.parametrize("parts", [(), (b"{}",), (b'{"a":', b"1}")])
def test_f2_a_json_answer_has_not_begun_before_its_record(
    sink: CaptureSink, drive: Any, answering: Any, parts: tuple[bytes, ...]
) -> None:
    answer = drive()
    seen: list[int] = []
    answer.on_send = lambda _: seen.append(len(records(sink)))

    asyncio.run(answer.run(Capture(answering(*parts), sink)))

    assert set(seen) == {1}
    assert answer.content == b"".join(parts)
    assert answer.complete


def test_f2_of_another_answer_the_last_byte_waits(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    answer = drive()
    seen: list[tuple[bytes, int]] = []
    answer.on_send = lambda message: seen.append((message.get("body", b""), len(records(sink))))
    head = ((b"content-length", b"4"),)

    asyncio.run(
        answer.run(Capture(answering(b"ab", b"cd", content_type="text/x", headers=head), sink))
    )

    assert seen == [(b"", 0), (b"a", 0), (b"bc", 0), (b"d", 1)]
    assert answer.headers[b"content-length"] == b"4"


def moving(sink: CaptureSink, app: Any, at: int) -> Any:
    """*app*, whose rollout moves to a higher epoch just before its part number *at*."""

    async def moved(scope: Scope, receive: Receive, send: Send) -> None:
        number = 0

        async def sending(message: Message) -> None:
            nonlocal number
            if message["type"] == "http.response.body":
                if number == at:
                    sink.raise_to("r1", 9)
                number += 1
            await send(message)

        await app(scope, receive, sending)

    return moved


@pytest.mark.parametrize(
    ("parts", "content_type"), [((b"{}",), "application/json"), ((END,), SSE), ((b"x",), "text/x")]
)
def test_f2_a_refused_record_before_the_answer_began_is_502(
    sink: CaptureSink, drive: Any, answering: Any, *, parts: tuple[bytes, ...], content_type: str
) -> None:
    app = moving(sink, answering(*parts, content_type=content_type), at=0)
    before = counted("rollout_router_fenced_total", where="sink")

    answer = asyncio.run(drive().run(Capture(app, sink)))

    assert counted("rollout_router_fenced_total", where="sink") == before + 1
    error = json.loads(answer.content)["error"]
    assert (answer.status, error["code"], error["rollout_id"]) == (502, "record_refused", "r1")
    assert b"retry-after" not in answer.headers
    assert answer.complete
    assert records(sink) == []


def test_f2_r4_a_refused_record_of_a_stream_cuts_it_before_its_terminal_event(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    answer = drive()
    app = moving(sink, answering(DELTA, DELTA, END, content_type=SSE), at=2)

    with pytest.raises(ResponseCut, match="epoch"):
        asyncio.run(answer.run(Capture(app, sink)))

    assert answer.content == DELTA + DELTA
    assert not answer.complete
    assert records(sink) == []


def test_f2_r4_an_application_that_swallows_the_cut_changes_nothing(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    inner = moving(sink, answering(DELTA, END, content_type=SSE), at=1)

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await inner(scope, receive, send)
        except ResponseCut:
            return

    answer = drive()
    with pytest.raises(ResponseCut):
        asyncio.run(answer.run(Capture(deaf, sink)))
    assert not answer.complete


def test_c7_f2_a_full_disk_sends_nothing_of_the_answer(
    full_disk: Path, drive: Any, answering: Any
) -> None:
    sink = CaptureSink(full_disk / "capture", store_id=STORE)

    async def scenario() -> None:
        capture = Capture(answering(b'{"secret":1}'), sink)
        assert (await drive().run(capture)).status == 200
        filler = fill(full_disk)
        for _ in range(3):  # a page of the record's file may have had room left
            answer = await drive(body=b'"' + b"x" * 3000 + b'"').run(capture)
        assert (answer.status, json.loads(answer.content)["error"]["code"]) == (
            502,
            "record_refused",
        )
        assert b"secret" not in answer.content
        written = len(records(sink))  # every line is whole
        filler.unlink()
        assert (await drive().run(capture)).status == 200
        assert len(records(sink)) == written + 1

    asyncio.run(scenario())


def test_c7_f1_a_full_disk_refuses_a_new_rollout_before_dispatch(
    full_disk: Path, drive: Any, answering: Any
) -> None:
    sink = CaptureSink(full_disk / "capture", store_id=STORE)
    app = answering(b"{}")
    filler = fill(full_disk)

    async def scenario() -> None:
        capture = Capture(app, sink)
        answer = await drive().run(capture)
        assert (answer.status, json.loads(answer.content)["error"]["code"]) == (
            503,
            "claim_store_unavailable",
        )
        assert app.calls == 0
        filler.unlink()
        assert (await drive().run(capture)).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"content_type": SSE, "parts": (DELTA, END)}, "completed"),
        ({"content_type": SSE, "parts": (DELTA,)}, "failed"),
        ({"content_type": SSE, "parts": (DELTA, b'data: {"error":{}}\n\n')}, "failed"),
        ({"status": 429}, "completed"),
        ({"status": 500}, "failed"),
    ],
)
def test_f2_outcomes_of_whole_answers(
    sink: CaptureSink, drive: Any, answering: Any, *, settings: dict[str, Any], outcome: str
) -> None:
    parts = settings.pop("parts", (b"{}",))

    answer = asyncio.run(drive().run(Capture(answering(*parts, **settings), sink)))

    assert answer.content == b"".join(parts)
    assert answer.complete
    assert [record["outcome"] for record in records(sink)] == [outcome]


def test_f2_an_application_that_raises_leaves_a_failed_record(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    answer = drive()
    app = answering(DELTA, content_type=SSE, error=RuntimeError("bug"))

    with pytest.raises(RuntimeError, match="bug"):
        asyncio.run(answer.run(Capture(app, sink)))

    assert answer.content == DELTA
    (record,) = records(sink)
    assert (record["outcome"], record["status"]) == ("failed", 200)
    assert record["response"].encode() == DELTA


def test_f2_an_application_that_raises_before_anything_left_is_500_in_its_record(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    answer = drive()

    with pytest.raises(RuntimeError):
        asyncio.run(answer.run(Capture(answering(b"{", error=RuntimeError("bug")), sink)))

    assert answer.sent == []
    assert [(r["outcome"], r["status"]) for r in records(sink)] == [("failed", 500)]


def test_f2_r4_an_answer_left_in_the_middle_is_cut(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    answer = drive()

    with pytest.raises(ResponseCut):
        asyncio.run(answer.run(Capture(answering(DELTA, content_type=SSE, ends=False), sink)))

    assert not answer.complete
    assert [record["outcome"] for record in records(sink)] == ["failed"]


def test_f2_a_cancelled_call_leaves_its_record_and_stays_cancelled(
    sink: CaptureSink, drive: Any
) -> None:
    async def scenario() -> None:
        running = asyncio.Event()

        async def app(_: Scope, __: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ab", "more_body": True})
            running.set()
            await asyncio.Event().wait()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(drive().run(Capture(app, sink)))
            await running.wait()
            task.cancel()
        assert task.cancelled()

    asyncio.run(scenario())
    (record,) = records(sink)
    assert (record["outcome"], record["response"], record["status"]) == ("cancelled", "ab", 200)


def test_f2_a_call_cancelled_while_its_record_is_written_leaves_one(
    sink: CaptureSink, drive: Any, answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    append = sink.append

    def held(*call: Any, **more: Any) -> None:
        writing.set()
        assert go_on.wait(30)
        append(*call, **more)

    monkeypatch.setattr(sink, "append", held)
    answer = drive()

    async def scenario() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(answer.run(Capture(answering(b"{}"), sink)))
            assert await asyncio.to_thread(writing.wait, 30)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
            go_on.set()
        assert task.cancelled()

    asyncio.run(scenario())
    assert len(records(sink)) == 1
    assert answer.sent == []


def test_f2_a_call_cancelled_while_its_record_stands_in_line_leaves_one(
    sink: CaptureSink, drive: Any, answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    append = sink.append

    def held(*call: Any, **more: Any) -> None:
        writing.set()
        assert go_on.wait(30)
        append(*call, **more)

    monkeypatch.setattr(sink, "append", held)

    async def scenario() -> None:
        capture = Capture(answering(b"{}"), sink)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(drive().run(capture))
            assert await asyncio.to_thread(writing.wait, 30)
            second = tasks.create_task(drive().run(capture))
            await asyncio.sleep(0)  # it runs up to its record, which waits for the first one's
            second.cancel()
            asyncio.get_running_loop().call_soon(go_on.set)
        assert first.result().complete
        assert second.cancelled()

    asyncio.run(scenario())
    assert len(records(sink)) == 2


def locked(sink: CaptureSink) -> int:
    """The lock of r1's sink, as another process would hold it; close it to give it back."""
    holder = os.open(sink.directory / ".fence" / "r1.epoch", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holder, fcntl.LOCK_EX)
    return holder


def test_f1_f2_the_time_of_a_record_counts_from_the_end_of_its_call(
    sink: CaptureSink, drive: Any, answering: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    deadlines_s: list[float] = []
    append, raise_to = sink.append, sink.raise_to

    def raised(*call: Any, deadline_s: float) -> None:
        deadlines_s.append(deadline_s)
        raise_to(*call, deadline_s=deadline_s)

    def held(*call: Any, deadline_s: float) -> None:
        deadlines_s.append(deadline_s)
        writing.set()
        assert go_on.wait(30)
        append(*call, deadline_s=deadline_s)

    monkeypatch.setattr(sink, "raise_to", raised)
    monkeypatch.setattr(sink, "append", held)

    async def scenario() -> None:
        capture = Capture(answering(b"{}"), sink)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(drive().run(capture))
            assert await asyncio.to_thread(writing.wait, 30)
            for _ in range(3):
                tasks.create_task(drive().run(capture))
            await asyncio.sleep(0)  # each runs up to its record
            submitted_s = time.monotonic()
            go_on.set()
        assert len(deadlines_s) == 1 + 4
        assert max(deadlines_s) <= submitted_s + sink.lock_timeout_s

    asyncio.run(scenario())


def test_f2_a_cancelled_call_waits_long_enough_to_know_what_became_of_its_record(
    tmp_path: Path, drive: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sink = CaptureSink(tmp_path / "capture", store_id=STORE, lock_timeout_s=0.5)

    async def scenario() -> None:
        running = asyncio.Event()

        async def app(_: Scope, __: Receive, ___: Send) -> None:
            running.set()
            await asyncio.Event().wait()

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(drive().run(Capture(app, sink)))
            await running.wait()
            holder = locked(sink)
            task.cancel()
        os.close(holder)
        assert task.cancelled()

    asyncio.run(scenario())
    assert "record was not taken: rollout r1" in caplog.text


def test_f1_a_stuck_sink_of_one_rollout_holds_up_no_other(
    tmp_path: Path, drive: Any, answering: Any
) -> None:
    sink = CaptureSink(tmp_path / "capture", store_id=STORE, lock_timeout_s=60)
    holder = locked(sink)

    async def scenario() -> None:
        capture = Capture(answering(b"{}"), sink)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            stuck = [tasks.create_task(drive().run(capture)) for _ in range(64)]
            try:
                assert (await drive(rollout_id="r2").run(capture)).status == 200
                assert not any(task.done() for task in stuck)
            finally:
                os.close(holder)
        assert {task.result().status for task in stuck} == {200}

    asyncio.run(scenario())
    assert len(records(sink)) == 64


def test_f1_f2_every_call_of_a_stuck_sink_is_answered(
    tmp_path: Path, drive: Any, answering: Any
) -> None:
    sink = CaptureSink(tmp_path / "capture", store_id=STORE, lock_timeout_s=0.5)
    app = answering(b"{}")
    holder = locked(sink)

    async def codes(capture: Capture) -> set[tuple[int, str]]:
        calls = await asyncio.gather(*(drive().run(capture) for _ in range(64)))
        return {(call.status, json.loads(call.content)["error"]["code"]) for call in calls}

    async def scenario() -> None:
        capture = Capture(app, sink)
        assert await codes(capture) == {(503, "claim_store_unavailable")}
        assert app.calls == 0
        os.close(holder)
        assert (await drive().run(capture)).status == 200
        again = locked(sink)
        assert await codes(capture) == {(502, "record_refused")}
        os.close(again)
        assert (await drive().run(capture)).status == 200

    asyncio.run(scenario())
    assert len(records(sink)) == 2


def test_f2_a_client_that_leaves_makes_a_cancelled_record(sink: CaptureSink, drive: Any) -> None:
    """An application that watches for the client returns without an end, as Starlette's do."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while (await receive())["type"] != "http.disconnect":
            pass

    answer = drive()
    answer.left.set()
    asyncio.run(answer.run(Capture(app, sink)))

    assert [record["outcome"] for record in records(sink)] == ["cancelled"]


def test_f2_a_client_that_leaves_before_its_body_is_complete_dispatches_nothing(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    app = answering(b"{}")
    answer = drive(body=[b"{", b""])
    answer.body.pop()
    answer.left.set()

    asyncio.run(answer.run(Capture(app, sink)))

    assert (app.calls, answer.sent, records(sink)) == (0, [], [])


def test_f2_a_body_over_the_bound_is_413_and_leaves_no_record(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    app = answering(b"{}")
    answer = asyncio.run(drive(body=[bytes(BODY_BYTES_MAX), b"x"]).run(Capture(app, sink)))

    assert (app.calls, answer.status, records(sink)) == (0, 413, [])


def test_f2_head_and_unrouted_and_other_scopes_leave_no_record(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    async def scenario() -> None:
        capture = Capture(answering(b"{}"), sink)
        assert (await drive(method="HEAD").run(capture)).content == b"{}"
        assert (await drive(routed=False).run(capture)).content == b"{}"
        scopes: list[str] = []

        async def app(scope: Scope, _: Receive, __: Send) -> None:
            scopes.append(scope["type"])

        await drive(type="websocket").run(Capture(app, sink))
        await drive(type="lifespan").run(Capture(app, sink))
        assert scopes == ["websocket", "lifespan"]

    asyncio.run(scenario())
    assert records(sink) == []


def test_f2_a_call_without_a_claim_is_recorded_without_an_epoch(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    sink.raise_to("r1", 9)

    asyncio.run(drive(epoch=None).run(Capture(answering(b"{}"), sink)))

    assert [record["claim_epoch"] for record in records(sink)] == [None]


@pytest.mark.parametrize("content_type", [SSE, "text/x", "application/json"])
def test_f2_http_1_0_gets_a_buffered_answer_with_its_length(
    sink: CaptureSink, drive: Any, answering: Any, content_type: str
) -> None:
    answer = drive(http_version="1.0")
    counts: list[int] = []
    answer.on_send = lambda _: counts.append(len(records(sink)))
    head = ((b"transfer-encoding", b"chunked"),)

    asyncio.run(
        answer.run(Capture(answering(DELTA, END, content_type=content_type, headers=head), sink))
    )

    assert set(counts) == {1}
    assert answer.headers[b"content-length"] == str(len(DELTA + END)).encode()
    assert b"transfer-encoding" not in answer.headers
    assert answer.content == DELTA + END
    assert [record["outcome"] for record in records(sink)] == ["completed"]


def test_f2_a_recorded_answer_has_a_bound_and_the_sent_one_none(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    app = answering(b"abc", b"def", content_type="text/x")

    answer = asyncio.run(drive().run(Capture(app, sink, response_bytes_max=4)))

    assert answer.content == b"abcdef"
    (record,) = records(sink)
    assert (record["response"], record["response_truncated"], record["response_bytes"]) == (
        "abcd",
        True,
        6,
    )


def test_f2_an_answer_too_large_to_wait_is_refused_and_recorded_once(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    app = answering(END, b"x" * 100, b"y" * 100, content_type=SSE)

    answer = asyncio.run(drive().run(Capture(app, sink, withheld_bytes_max=150)))

    assert (answer.status, json.loads(answer.content)["error"]["code"]) == (502, "record_refused")
    assert [record["outcome"] for record in records(sink)] == ["failed"]


def test_f2_r4_a_begun_answer_too_large_to_wait_is_cut_and_recorded_once(
    sink: CaptureSink, drive: Any, answering: Any
) -> None:
    app = answering(DELTA, END, b"x" * 200, content_type=SSE)
    answer = drive()

    with pytest.raises(ResponseCut):
        asyncio.run(answer.run(Capture(app, sink, withheld_bytes_max=150)))

    assert (answer.content, answer.complete) == (DELTA, False)
    assert [record["outcome"] for record in records(sink)] == ["failed"]


def test_r4_a_cut_reaches_a_real_client_as_a_broken_answer(
    sink: CaptureSink, answering: Any, serving: Any
) -> None:
    capture = Capture(moving(sink, answering(DELTA, END, content_type=SSE), at=1), sink)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(rollout_id="r1", claim_epoch=5, worker_id="w1", store_id=STORE)
        await capture({**scope, CALL_KEY: call}, receive, send)

    with serving(routed) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        connection.request("POST", "/v1/x", b"{}")
        response = connection.getresponse()
        assert response.status == 200
        with pytest.raises(http.client.IncompleteRead) as cut:
            response.read()
        connection.close()

    assert cut.value.partial == DELTA
    assert records(sink) == []


def test_f2_r4_a_real_client_that_leaves_ends_the_call_at_the_upstream(
    sink: CaptureSink, serving: Any
) -> None:
    thinking, left, recorded = threading.Event(), threading.Event(), threading.Event()

    async def upstream(_: Scope, receive: Receive, __: Send) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            if not message["more_body"]:
                thinking.set()
        left.set()

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await capture(scope, receive, send)
            return
        call = Call(rollout_id="r1", claim_epoch=5, worker_id="w1", store_id=STORE)
        await capture({**scope, CALL_KEY: call}, receive, send)
        recorded.set()

    with serving(upstream) as url:
        capture = Capture(create_app(Upstream(url)), sink)
        with serving(routed) as gateway:
            connection = http.client.HTTPConnection(urlsplit(gateway).netloc, timeout=30)
            connection.request("POST", "/v1/responses", b'{"model":"m","input":"x"}')
            assert thinking.wait(30)
            connection.close()
            assert left.wait(30)
            assert recorded.wait(30)

    (record,) = records(sink)
    assert (record["outcome"], record["status"], record["response"]) == ("cancelled", None, "")


def test_messages_out_of_turn_are_a_fault_of_the_application(sink: CaptureSink, drive: Any) -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"x"})

    with pytest.raises(RuntimeError, match="out of turn"):
        asyncio.run(drive().run(Capture(app, sink)))


def test_extensions_that_would_hide_the_answer_are_not_offered(
    sink: CaptureSink, drive: Any
) -> None:
    async def app(scope: Scope, _: Receive, send: Send) -> None:
        assert scope["extensions"] == {}
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    answer = drive(extensions={"http.response.pathsend": {}})
    assert asyncio.run(answer.run(Capture(app, sink))).status == 204
