# SPDX-License-Identifier: Apache-2.0
"""The product as processes of their own, as its users start it: a gateway, and sandbox sides.

The demonstration, the harnesses' conformance run and the benchmark stand on it.
"""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rollout_router.transport.bundle import build

__all__ = [
    "READY_S",
    "Gateway",
    "Service",
    "ServiceFailed",
    "Shim",
    "command",
    "environment",
    "kill_and_wait",
]

READY_S: Final = 60.0  # on a machine under load; it takes about one
STOP_S: Final = 45.0
"""Longer than the gateway takes to drain."""

_SHOWN: Final = 20  # lines of the log
_PROGRAM: Final = "from rollout_router.cli.main import main; main(prog_name='rollout-router')"
_WITH_US: Final = "from rollout_router.transport.sandbox import parent; parent.terminate_with({}); "


class ServiceFailed(Exception):  # noqa: N818 - named by what happened
    """A process did not do what it was started for; the message holds what it logged last."""


class Service:
    """A running process. What it logs can be waited for, and is kept in *log*.

    Args:
        name: for messages.
        arguments: the command line.
        log: a file; what it held is gone.
        apart: in a process group of its own: a terminal's Ctrl-C and hang-up reach the caller
            alone, which then has to stop it.
    """

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path, apart: bool) -> None:
        self._name = name
        self._log = log
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(  # noqa: S603 - this product
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            process_group=0 if apart else None,
        )
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def wait_line(self, text: str) -> str:
        """Wait for a line that holds *text*; lines before it are passed over.

        Raises:
            ServiceFailed: it ended, or logged no such line within ``READY_S``.
        """
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except queue.Empty:
                raise self.failed(f"did not say {text!r} within {READY_S:g} s") from None
            if line is None:
                raise self.failed(f"ended before it said {text!r}")
            if text in line:
                return line

    def stop(self) -> None:
        """Ask it to end, and wait. Again is harmless.

        Raises:
            ServiceFailed: it did not end in time, and was killed, or ended with a code but 0.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise self.failed(f"did not end within {STOP_S:.0f} s") from None
        self._reader.join()
        if code != 0:
            raise self.failed(f"ended with code {code}")

    def failed(self, what: str) -> ServiceFailed:
        """That it did *what*, with the end of its log."""
        last = "".join(self._log.read_text(errors="replace").splitlines(keepends=True)[-_SHOWN:])
        return ServiceFailed(f"{self._name} {what}:\n{last}")

    def _read(self) -> None:
        stream = self.process.stdout
        if stream is None:
            raise RuntimeError("the log is a pipe")
        with stream, self._log.open("w", buffering=1) as log:
            for line in stream:
                log.write(line)
                self._lines.put(line)
        self._lines.put(None)


class Gateway:
    """``rollout-router serve`` with two workers, ready when constructed.

    It ends by itself, too, when this process is gone.

    Args:
        folder: exists; gets the store, ``ready.json`` and ``gateway.log``.
        arguments: more flags of ``serve``.
        run_dir: for the workers' sockets, so its path is short; below *folder* by default.
        apart: as for :class:`Service`.

    Raises:
        ServiceFailed: it did not start, and nothing of it is left running.
    """

    def __init__(
        self, folder: Path, *arguments: str, run_dir: Path | None = None, apart: bool = False
    ) -> None:
        self.state_dir = folder / "state"
        self.ready_file = folder / "ready.json"
        self.service = Service(
            "the gateway",
            [
                *_command(_WITH_US.format(os.getpid()), "serve", "--port", "0", "--workers", "2"),
                *("--log-format", "human"),
                *("--state-dir", str(self.state_dir), "--run-dir", str(run_dir or folder / "run")),
                *("--ready-file", str(self.ready_file), *arguments),
            ],
            log=folder / "gateway.log",
            apart=apart,
        )
        with _stopped_on_error(self.service):
            self.service.wait_line("rollout-router: ready:")
            self.url = str(json.loads(self.ready_file.read_text())["url"])


class Shim:
    """The sandbox side in front of *gateway_url*: the single file that goes into a sandbox.

    It ends by itself, too, when this process is gone.

    Args:
        folder: exists; gets the file, and for each *name* statistics and a log.
        gateway_url: where it sends what comes to it.
        arguments: more flags of it.
        name: tells shims of one folder apart.
        apart: as for :class:`Service`.

    Raises:
        ServiceFailed: it did not start, and nothing of it is left running.
    """

    def __init__(
        self,
        folder: Path,
        gateway_url: str,
        *arguments: str,
        name: str = "shim",
        apart: bool = False,
    ) -> None:
        program = folder / "shim"
        build(program)  # by rename, and always the same bytes: another may be running it
        self._statistics_file = folder / f"{name}.statistics.json"
        self.service = Service(
            f"the shim ({name})" if name != "shim" else "the shim",
            [
                *(sys.executable, "-I", "-S", str(program), "--gateway", gateway_url),
                *("--port", "0", "--statistics-file", str(self._statistics_file)),
                *("--parent-pid", str(os.getpid()), *arguments),
            ],
            log=folder / f"{name}.log",
            apart=apart,
        )
        with _stopped_on_error(self.service):
            self.url = str(json.loads(self.service.wait_line('{"url"'))["url"])

    def statistics(self, rollout_id: str) -> dict[str, Any]:
        """What it sent for a rollout; after it has stopped. Empty where it sent nothing."""
        rollouts = json.loads(self._statistics_file.read_text())["rollouts"]
        found: dict[str, Any] = rollouts.get(rollout_id, {})
        return found


@contextlib.contextmanager
def _stopped_on_error(service: Service) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(ServiceFailed):  # what went wrong before is what is told
            service.stop()
        raise


def command(*arguments: str) -> list[str]:
    """The command line of ``rollout-router`` with *arguments*, in this Python."""
    return _command("", *arguments)


def _command(before: str, *arguments: str) -> list[str]:
    # -P: nothing in the current directory stands in for a module
    return [sys.executable, "-P", "-c", before + _PROGRAM, *arguments]


def environment() -> dict[str, str]:
    """Ours, without the twins of flags: what a service is told stands in its arguments."""
    twin = "ROLLOUT_ROUTER_"
    return {name: value for name, value in os.environ.items() if not name.startswith(twin)}


def kill_and_wait(pid: int) -> None:
    """SIGKILL a process that need not be a child, and wait until it is gone.

    Raises:
        ServiceFailed: the kernel did not end it in time.
        ProcessLookupError: there is no such process.
    """
    watch = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        if not select.select([watch], [], [], STOP_S)[0]:
            raise ServiceFailed(f"process {pid} was killed and did not end")
    finally:
        os.close(watch)
