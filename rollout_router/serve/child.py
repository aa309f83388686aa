# SPDX-License-Identifier: Apache-2.0
"""One process of a supervisor: forked, heard of over a link, seen to its end.

It is forked from a process that has imported what it needs and does nothing else (see
:mod:`rollout_router.serve.forking`), so that one that died is replaced in a fraction of the time
that an interpreter takes to start. Its end is seen through its pidfd: the fork server may die too.
"""

import asyncio
import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

__all__ = ["BACKOFF_S", "EARLY_EXITS_MAX", "Child"]

EARLY_EXITS_MAX: Final = 3
"""So many processes of a kind in a row that exit before they answer are enough: it cannot start."""

REAP_S: Final = 1.0
"""How long the fork server may take to say how a process ended; it is for people to read."""

BACKOFF_S: Final = (0.0, 0.2, 1.0, 5.0)
"""Pause before the next process in the same place, by the number of early exits in a row."""

_UNKNOWN: Final = 255
"""What multiprocessing says where the fork server ended first."""

Target = Callable[[Any, socket.socket, socket.socket], None]


class Child:
    """Made by :meth:`start`; wait for its end with :meth:`wait_end`, which gives all back."""

    def __init__(self, process: ForkServerProcess, pidfd: int, link: socket.socket) -> None:
        self._process = process
        self._pidfd = pidfd
        self._link = link
        self._writer: asyncio.StreamWriter | None = None  # keeps our end of the link open
        self.pid: Final = process.pid or 0

    @classmethod
    async def start(cls, target: Target, config: Any, listener: socket.socket) -> "Child":
        """Fork a process that runs *target* with *config*, *listener* and its end of the link.

        Raises:
            OSError, EOFError: none was made: no descriptor, no memory; or the fork server died of
                it, and another starts.
        """
        with listener.dup() as copy:  # the caller may close its own meanwhile
            return await asyncio.to_thread(cls._fork, target, config, copy)

    async def wait_ready(self) -> dict[str, Any] | None:
        """What it says once it answers; None where it ended before."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._link)
        try:
            line = await reader.readline()
        except ConnectionResetError:
            line = b""
        if not line:
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    async def wait_end(self) -> None:
        """Wait until the process is gone."""
        try:
            await _ended(self._pidfd)
        finally:
            if self._writer is not None:
                self._writer.close()
            pidfd, self._pidfd = self._pidfd, -1
            os.close(pidfd)
        await asyncio.to_thread(self._process.join, REAP_S)

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal; nothing once it is gone."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):  # it has ended, and is about to be seen so
                signal.pidfd_send_signal(self._pidfd, number)

    def ending(self) -> str:
        """How it ended, for people."""
        code = self._process.exitcode
        if code is None or code == _UNKNOWN:
            return "ended"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    @classmethod
    def _fork(cls, target: Target, config: Any, listener: socket.socket) -> "Child":
        """Runs in a thread."""
        ours, theirs = socket.socketpair()
        with ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                forking = multiprocessing.get_context("forkserver")
                process = forking.Process(target=target, args=(config, listener, theirs))
                process.start()
            if process.pid is None:
                raise RuntimeError("a process that was started has a pid")
            pidfd = os.pidfd_open(process.pid)
            undo.pop_all()
        return cls(process, pidfd, ours)


async def _ended(pidfd: int) -> None:
    """Wait for the end of a process. Its pidfd is readable then; see pidfd_open(2)."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
