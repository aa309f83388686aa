# SPDX-License-Identifier: Apache-2.0
"""The supervisor: starts the workers, replaces the ones that exited, never ends a slow one (C3).

It holds the public listening socket, so a connection that arrives while a worker is replaced waits
in the backlog instead of being refused. It holds no claims and forwards nothing.

With an admin address it keeps an admin process beside the workers, which ends last, so that a drain
can be watched.
"""

import asyncio
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from rollout_router.serve.admin_slot import AdminSlot
from rollout_router.serve.child import BACKOFF_S, EARLY_EXITS_MAX, Child
from rollout_router.serve.config import ServeConfig

__all__ = ["PortTaken", "Supervisor", "bind_public", "local_url_of", "url_of"]

BACKLOG: Final = 2048


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


def local_url_of(listener: socket.socket) -> str:
    """The base URL by which this machine reaches a listening socket, which may listen on all."""
    return url_of(listener).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


class Supervisor:
    """Runs ``workers`` worker processes behind one listening socket.

    Args:
        config: what every worker is told.
        listener: from :func:`bind_public`; closed by :meth:`run`.
        workers: how many, at least 1.
        ready_file: written by rename whenever every worker answers; removed at start and end.
        say: takes one line for people.
        admin: the place of the admin process; None: there is no admin address.
        on_ended: called in a thread with the pid of each worker process that has ended, before
            another takes its place.
    """

    def __init__(
        self,
        config: ServeConfig,
        listener: socket.socket,
        *,
        workers: int,
        ready_file: Path | None,
        say: Callable[[str], None],
        admin: AdminSlot | None = None,
        on_ended: Callable[[int], None] | None = None,
    ) -> None:
        self._config = config
        self._listener = listener
        self._workers = workers
        self._ready_file = ready_file
        self._say = say
        self._admin = admin
        self._admin_answers = False
        self._on_ended = on_ended
        self._processes: dict[int, Child] = {}  # by slot
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
            async with asyncio.TaskGroup() as children:
                if self._admin is not None:
                    children.create_task(self._admin.keep(self._admin_ready))
                async with asyncio.TaskGroup() as slots:
                    for slot in range(self._workers):
                        slots.create_task(self._keep_slot(slot))
                if self._admin is not None:
                    self._admin.stop()
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
        for child in self._processes.values():
            child.tell(signal.SIGKILL if again else signal.SIGTERM)
        if again and self._admin is not None:
            self._admin.kill()

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
            child = await Child.start(_work, self._config, self._listener)
        except (OSError, EOFError) as error:
            self._say(f"a worker cannot be started: {error!r}")
            return False
        self._processes[slot] = child
        if self._stopping.is_set():
            child.tell(signal.SIGTERM)
        try:
            ready = await child.wait_ready()
            if ready is not None:
                self._ready[slot] = ready
                self._announce()
            await child.wait_end()
        finally:
            del self._processes[slot]
            self._ready.pop(slot, None)
        if self._on_ended is not None:
            await asyncio.to_thread(self._on_ended, child.pid)
        if not self._stopping.is_set():
            self._say(f"worker process {child.pid} {child.ending()}; starting another")
        return ready is not None

    def _admin_ready(self) -> None:
        if self._admin is not None and not self._admin_answers:
            self._say(f"admin: {self._admin.shown}")
        self._admin_answers = True
        if self._announced:
            self._announce()

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
            document: dict[str, Any] = {"url": url, "pid": os.getpid(), "workers": workers}
            if self._admin is not None and self._admin_answers:
                document["admin"] = self._admin.url
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
