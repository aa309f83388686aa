# SPDX-License-Identifier: Apache-2.0
"""The loopback server that a harness is pointed at, and its command line.

It listens on 127.0.0.1 alone, and serves each connection on a thread of its own. It holds S1 to S5
and R4 through relay.py and client.py; here is only their life: listen, accept, stop.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set

from rollout_router.transport.sandbox.client import BASES_BYTES_MAX, Client
from rollout_router.transport.sandbox.parent import terminate_with, terminate_with_stdin
from rollout_router.transport.sandbox.pool import IDLE_S, Pool, parse_gateway
from rollout_router.transport.sandbox.relay import BODY_BYTES_MAX, Options, Relay
from rollout_router.transport.sandbox.wire import ROLLOUT_HEADER, is_rollout_id

__all__ = ["Shim", "main"]

_CONNECTIONS_MAX = 512
_BACKLOG = 128
_STOP_S = 2.0
_ACCEPT_AGAIN_MS = 100
_ENVIRONMENT = "ROLLOUT_ROUTER_SHIM_"
_LOOPBACK = "127.0.0.1"


def _to_stderr(message: str) -> None:
    print(f"rollout-router shim: {message}", file=sys.stderr, flush=True)


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
        report: told, in a sentence, what an operator should know.

    Raises:
        ValueError: *gateway* is no URL, or *rollout* no id.
    """

    def __init__(
        self,
        gateway: str,
        *,
        port: int = 0,
        rollout_header: str = ROLLOUT_HEADER,
        rollout: Optional[str] = None,
        deltas: bool = True,
        bases_bytes_max: int = BASES_BYTES_MAX,
        body_bytes_max: int = BODY_BYTES_MAX,
        idle_s: float = IDLE_S,
        report: Callable[[str], None] = _to_stderr,
    ) -> None:
        if rollout is not None and not is_rollout_id(rollout):
            raise ValueError(f"not a rollout id: {rollout!r}")
        self._port = port
        self._report = report
        self._options = Options(rollout_header, rollout, deltas, body_bytes_max)
        self._pool = Pool(parse_gateway(gateway), idle_s=idle_s)
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

    def _accept(self, listener: socket.socket, woken: socket.socket) -> None:
        poll, stop = select.poll(), select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(woken, select.POLLIN)
        stop.register(woken, select.POLLIN)
        with listener, woken:
            while True:
                poll.poll()
                if stop.poll(0):
                    return
                try:
                    sock, _ = listener.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    continue
                except OSError as error:  # no descriptor is free, most likely
                    self._report(f"a connection could not be accepted: {error}")
                    stop.poll(_ACCEPT_AGAIN_MS)
                    continue
                self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=self._run, args=(sock,), name="harness", daemon=True)
        with self._lock:
            self._connections[sock] = thread
        thread.start()

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
        0 after a signal, 1 where it could not start. Wrong usage exits with 2.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if not args.gateway:
        parser.error("--gateway is required")
    try:
        shim = Shim(
            args.gateway,
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
        return _serve_until_signal(shim, args, signals)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve_until_signal(shim: Shim, args: argparse.Namespace, signals: Set[signal.Signals]) -> int:
    try:
        if args.ready_file and os.path.exists(args.ready_file):
            os.unlink(args.ready_file)
        shim.start()
    except OSError as error:
        _to_stderr(f"cannot start: {error}")
        return 1
    try:
        _watch(args)
        _say_ready(shim, args)
        while signal.sigwait(signals) == signal.SIGUSR1:
            _write_statistics(shim, args)
    except ProcessLookupError:
        pass  # the parent ended before we could watch it: so do we
    except OSError as error:
        _to_stderr(str(error))
        return 1
    finally:
        shim.stop()
    _write_statistics(shim, args)
    return 0


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


def _write_statistics(shim: Shim, args: argparse.Namespace) -> None:
    if args.statistics_file:
        _write_json(args.statistics_file, shim.statistics())
        _to_stderr(f"statistics written to {args.statistics_file}")


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
    add("bases-bytes", "memory for kept bodies", default=BASES_BYTES_MAX, type=int, metavar="N")
    add("statistics-file", "written at the end and on SIGUSR1", metavar="FILE")
    add("parent-pid", "end when this process has ended", type=int, metavar="PID")
    add("watch-stdin", "end when standard input ends", action="store_true")
    return parser


def _write_json(path: str, document: Dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(temporary, path)
