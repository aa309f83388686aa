# SPDX-License-Identifier: Apache-2.0
"""Structured logs: one line for each decision that matters, with who, what and which request.

    told(logger, "claim_taken", "…", rollout_id=…, claim_epoch=…)

An event has a name, a sentence for people, and fields. The fields go into the record as
attributes, so that any formatter of an application that installed the router finds them;
``rollout-router serve`` writes JSON, or text on a terminal (:func:`configure`). The request that is
being served adds its id and its traceparent by itself.

Writing happens in a thread of its own behind a bounded queue: a log that nobody reads must not stop
the event loop. What does not fit is dropped and counted.
"""

import json
import logging
import logging.handlers
import os
import queue
import re
import sys
import uuid
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from rollout_router.metrics import LOG_LINES_DROPPED

__all__ = [
    "FIELDS",
    "QUEUED_LINES_MAX",
    "REQUEST",
    "WRITE_LAST_S",
    "Format",
    "RequestMarks",
    "configure",
    "is_human",
    "json_line",
    "told",
]

Format = Literal["auto", "human", "json"]

QUEUED_LINES_MAX: Final = 10_000
"""Lines that wait to be written: some 3 MB."""

WRITE_LAST_S: Final = 1.0
"""So long the end of a process waits for its last lines to be written."""

FIELDS: Final = (
    "event",
    "rollout_id",
    "claim_epoch",
    "worker_id",
    "request_id",
    "traceparent",
    "code",
    "reason",
    "from_worker",
)
"""What a line may say beside its text, in this order; None is left out."""

_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")  # printable, no blank: safe in a log and a header


class RequestMarks:
    """By what a request is known in logs: the client's ``X-Request-Id``, or an id made here.

    Args:
        headers: of the request, names in lower case.
    """

    __slots__ = ("_headers", "_id")

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = headers
        self._id: str | None = None

    @property
    def request_id(self) -> str:
        """The same each time it is asked."""
        if self._id is None:
            given = self._first(b"x-request-id")
            sane = given is not None and _REQUEST_ID.fullmatch(given) is not None
            self._id = given.decode("ascii") if given and sane else uuid.uuid4().hex
        return self._id

    @property
    def traceparent(self) -> str | None:
        """Of W3C Trace Context, as the client sent it; None where it sent none that is sane."""
        given = self._first(b"traceparent")
        return given.decode("ascii") if given and _REQUEST_ID.fullmatch(given) else None

    def _first(self, name: bytes) -> bytes | None:
        return next((value for key, value in self._headers if key == name), None)


REQUEST: Final[ContextVar[RequestMarks | None]] = ContextVar("rollout_router_request", default=None)
"""The request that the running task serves."""


def told(
    logger: logging.Logger,
    event: str,
    text: str,
    *,
    level: int = logging.INFO,
    error: BaseException | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Log *event*; returns its fields, with those of the request that is being served."""
    marks = REQUEST.get()
    if marks is not None:
        fields["request_id"] = marks.request_id
        fields["traceparent"] = marks.traceparent
    said = {"event": event, **{name: value for name, value in fields.items() if value is not None}}
    logger.log(level, "%s", text, extra=said, exc_info=error)
    return said


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Human(logging.Formatter):
    """A line for people: time, process, level, the text, and what it does not say."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        rest = "".join(
            f" {name}={value}"
            for name, value in _fields(record).items()
            if name != "event" and str(value) not in text
        )
        line = f"{at} {record.process} {record.levelname} {record.name}: {text}{rest}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    known = record.__dict__
    return {name: known[name] for name in FIELDS if known.get(name) is not None}


class _Queued(logging.handlers.QueueHandler):
    """Hands records to the thread that writes; never waits."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # it stays in this process: nothing has to be made plain

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            LOG_LINES_DROPPED.inc()


class _Writing(logging.handlers.QueueListener):
    """The thread that writes; one that is stuck in a write does not keep the process."""

    def __init__(self, waiting: "queue.Queue[Any]", handler: logging.Handler) -> None:
        super().__init__(waiting, handler)
        self._waiting = waiting

    def stop(self) -> None:
        with suppress(queue.Full):
            self._waiting.put(None, timeout=WRITE_LAST_S)  # as the library says the end
            if self._thread is not None:
                self._thread.join(WRITE_LAST_S)


def is_human(form: Format, stream: TextIO = sys.stderr) -> bool:
    """Whether lines to *stream* are for people."""
    return form == "human" or (form == "auto" and stream.isatty())


def json_line(text: str) -> str:
    """*text* as a line of the log, for a process that has no other."""
    record = {"name": "rollout_router.serve", "levelname": "INFO", "msg": text}
    return _Json().format(logging.makeLogRecord({**record, "process": os.getpid()}))


def configure(
    form: Format, level: str, stream: TextIO = sys.stderr
) -> logging.handlers.QueueListener:
    """Have this process log to *stream*; the caller stops the listener at its end.

    Args:
        form: auto is human on a terminal, and JSON elsewhere.
        level: a name of ``logging``, in lower case.
        stream: where lines go.
    """
    writing = logging.StreamHandler(stream)
    writing.setFormatter(_Human() if is_human(form, stream) else _Json())
    waiting: queue.Queue[logging.LogRecord] = queue.Queue(QUEUED_LINES_MAX)
    listener = _Writing(waiting, writing)
    logging.basicConfig(level=level.upper(), handlers=[_Queued(waiting)], force=True)
    listener.start()
    return listener
