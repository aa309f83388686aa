# SPDX-License-Identifier: Apache-2.0
"""The loopback server that a harness is pointed at.

It listens on 127.0.0.1 alone, and serves each connection on a thread of its own. It holds S1 to S5
and R4 through relay.py and client.py; here is only their life: listen, accept, stop.
"""

import contextlib
import math
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, Optional

from rollout_router.transport.sandbox.client import BASES_BYTES_MAX, BODY_BYTES_MAX, Client
from rollout_router.transport.sandbox.http1 import is_header_name
from rollout_router.transport.sandbox.pool import IDLE_S, Pool, parse_gateway
from rollout_router.transport.sandbox.relay import Options, Relay
from rollout_router.transport.sandbox.stages import Timings
from rollout_router.transport.sandbox.start import LOOPBACK, listen
from rollout_router.transport.sandbox.wire import ROLLOUT_HEADER, is_rollout_id

__all__ = ["Shim"]

_CONNECTIONS_MAX = 512
_STOP_S = 2.0
_ACCEPT_AGAIN_MS = 100
_WAKES_BYTES = 4_096  # read at once: one byte a wake
_PORT_MAX = 65_535


class Shim:
    """The server.

    Args:
        gateway: URL of the model server; may have a path prefix.
        port: to listen on; 0 picks one.
        rollout_header: the header that names a rollout where the path does not.
        rollout: the id that goes into that header where a request names none.
        deltas: whether bodies are kept and sent as frames; else everything passes through.
        deflate: whether what a frame inserts is compressed where that is shorter.
        bases_bytes_max: memory for bodies that the gateway holds.
        body_bytes_max: a longer body passes through.
        idle_s: how long an idle connection to the gateway is used again.
        timings_file: gets a line for each answered call, see stages.py; None measures nothing.
        report: told, in a sentence, what an operator should know, on the thread of a request, once
            that is answered; must neither block nor raise (:meth:`Reports.say` does neither).

    Raises:
        ValueError: *gateway* is no URL, *port* no port, *rollout* no id, or *rollout_header* no
            name of a header.
    """

    def __init__(
        self,
        gateway: str,
        *,
        report: Callable[[str], None],
        port: int = 0,
        rollout_header: str = ROLLOUT_HEADER,
        rollout: Optional[str] = None,
        deltas: bool = True,
        deflate: bool = True,
        bases_bytes_max: int = BASES_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        idle_s: float = IDLE_S,
        timings_file: Optional[str] = None,
    ) -> None:
        if not 0 <= port <= _PORT_MAX:
            raise ValueError(f"not a port: {port}")
        if not is_header_name(rollout_header):
            raise ValueError(f"not the name of a header: {rollout_header!r}")
        if rollout is not None and not is_rollout_id(rollout):
            raise ValueError(f"not a rollout id: {rollout!r}")
        self._port = port
        self._report = report
        timings = Timings(timings_file, report=report) if timings_file else None
        self._options = Options(rollout_header, rollout, deltas, body_bytes_max, timings)
        self._pool = Pool(parse_gateway(gateway), idle_s=idle_s, on_idle=self._wake_acceptor)
        self._client = Client(
            clock=time.monotonic,
            bases_bytes_max=bases_bytes_max,
            deflate=deflate,
            on_failure=lambda error: report(f"no frame, sent in full: {error!r}"),
        )
        self._lock = threading.Lock()
        self._connections: Dict[socket.socket, threading.Thread] = {}
        self._acceptor: Optional[threading.Thread] = None
        self._wake: Optional[socket.socket] = None

    @property
    def port(self) -> int:
        """The port that it listens on, from :meth:`start` on."""
        return self._port

    @property
    def url(self) -> str:
        """What a harness is pointed at, its own path appended."""
        return f"http://{LOOPBACK}:{self._port}"

    def start(self, listening: Optional[socket.socket] = None) -> None:
        """Listen and accept, on threads of its own. Once.

        Args:
            listening: a socket that listens already; it is taken over.

        Raises:
            OSError: the port is taken.
            RuntimeError: no thread could be started.
        """
        listener = listening or socket.socket(fileno=listen(self._port).detach())
        listener.settimeout(0)  # a client that is gone again must not block accept()
        self._port = listener.getsockname()[1]
        self._wake, woken = socket.socketpair()
        acceptor = threading.Thread(
            target=self._accept, args=(listener, woken), name="accept", daemon=True
        )
        try:
            acceptor.start()
        except RuntimeError:
            self._wake.close()
            woken.close()
            raise
        self._acceptor = acceptor

    def stop(self) -> None:
        """End all connections, those with the gateway too, and wait for their threads.

        A thread that is just connecting to the gateway is not waited for beyond two seconds.
        """
        if self._wake is None or self._acceptor is None:
            return
        with self._lock:
            self._wake.close()
        self._acceptor.join()
        with self._lock:
            connections = list(self._connections.items())
        for sock, _ in connections:
            with contextlib.suppress(OSError):  # it ended by itself
                sock.shutdown(socket.SHUT_RDWR)
        deadline_s = time.monotonic() + _STOP_S
        for _, thread in connections:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        self._pool.close()

    def statistics(self) -> Dict[str, Any]:
        """What each rollout has sent: ``{"rollouts": {id: {"calls", "bytes_sent", …}}}``."""
        tallies = self._client.statistics()
        return {"rollouts": {rollout: tally._asdict() for rollout, tally in tallies.items()}}

    def _wake_acceptor(self) -> None:
        """Have it look again when the next idle connection is due."""
        with self._lock, contextlib.suppress(OSError):  # it is awake already, or we are stopping
            if self._wake is not None:
                self._wake.send(b"w", socket.MSG_DONTWAIT)

    def _accept(self, listener: socket.socket, woken: socket.socket) -> None:
        """Accept, and retire idle connections to the gateway when they are due."""
        poll, pause = select.poll(), select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(woken, select.POLLIN)
        pause.register(woken, select.POLLIN)
        with listener, woken:
            while True:
                due_s = self._pool.retire()
                ready = dict(poll.poll(None if due_s is None else math.ceil(due_s * 1000)))
                if woken.fileno() in ready and not woken.recv(_WAKES_BYTES):
                    return  # stop() closed the other end
                if listener.fileno() not in ready:
                    continue
                try:
                    self._accept_one(listener)
                except (OSError, RuntimeError, MemoryError) as error:
                    # No descriptor, no thread or no memory is free, most likely.
                    self._report(f"a connection could not be accepted: {error}")
                    pause.poll(_ACCEPT_AGAIN_MS)

    def _accept_one(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # whoever called is gone again
        self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        """Give a connection its thread; closed where there is none."""
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._run, args=(sock,), name="harness", daemon=True)
            with self._lock:
                self._connections[sock] = thread
            thread.start()
        except BaseException:
            with self._lock:
                self._connections.pop(sock, None)
            sock.close()
            raise

    def _run(self, sock: socket.socket) -> None:
        relay = Relay(sock, self._pool, self._client, options=self._options, report=self._report)
        try:
            relay.run(overloaded=len(self._connections) > _CONNECTIONS_MAX)
        finally:
            with self._lock:
                del self._connections[sock]
