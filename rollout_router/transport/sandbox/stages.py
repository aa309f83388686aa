# SPDX-License-Identifier: Apache-2.0
"""Where the time of a call goes on the sandbox side: a line of JSON for each, in a file.

S5: a file that cannot be written is reported, and costs no call anything. Nothing here runs where
no file was asked for.
"""

import json
import os
import time
from typing import Any, Callable, Dict, Optional

from rollout_router.transport.sandbox.wire import Headers, header_values

__all__ = ["DELTA", "LOCAL_HOP", "OTHER", "WAIT", "Laps", "Timings", "lap"]

LOCAL_HOP = "local_hop_ms"  # reading the request, and writing the answer's head
DELTA = "delta_ms"  # deciding how a request goes out, again where it is sent in full
OTHER = "other_ms"  # the rest of the sandbox side
WAIT = "wait_ms"  # from asking for a connection to the head of the gateway's answer

_MODE = 0o600


class Laps:
    """The stages of one call; every moment of it belongs to one of them.

    ``line`` is what else is known of it: rollout, how it was sent, bytes.
    """

    def __init__(self) -> None:
        self._start_s = self._at_s = time.perf_counter()
        self.line: Dict[str, Any] = {}
        self.spent_s: Dict[str, float] = dict.fromkeys((LOCAL_HOP, DELTA, OTHER, WAIT), 0.0)

    def end(self, stage: str) -> None:
        """What passed since the last end, or since the beginning, was *stage*."""
        now_s = time.perf_counter()
        self.spent_s[stage] += now_s - self._at_s
        self._at_s = now_s

    def total_s(self) -> float:
        """From the beginning to the last end."""
        return self._at_s - self._start_s


def lap(laps: Optional[Laps], stage: str) -> None:
    """End a stage of a call that is measured."""
    if laps is not None:
        laps.end(stage)


class Timings:
    """The file, opened for each line, so that it may be moved away at any time.

    Args:
        path: of a file that is made where it is missing.
        report: told when a line could not be written; not again before one could.
    """

    def __init__(self, path: str, *, report: Callable[[str], None]) -> None:
        self._path = path
        self._report = report
        self._failed = False

    def write(self, laps: Laps, answer: Headers) -> None:
        """Append the line of one call, in one write. Neither waits for a reader nor raises.

        Args:
            laps: its stages have ended.
            answer: the headers of its answer.
        """
        stages_s = {**laps.spent_s, "total_ms": laps.total_s()}
        rounded = {name: round(1000 * spent_s, 3) for name, spent_s in stages_s.items()}
        said = ", ".join(header_values(answer, "Server-Timing")) or None
        data = (json.dumps({**laps.line, **rounded, "server_timing": said}) + "\n").encode()
        try:
            self._append(data)
            self._failed = False
        except (OSError, ValueError) as error:  # ValueError: no path at all
            if not self._failed:
                self._failed = True
                self._report(f"timings could not be written to {self._path}: {error}")

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, _MODE)
        try:
            if os.write(descriptor, data) < len(data):
                raise OSError("only a part of a line had room")
        finally:
            os.close(descriptor)
