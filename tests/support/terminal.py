# SPDX-License-Identifier: Apache-2.0
"""A terminal that commands are typed into: one shell, as a reader has it, and what it showed."""

import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["Terminal"]

PATIENCE_S = 300.0
"""How long a command may take; ``make demo`` takes the longest."""


class Terminal:
    """A shell of its own process group. What runs in the background is ended by :meth:`close`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._shown = ""
        self._more = threading.Condition()
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def shown(self) -> str:
        """All that was printed so far."""
        with self._more:
            return self._shown

    def type(self, command: str) -> tuple[int, str]:
        """Run *command* as it stands, and wait for its end: its exit code, and what was printed.

        It shares exports, directory and jobs with all that was typed before. Its standard input
        is empty. What jobs in the background print meanwhile is in the text.
        """
        mark = uuid.uuid4().hex
        start = len(self.shown)
        self._write(f"{_sourced(command)} </dev/null\nprintf '\\n{mark} %d.\\n' $?\n")
        text = self.wait_for(f"\n{mark} ", f"\n{mark} ", ".\n", start=start)
        said, _, code = text[start:].partition(f"\n{mark} ")
        return int(code.partition(".")[0]), said

    def leave_running(self, command: str) -> None:
        """Run *command*, which stays in front of its terminal, and go on."""
        self._write(f"{_sourced(command)} </dev/null &\n")

    def wait_for(self, *texts: str, start: int = 0) -> str:
        """Wait until each of *texts* was printed behind *start*; gives all that was.

        Raises:
            AssertionError: the shell ended, or nothing of the kind came for a long time.
        """
        with self._more:
            there = self._more.wait_for(
                lambda: (
                    all(text in self._shown[start:] for text in texts)
                    or not self._reading.is_alive()
                ),
                PATIENCE_S,
            )
            assert there, f"{texts} was not printed, but:\n{self._shown}"
            assert all(text in self._shown[start:] for text in texts), self._shown
            return self._shown

    def close(self) -> None:
        """End what runs in the background, and the shell, whatever they do about it."""
        with suppress(BrokenPipeError):
            self._write("kill $(jobs -p) 2>/dev/null; wait; exit 0\n")
        try:
            self._shell.wait(60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._shell.pid, signal.SIGKILL)
            self._reading.join()
            with self._shell:  # waits, and closes its pipes
                pass

    def _write(self, text: str) -> None:
        stdin = self._shell.stdin
        if stdin is None:
            raise RuntimeError("the shell has no standard input")
        stdin.write(text.encode())
        stdin.flush()

    def _read(self) -> None:
        stdout = self._shell.stdout
        if stdout is None:
            raise RuntimeError("the shell has no standard output")
        while piece := os.read(stdout.fileno(), 65536):
            with self._more:
                self._shown += piece.decode(errors="replace")
                self._more.notify_all()
        with self._more:
            self._more.notify_all()


def _sourced(command: str) -> str:
    """One word of a shell that runs *command* in that shell itself, byte for byte as written."""
    quoted = command.replace("'", "'\\''")
    return f"eval '{quoted}\n'"
