# SPDX-License-Identifier: Apache-2.0
"""A shell for the harness's tools that stops before one command until it is told to go on.

Between two model calls a harness runs a tool, so a tool that waits holds the rollout exactly there:
the last answer is complete, and the next request is not written yet. Two FIFOs carry the words.
"""

import os
import select
import shlex
from pathlib import Path
from typing import Final, Self

__all__ = ["NotReached", "PausingShell", "script"]

_SCRIPT: Final = """\
#!/bin/sh
# Runs bash, but stops once before the command that holds {command}.
case "$*" in
*{command}*)
    if mkdir {once} 2>/dev/null; then
        echo > {reached}
        read -r _ < {proceed}
    fi
    ;;
esac
exec bash "$@"
"""


class NotReached(Exception):  # noqa: N818 - named by what happened
    """The harness ended, or let the time run out, before it ran the command."""


class PausingShell:
    """Makes the shell in *folder*; close it after the harness has ended.

    Args:
        folder: exists; the shell is ``folder / "bash"``.
        command: a part of the command to stop before.
    """

    def __init__(self, folder: Path, *, command: str) -> None:
        self.path = folder / "bash"
        fifos = folder / "reached", folder / "proceed"
        for fifo in fifos:
            os.mkfifo(fifo, 0o600)
        self.path.write_text(script(folder, command=command))
        self.path.chmod(0o700)
        # Read and write, so that opening waits for nobody and no end of file is seen (Linux).
        self._reached, self._proceed = (os.open(fifo, os.O_RDWR | os.O_CLOEXEC) for fifo in fifos)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._reached)
        os.close(self._proceed)

    def wait_reached(self, pid: int, *, limit_s: float) -> None:
        """Wait until the shell stops, while process *pid*, the harness, runs.

        Raises:
            NotReached: says why the shell never will.
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
            raise NotReached(f"did not run the command within {limit_s:.0f} s")
        if self._reached not in ready:
            raise NotReached("ended before it ran the command")

    def proceed(self) -> None:
        """Let the command run."""
        os.write(self._proceed, b"\n")


def script(folder: Path, *, command: str) -> str:
    """The shell's text. Pure."""
    return _SCRIPT.format(
        command=shlex.quote(command),
        once=shlex.quote(str(folder / "once")),
        reached=shlex.quote(str(folder / "reached")),
        proceed=shlex.quote(str(folder / "proceed")),
    )
