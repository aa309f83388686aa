# SPDX-License-Identifier: Apache-2.0
"""The first part of the program: it checks the settings, listens, and says that it is ready.

A harness waits for this, so it imports next to nothing. The rest, program.py, is loaded after it,
while the listening socket holds the first connections.
"""

import _signal  # type: ignore[import-not-found]  # signal itself costs more than listening
import _socket
import os
import sys

from rollout_router.transport.sandbox.flags import quick

TYPE_CHECKING = False  # as typing has it, without importing that
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LOOPBACK", "listen", "main", "to_stderr", "write_file"]

LOOPBACK = "127.0.0.1"
_BACKLOG = 128
_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGUSR1)


def main(argv: "list[str] | None" = None) -> int:
    """Run the shim until SIGTERM or SIGINT; SIGUSR1 writes the statistics. Then the process ends.

    With ``opencode-config`` as the first argument it rewrites a configuration: opencode.py.

    Every flag has a twin in the environment, ``ROLLOUT_ROUTER_SHIM_…``; the flag wins.

    Returns:
        0 after a signal, 1 where it could not start or its last statistics could not be written.

    Raises:
        SystemExit: wrong usage (2), or ``--help`` (0). Nothing has been said or opened then.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["opencode-config"]:
        from rollout_router.transport.sandbox.opencode import main as rewrite  # noqa: PLC0415 - only where it is asked for

        return rewrite(arguments[1:])
    settings = quick(arguments, dict(os.environ))
    if settings is None:
        from rollout_router.transport.sandbox.usage import asked  # noqa: PLC0415 - it is dear

        settings = asked(arguments)
    # Blocked before the first thread starts, so that all of them leave the signals to sigwait, and
    # before it says that it is ready, so that none is missed.
    # They stay so: one that is sent twice must not change how the process ends.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _SIGNALS)
    return _start(settings)


def listen(port: int) -> _socket.socket:
    """A socket that listens on the loopback address alone, and accepts without blocking.

    Raises:
        OSError: the port is taken.
    """
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(_BACKLOG)
        listener.settimeout(0)  # a client that is gone again must not block accept()
    except OSError:
        listener.close()
        raise
    return listener


def to_stderr(message: str) -> None:
    """Past Python's buffer, whose lock a write that never returns would hold until the end."""
    if sys.stderr is not None:  # None: it was closed when we started
        line = f"rollout-router shim: {message}\n"
        os.write(sys.stderr.fileno(), line.encode(errors="backslashreplace"))


def write_file(path: str, text: str) -> None:
    """Write by rename: a reader sees all of it or the old one.

    Raises:
        OSError: *path* is as it was.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _start(settings: "dict[str, Any]") -> int:
    ready_file = settings.get("ready_file", "")
    try:
        if ready_file and os.path.exists(ready_file):
            os.unlink(ready_file)
        listener = listen(settings.get("port", 0))
    except OSError as error:
        to_stderr(f"cannot start: {error}")
        return 1
    try:
        _watch(settings)
        _say_ready(listener.getsockname()[1], ready_file)
    except ProcessLookupError:
        listener.close()
        return 0  # what we were to end with had ended before we could watch it
    except (OSError, RuntimeError) as error:  # also: no thread could be started
        listener.close()
        to_stderr(f"cannot start: {error}")
        return 1
    from rollout_router.transport.sandbox.program import run  # noqa: PLC0415 - the rest

    code = run(settings, listener, _SIGNALS)
    if code and ready_file and os.path.exists(ready_file):
        os.unlink(ready_file)  # nothing listens where it points
    return code


def _watch(settings: "dict[str, Any]") -> None:
    if "parent_pid" not in settings and not settings.get("watch_stdin"):
        return
    from rollout_router.transport.sandbox.parent import (  # noqa: PLC0415 - only where it is asked for
        terminate_with,
        terminate_with_stdin,
    )

    if "parent_pid" in settings:
        terminate_with(settings["parent_pid"])
    if settings.get("watch_stdin"):
        terminate_with_stdin()


def _say_ready(port: int, ready_file: str) -> None:
    url = f"http://{LOOPBACK}:{port}"
    ready = f'{{"url": "{url}", "port": {port}, "pid": {os.getpid()}}}'
    if ready_file:
        write_file(ready_file, ready)
    elif sys.stdout is not None:  # past its buffer, which the exit would try to write again
        os.write(sys.stdout.fileno(), f"{ready}\n".encode())
