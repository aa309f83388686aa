# SPDX-License-Identifier: Apache-2.0
"""Sentences for an operator, which cost no request anything.

S5: whoever reports neither waits nor fails, whatever became of the place that is written to: one
thread writes, and what it cannot keep up with is dropped and counted.
"""

import contextlib
import threading
from collections import deque
from typing import Callable, Deque, Optional

__all__ = ["REPORTS_MAX", "Reports"]

REPORTS_MAX = 64  # waiting; more than anybody reads of one event
_CLOSE_S = 1.0


class Reports:
    """A bounded queue and its writer, a thread of its own.

    Args:
        write: told each report, on the writer's thread; may block. ``OSError`` and ``ValueError``,
            what a closed file raises, lose the report.
        close_s: how long :meth:`close` waits until what is left is written.
    """

    def __init__(self, write: Callable[[str], None], *, close_s: float = _CLOSE_S) -> None:
        self._write = write
        self._close_s = close_s
        self._changed = threading.Condition()
        self._waiting: Deque[str] = deque()
        self._dropped = 0
        self._closing = False
        # A daemon: a write that never returns must not keep the process from ending.
        self._writer = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        """Begin to write. Once."""
        self._writer.start()

    def close(self) -> None:
        """Write what is left, within *close_s*."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(self._close_s)

    def say(self, message: str) -> None:
        """Hand over one report; dropped where 64 are waiting."""
        with self._changed:
            if len(self._waiting) >= REPORTS_MAX:
                self._dropped += 1
                return
            self._waiting.append(message)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            message = self._next()
            if message is None:
                return
            with contextlib.suppress(OSError, ValueError):  # there is nobody left to tell
                self._write(message)

    def _next(self) -> Optional[str]:
        with self._changed:
            while True:
                if self._waiting:
                    return self._waiting.popleft()
                if self._dropped:  # said where they would have stood
                    dropped, self._dropped = self._dropped, 0
                    return f"{dropped} reports were dropped: nobody read them"
                if self._closing:
                    return None
                self._changed.wait()
