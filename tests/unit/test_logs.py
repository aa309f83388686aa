# SPDX-License-Identifier: Apache-2.0
"""What a log line says, in which form, and that a log that nobody reads stops nobody."""

import io
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.metrics import counted

from rollout_router import logs
from rollout_router.logs import REQUEST, Format, RequestMarks, configure, told

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LOGGER = logging.getLogger("rollout_router.test")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def logging_to(stream: io.StringIO, form: Format = "auto", level: str = "info") -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    listener = configure(form, level, stream)
    try:
        yield
    finally:
        listener.stop()
    assert (root.handlers, root.level) == before


@contextmanager
def serving(*headers: tuple[bytes, bytes]) -> Iterator[RequestMarks]:
    marks = RequestMarks(headers)
    token = REQUEST.set(marks)
    try:
        yield marks
    finally:
        REQUEST.reset(token)


def tell(**fields: Any) -> dict[str, Any]:
    return told(LOGGER, "claim_taken", "rollout r1: taken", rollout_id="r1", **fields)


def test_away_from_a_terminal_a_line_is_one_json_object() -> None:
    stream = io.StringIO()
    request = ((b"x-request-id", b"call-7"), (b"traceparent", TRACE.encode()))
    with logging_to(stream), serving(*request):
        said = tell(claim_epoch=7, worker_id="ada", reason=None)
        LOGGER.info("plain %s", "text")

    first, second = map(json.loads, stream.getvalue().splitlines())
    assert said == {
        "event": "claim_taken",
        "rollout_id": "r1",
        "claim_epoch": 7,
        "worker_id": "ada",
        "request_id": "call-7",
        "traceparent": TRACE,
    }
    assert {name: first[name] for name in said} == said
    assert (first["level"], first["message"]) == ("info", "rollout r1: taken")
    assert first["time"].endswith("+00:00")
    assert second["message"] == "plain text"
    assert "event" not in second


def test_on_a_terminal_a_line_is_text_that_repeats_nothing() -> None:
    stream = Terminal()
    with logging_to(stream):
        tell(claim_epoch=7, worker_id="ada")

    line = stream.getvalue()
    assert line.endswith(
        " INFO rollout_router.test: rollout r1: taken claim_epoch=7 worker_id=ada\n"
    )


@pytest.mark.parametrize("form", ["human", "json"])
def test_an_exception_is_told_whole(form: Format) -> None:
    stream = io.StringIO()
    with logging_to(stream, form):
        told(LOGGER, "failed", "it broke", level=logging.ERROR, error=ValueError("why"))

    assert "ValueError: why" in stream.getvalue()


def test_below_the_level_nothing_is_said() -> None:
    stream = io.StringIO()
    with logging_to(stream, level="warning"):
        tell()

    assert stream.getvalue() == ""


def test_a_request_has_one_id_also_where_its_client_gave_none() -> None:
    with serving() as marks:
        assert tell()["request_id"] == tell()["request_id"] == marks.request_id
    with serving() as another:
        assert another.request_id != marks.request_id
    assert "request_id" not in tell()


@pytest.mark.parametrize("given", [b"", b"two words", b"line\nbreak", b"\xff", b"x" * 129])
def test_what_could_write_a_line_of_its_own_is_no_id(given: bytes) -> None:
    with serving((b"x-request-id", given), (b"traceparent", given)) as marks:
        assert marks.request_id.encode() != given
        assert marks.traceparent is None


def test_an_application_may_have_fields_of_its_own_in_every_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = logging.getLogRecordFactory()

    def with_fields(*args: Any, **options: Any) -> logging.LogRecord:
        record = made(*args, **options)
        record.request_id = record.reason = "the application's"
        return record

    logging.setLogRecordFactory(with_fields)
    try:
        with serving((b"x-request-id", b"call-7")), caplog.at_level(logging.INFO):
            said = tell(reason="ours")
    finally:
        logging.setLogRecordFactory(made)
    assert (said["request_id"], said["reason"]) == ("call-7", "ours")
    assert caplog.records[-1].__dict__["rollout_router"] == said


def test_what_a_client_or_an_operator_wrote_makes_no_line_of_its_own() -> None:
    stream = Terminal()
    with logging_to(stream):
        told(LOGGER, "refused", "closed: a\n12:00 FORGED \x1b[31m", reason="b\nc")

    assert len(stream.getvalue().splitlines()) == 1
    assert "\x1b" not in stream.getvalue()


def test_a_log_that_nobody_reads_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, read = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            writing.set()
            read.wait()
            return super().write(text)

    monkeypatch.setattr(logs, "QUEUED_LINES_MAX", 2)
    before = counted("rollout_router_log_lines_dropped_total")
    stream = Stuck()
    with logging_to(stream, "human"):
        tell()
        writing.wait()
        for _ in range(5):
            tell()
        assert counted("rollout_router_log_lines_dropped_total") == before + 3
        read.set()

    assert len(stream.getvalue().splitlines()) == 3
