# SPDX-License-Identifier: Apache-2.0
"""The loopback server that a harness is pointed at, and its command line.

It listens on 127.0.0.1 alone, and serves each connection on a thread of its own. It holds S1 to S5
and R4 through relay.py and client.py; here is only their life: listen, accept, stop.
"""

import argparse
import contextlib
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set

from rollout_router.transport.sandbox.client import BASES_BYTES_MAX, Client
from rollout_router.transport.sandbox.http1 import is_header_name
from rollout_router.transport.sandbox.parent import terminate_with, terminate_with_stdin
from rollout_router.transport.sandbox.pool import IDLE_S, Pool, parse_gateway
from rollout_router.transport.sandbox.relay import BODY_BYTES_MAX, Options, Relay
from rollout_router.transport.sandbox.reports import Reports
from rollout_router.transport.sandbox.wire import ROLLOUT_HEADER, is_rollout_id

__all__ = ["Shim", "main"]

_CONNECTIONS_MAX = 512
_BACKLOG = 128
_STOP_S = 2.0
_ACCEPT_AGAIN_MS = 100
_WAKES_BYTES = 4_096  # read at once: one byte a wake
_PORT_MAX = 65_535
_PID_MAX = 2**31 - 1  # of pid_t
_ENVIRONMENT = "ROLLOUT_ROUTER_SHIM_"
_LOOPBACK = "127.0.0.1"


def _to_stderr(message: str) -> None:
    """Past Python's buffer, whose lock a write that never returns would hold until the end."""
    if sys.stderr is not None:  # None: it was closed when we started
        line = f"rollout-router shim: {message}\n"
        os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))


class Shim:
    """The server.

    Args:
        gateway: URL of the model server; may have a path prefix.
        port: to listen on; 0 picks one.
        rollout_header: the header that names a rollout where the path does not.
        rollout: the id that goes into that header where a request names none.
        deltas: whether bodies are kept and sent as frames; else everything passes through.
        bases_bytes_max: memory for bodies that the gateway holds.
        body_bytes_max: a longer body passes through.
        idle_s: how long an idle connection to the gateway is used again.
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
        bases_bytes_max: int = BASES_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        if not 0 <= port <= _PORT_MAX:
            raise ValueError(f"not a port: {port}")
        if not is_header_name(rollout_header):
            raise ValueError(f"not the name of a header: {rollout_header!r}")
        if rollout is not None and not is_rollout_id(rollout):
            raise ValueError(f"not a rollout id: {rollout!r}")
        self._port = port
        self._report = report
        self._options = Options(rollout_header, rollout, deltas, body_bytes_max)
        self._pool = Pool(parse_gateway(gateway), idle_s=idle_s, on_idle=self._wake_acceptor)
        self._client = Client(
            clock=time.monotonic,
            bases_bytes_max=bases_bytes_max,
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
        return f"http://{_LOOPBACK}:{self._port}"

    def start(self) -> None:
        """Listen and accept, on threads of its own. Once.

        Raises:
            OSError: the port is taken.
        """
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((_LOOPBACK, self._port))
            listener.listen(_BACKLOG)
            listener.settimeout(0)  # a client that is gone again must not block accept()
        except OSError:
            listener.close()
            raise
        self._port = listener.getsockname()[1]
        self._wake, woken = socket.socketpair()
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener, woken), name="accept", daemon=True
        )
        self._acceptor.start()

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


def main(argv: Optional[List[str]] = None) -> int:
    """Run the shim until SIGTERM or SIGINT; SIGUSR1 writes the statistics.

    Every flag has a twin in the environment, ``ROLLOUT_ROUTER_SHIM_…``; the flag wins.

    Returns:
        0 after a signal, 1 where it could not start or its last statistics could not be written.
        Wrong usage exits with 2.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.gateway:
        parser.error("--gateway is required")
    reports = Reports(_to_stderr)
    try:
        shim = Shim(
            args.gateway,
            report=reports.say,
            port=args.port,
            rollout_header=args.rollout_header,
            rollout=args.rollout,
            deltas=not args.no_delta,
            bases_bytes_max=args.bases_bytes,
        )
    except ValueError as error:
        parser.error(str(error))
    # Blocked before the first thread starts, so that all of them leave the signals to sigwait.
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        reports.start()
        try:
            return _serve_until_signal(shim, args, signals, reports)
        finally:
            reports.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve_until_signal(
    shim: Shim, args: argparse.Namespace, signals: Set[signal.Signals], reports: Reports
) -> int:
    try:
        if args.ready_file and os.path.exists(args.ready_file):
            os.unlink(args.ready_file)
        shim.start()
    except (OSError, RuntimeError) as error:  # no thread could be started
        reports.say(f"cannot start: {error}")
        return 1
    try:
        _watch(args)
        _say_ready(shim, args)
        while signal.sigwait(signals) == signal.SIGUSR1:
            _write_statistics(shim, args, reports)
    except ProcessLookupError:
        pass  # the parent ended before we could watch it: so do we
    except (OSError, RuntimeError) as error:
        reports.say(str(error))
        return 1
    finally:
        shim.stop()
    return 0 if _write_statistics(shim, args, reports) else 1


def _watch(args: argparse.Namespace) -> None:
    if args.parent_pid is not None:
        terminate_with(args.parent_pid)
    if args.watch_stdin:
        terminate_with_stdin()


def _say_ready(shim: Shim, args: argparse.Namespace) -> None:
    ready = {"url": shim.url, "port": shim.port, "pid": os.getpid()}
    if args.ready_file:
        _write_json(args.ready_file, ready)
    else:
        print(json.dumps(ready), flush=True)


def _write_statistics(shim: Shim, args: argparse.Namespace, reports: Reports) -> bool:
    """Whether they are where they were asked for."""
    if args.statistics_file:
        try:
            _write_json(args.statistics_file, shim.statistics())
        except OSError as error:
            reports.say(f"statistics could not be written to {args.statistics_file}: {error}")
            return False
        reports.say(f"statistics written to {args.statistics_file}")
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollout-router shim",
        description="A loopback server for a harness: sends a gateway only what is new.",
        epilog=f"Every flag has a twin in the environment, for example {_ENVIRONMENT}GATEWAY.",
    )

    def add(flag: str, text: str, *, default: Any = None, **more: Any) -> None:
        value = os.environ.get(_ENVIRONMENT + flag.upper().replace("-", "_"))
        if more.get("action") == "store_true":
            default = value is not None and value.lower() not in {"", "0", "false", "no"}
        elif value:
            default = value  # argparse converts a default that is text, as it does an argument
        parser.add_argument("--" + flag, help=text, default=default, **more)

    add("gateway", "URL of the model server; may have a path prefix", metavar="URL")
    add("port", "port on 127.0.0.1; 0 picks one", default=0, type=int)
    add("ready-file", 'written once it listens: {"url", "port", "pid"}', metavar="FILE")
    add("rollout-header", "header that names a rollout", default=ROLLOUT_HEADER, metavar="NAME")
    add("rollout", "id to put into that header where a request names none", metavar="ID")
    add("no-delta", "pass everything through as it comes", action="store_true")
    add("bases-bytes", "memory for kept bodies", default=BASES_BYTES_MAX, type=_size, metavar="N")
    add("statistics-file", "written at the end and on SIGUSR1", metavar="FILE")
    add("parent-pid", "end when this process has ended", type=_pid, metavar="PID")
    add("watch-stdin", "end when standard input ends", action="store_true")
    return parser


def _pid(text: str) -> int:
    pid = int(text)
    if not 0 < pid <= _PID_MAX:
        raise argparse.ArgumentTypeError(f"not the id of a process: {text}")
    return pid


def _size(text: str) -> int:
    size = int(text)
    if size < 0:
        raise argparse.ArgumentTypeError(f"not a number of bytes: {text}")
    return size


def _write_json(path: str, document: Dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):  # it was never made
            os.unlink(temporary)
        raise
