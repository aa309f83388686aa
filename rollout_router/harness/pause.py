# SPDX-License-Identifier: Apache-2.0
"""Holds a harness between two model calls, until it is told to go on.

Between two calls a harness runs a tool, so a tool that waits holds the rollout exactly there: the
last answer is complete, and the next request is not written yet. Two FIFOs carry the words.
"""

import os
import select
from pathlib import Path
from typing import Final, Self

__all__ = ["PAUSE_AT", "PROCEED", "REACHED", "NotReached", "Pause"]

PAUSE_AT: Final = "pause-at"
"""The file that names the step to wait in; the step removes it."""
REACHED: Final = "reached"
"""The FIFO that the tool writes a line to."""
PROCEED: Final = "proceed"
"""The FIFO that it then reads a line from."""


class NotReached(Exception):  # noqa: N818 - named by what happened
    """The harness ended, or let the time run out, before a tool waited."""


class Pause:
    """Files in *folder*, which exists, where *step* of the tools waits once.

    Close it after the harness has ended.
    """

    def __init__(self, folder: Path, *, step: str) -> None:
        (folder / PAUSE_AT).write_text(step)
        fifos = folder / REACHED, folder / PROCEED
        for fifo in fifos:
            os.mkfifo(fifo, 0o600)
        # Read and write, so that opening waits for nobody and no end of file is seen (Linux).
        self._reached, self._proceed = (os.open(fifo, os.O_RDWR | os.O_CLOEXEC) for fifo in fifos)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._reached)
        os.close(self._proceed)

    def wait_reached(self, pid: int, *, limit_s: float) -> None:
        """Wait until a tool waits, while process *pid*, the harness, runs.

        Raises:
            NotReached: says why none ever will.
        """
        harness = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(self._reached, select.POLLIN)
            poll.register(harness, select.POLLIN)
            ready = dict(poll.poll(limit_s * 1000))
        finally:
            os.close(harness)
        if not ready:
            raise NotReached(f"ran no command that waits within {limit_s:.0f} s")
        if self._reached not in ready:
            raise NotReached("ended before it ran the command that waits")

    def proceed(self) -> None:
        """Let the command run."""
        os.write(self._proceed, b"\n")
