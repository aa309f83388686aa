# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts the workers, replaces the ones that exited, never ends a slow one (C3).

It holds the public listening socket, so a connection that arrives while a worker is replaced waits
in the backlog instead of being refused. It holds no claims and forwards nothing.

Workers are forked from a process that has imported what they need and does nothing else (see
:mod:`rollout_router.serve.forking`), so that one that died is replaced in a fraction of the time
that an interpreter takes to start. A worker's end is seen through its pidfd: the fork server may
die too.
"""

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from rollout_router.serve.config import ServeConfig

__all__ = ["PortTaken", "Supervisor", "bind_public", "url_of"]

BACKLOG: Final = 2048
EARLY_EXITS_MAX: Final = 3
"""So many workers in a row that exit before they answer end the service: it cannot start."""

REAP_S: Final = 1.0
"""How long the fork server may take to say how a worker ended; it is for people to read."""

BACKOFF_S: Final = (0.0, 0.2, 1.0, 5.0)
"""Pause before a slot's next worker, by the number of its early exits in a row."""


class PortTaken(OSError):  # noqa: N818 - named by what happened
    """The public port cannot be listened on: ``errno``, and ``strerror`` says which and why."""


def bind_public(host: str, port: int) -> socket.socket:
    """Listen on the public port that all workers share; port 0 picks a free one.

    Raises:
        PortTaken: taken, not permitted, or no such address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit it; without it small answers wait 44 ms for a delayed ACK
            # where the event loop does not set it (asyncio on a socket that was bound before).
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            # Of all that share it: a worker whose peer was faster would be held in accept for as
            # long as nobody connects. A copy of a socket object sets what it was copied from.
            listener.settimeout(0)
            undo.pop_all()
    except OSError as error:
        said = f"cannot listen on {host}:{port}: {error.strerror}"
        raise PortTaken(error.errno, said) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Supervisor:
    """Runs ``workers`` worker processes behind one listening socket.

    Args:
        config: what every worker is told.
        listener: from :func:`bind_public`; closed by :meth:`run`.
        workers: how many, at least 1.
        ready_file: written by rename whenever every worker answers; removed at start and end.
        say: takes one line for people.
    """

    def __init__(
        self,
        config: ServeConfig,
        listener: socket.socket,
        *,
        workers: int,
        ready_file: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._listener = listener
        self._workers = workers
        self._ready_file = ready_file
        self._say = say
        self._processes: dict[int, int] = {}  # pidfds, by slot
        self._forking = multiprocessing.get_context("forkserver")
        self._ready: dict[int, dict[str, Any]] = {}
        self._stopping = asyncio.Event()
        self._announced = False
        self._failed = False

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT; returns the exit code: 0, or 1 where nothing started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self._remove_ready_file()
        try:
            async with asyncio.TaskGroup() as slots:
                for slot in range(self._workers):
                    slots.create_task(self._keep_slot(slot))
        finally:
            self._listener.close()
            self._remove_ready_file()
        return 1 if self._failed else 0

    def _stop(self) -> None:
        """Ask every worker to drain; asked a second time, end them.

        What connects from now on is refused, once the workers have heard it too: left waiting, its
        call would be cut at the end, and its client could not know that nothing happened.
        """
        again = self._stopping.is_set()
        self._stopping.set()
        self._listener.close()
        for pidfd in self._processes.values():
            _tell(pidfd, signal.SIGKILL if again else signal.SIGTERM)

    async def _keep_slot(self, slot: int) -> None:
        early_exits = 0
        while not self._stopping.is_set():
            was_ready = await self._run_worker(slot)
            early_exits = 0 if was_ready else early_exits + 1
            if self._stopping.is_set():
                return
            if early_exits >= EARLY_EXITS_MAX and not self._announced:
                self._say(f"{early_exits} workers in a row exited before they answered: giving up")
                self._failed = True
                self._stop()
                return
            try:
                pause_s = BACKOFF_S[min(early_exits, len(BACKOFF_S) - 1)]
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            except TimeoutError:
                continue

    async def _run_worker(self, slot: int) -> bool:
        """Run one worker process to its end; True where it ever answered.

        A process that cannot be made (no descriptor, no memory) counts as one that ended early: the
        other workers serve on, and it is tried again.
        """
        try:
            with self._listener.dup() as listener:  # ours may be closed meanwhile
                process, pidfd, link = await asyncio.to_thread(self._fork, listener)
        except (OSError, EOFError) as error:  # EOFError: the fork server died of it; another starts
            self._say(f"a worker cannot be started: {error!r}")
            return False
        self._processes[slot] = pidfd
        if self._stopping.is_set():
            _tell(pidfd, signal.SIGTERM)
        reader, writer = await asyncio.open_unix_connection(sock=link)
        try:
            try:
                line = await reader.readline()
            except ConnectionResetError:
                line = b""
            if line:
                self._ready[slot] = json.loads(line)
                self._announce()
            await _ended(pidfd)
        finally:
            writer.close()
            del self._processes[slot]
            self._ready.pop(slot, None)
            os.close(pidfd)
        await asyncio.to_thread(process.join, REAP_S)
        if not self._stopping.is_set():
            self._say(f"worker process {process.pid} {_ending(process.exitcode)}; starting another")
        return bool(line)

    def _fork(self, listener: socket.socket) -> tuple[ForkServerProcess, int, socket.socket]:
        """A new worker process, its pidfd, and our end of the link to it. Runs in a thread."""
        ours, theirs = socket.socketpair()
        with ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                arguments = (self._config, listener, theirs)
                process = self._forking.Process(target=_work, args=arguments)
                process.start()
            if process.pid is None:
                raise RuntimeError("a process that was started has a pid")
            pidfd = os.pidfd_open(process.pid)
            undo.pop_all()
        return process, pidfd, ours

    def _announce(self) -> None:
        if len(self._ready) < self._workers or self._stopping.is_set():
            return
        url = url_of(self._listener)
        workers = [self._ready[slot] for slot in sorted(self._ready)]
        try:
            self._write_ready_file(url, workers)
        except OSError as error:
            self._say(f"the ready file cannot be written: {error}; the service goes on without it")
        if not self._announced:
            self._say(f"ready: {url} with {len(workers)} workers")
        self._announced = True

    def _write_ready_file(self, url: str, workers: list[dict[str, Any]]) -> None:
        if self._ready_file is not None:
            document = {"url": url, "pid": os.getpid(), "workers": workers}
            temporary = self._ready_file.with_name(f"{self._ready_file.name}.{os.getpid()}.tmp")
            temporary.write_text(json.dumps(document))
            temporary.replace(self._ready_file)

    def _remove_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)


def _work(config: ServeConfig, listener: socket.socket, link: socket.socket) -> None:
    """What a forked process does."""
    gc.freeze()  # what it was forked with stays
    gc.enable()  # see rollout_router.serve.uncollected
    from rollout_router.serve.worker import main  # noqa: PLC0415 - not in the supervisor

    sys.exit(main(config, listener, link))


_UNKNOWN: Final = 255
"""What multiprocessing says where the fork server ended first."""


async def _ended(pidfd: int) -> None:
    """Wait for the end of a process. Its pidfd is readable then; see pidfd_open(2)."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)


def _tell(pidfd: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended, and is about to be seen so
        signal.pidfd_send_signal(pidfd, number)


def _ending(code: int | None) -> str:
    if code is None or code == _UNKNOWN:
        return "ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
