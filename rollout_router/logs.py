# SPDX-License-Identifier: Apache-2.0
"""Structured logs: one line for each decision that matters, with who, what and which request.

    told(logger, "claim_taken", "…", rollout_id=…, claim_epoch=…)

An event has a name, a sentence for people, and fields. The fields are the attribute
``rollout_router`` of the record, so that any formatter of an application that installed the router
finds them, and none of its own is in the way; ``rollout-router serve`` writes JSON, or text on a
terminal (:func:`configure`). The request that is being served adds its id and its traceparent.

Writing happens in a thread of its own behind a bounded queue: a log that nobody reads must not stop
an event loop, the supervisor's neither. What does not fit is dropped and counted.
"""

import json
import logging
import logging.handlers
import os
import queue
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

from rollout_router.metrics import LOG_LINES_DROPPED
from rollout_router.printable import printable

__all__ = [
    "FIELDS",
    "QUEUED_LINES_MAX",
    "REQUEST",
    "WRITE_LAST_S",
    "Format",
    "RequestMarks",
    "Writing",
    "configure",
    "told",
]

Format = Literal["auto", "human", "json"]

QUEUED_LINES_MAX: Final = 10_000
"""Lines that wait to be written: some 3 MB."""

WRITE_LAST_S: Final = 1.0
"""So long the end of a process waits for its last lines to be written."""

_FIELDS: Final = "rollout_router"
_SUPERVISOR: Final = "rollout_router.serve"

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

_STDERR: Final = 2
_SANE: Final = re.compile(rb"[!-~]{1,128}")  # printable, no blank: safe in a log and a header


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
            self._id = self._sane(b"x-request-id") or uuid.uuid4().hex
        return self._id

    @property
    def traceparent(self) -> str | None:
        """Of W3C Trace Context, as the client sent it; None where it sent none that is sane."""
        return self._sane(b"traceparent")

    def _sane(self, name: bytes) -> str | None:
        given = next((value for key, value in self._headers if key == name), b"")
        return given.decode("ascii") if _SANE.fullmatch(given) else None


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
    logger.log(level, "%s", text, extra={_FIELDS: said}, exc_info=error)
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
        text = printable(record.getMessage())
        if record.name == _SUPERVISOR:
            return f"rollout-router: {text}"
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        rest = "".join(
            f" {name}={said}"
            for name, said in ((name, printable(value)) for name, value in _fields(record).items())
            if name != "event" and said not in text
        )
        line = f"{at} {record.process} {record.levelname} {record.name}: {text}{rest}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    said: dict[str, Any] = getattr(record, _FIELDS, {})
    return {name: said[name] for name in FIELDS if name in said}


class _Queued(logging.handlers.QueueHandler):
    """Hands records to the thread that writes; never waits."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # it stays in this process: nothing has to be made plain

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            LOG_LINES_DROPPED.inc()


class _ToStderr(logging.Handler):
    """Writes a line in one call to the descriptor.

    A thread that is stuck in it must hold no lock that the end of the interpreter wants, as those
    of ``sys.stderr`` and of a handler are. One thread calls it.
    """

    def createLock(self) -> None:  # noqa: N802 - the library's name
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        with suppress(OSError):  # there is nobody left to tell
            while line:
                line = line[os.write(_STDERR, line) :]


class Writing(logging.handlers.QueueListener):
    """The thread that writes; one that is stuck in a write does not keep the process."""

    def __init__(self, handler: logging.Handler, level: str) -> None:
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(QUEUED_LINES_MAX)
        super().__init__(self._waiting, handler)
        self._root = logging.getLogger()
        self._queued = _Queued(self._waiting)
        self._level_before = self._root.level
        self._root.addHandler(self._queued)
        self._root.setLevel(level.upper())
        self.start()

    def say(self, text: str) -> None:
        """Write *text* whatever the level is: the supervisor's word to people."""
        said = {"name": _SUPERVISOR, "levelname": "INFO", "msg": text, "process": os.getpid()}
        self._queued.enqueue(logging.makeLogRecord(said))

    def stop(self) -> None:
        """Write what waits, for a bounded time; nothing more is taken."""
        self._root.removeHandler(self._queued)
        self._root.setLevel(self._level_before)
        with suppress(queue.Full):
            self._waiting.put(None, timeout=WRITE_LAST_S)  # as the library says the end
            if self._thread is not None:
                self._thread.join(WRITE_LAST_S)


def configure(form: Format, level: str, stream: TextIO | None = None) -> Writing:
    """Have this process log; the caller stops the writing at its end.

    Args:
        form: auto is human on a terminal, and JSON elsewhere.
        level: a name of ``logging``, in lower case.
        stream: where lines go; None: stderr.
    """
    terminal = os.isatty(_STDERR) if stream is None else stream.isatty()
    human = form == "human" or (form == "auto" and terminal)
    handler = _ToStderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(_Human() if human else _Json())
    return Writing(handler, level)
