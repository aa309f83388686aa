# SPDX-License-Identifier: Apache-2.0
"""Starts a gateway and the sandbox side as processes of their own, as their users would."""

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rollout_router.transport.bundle import build

__all__ = ["Gateway", "Service", "ServiceFailed", "Shim", "kill_and_wait"]

READY_S: Final = 30.0
STOP_S: Final = 45.0
"""Longer than the gateway takes to drain."""


_SHOWN: Final = 20  # lines of the log


class ServiceFailed(Exception):  # noqa: N818 - named by what happened
    """A process did not start or did not stop; the message holds what it logged last."""


class Service:
    """A running process. What it logs can be waited for, and is kept in *log*."""

    def __init__(self, name: str, arguments: Sequence[str], *, log: Path) -> None:
        self._name = name
        self._log = log
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(  # noqa: S603 - this product
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(),
        )
        self._reader = threading.Thread(target=self._read, name=name, daemon=True)
        self._reader.start()

    def wait_line(self, text: str) -> str:
        """Wait for a line that holds *text*; lines before it are passed over.

        Raises:
            ServiceFailed: it ended, or logged no such line in time.
        """
        while True:
            try:
                line = self._lines.get(timeout=READY_S)
            except queue.Empty:
                raise self._failed(f"did not say {text!r} within {READY_S:.0f} s") from None
            if line is None:
                raise self._failed(f"ended before it said {text!r}")
            if text in line:
                return line

    def stop(self) -> None:
        """Ask it to end, and wait.

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
            raise self._failed(f"did not end within {STOP_S:.0f} s") from None
        self._reader.join()
        if code != 0:
            raise self._failed(f"ended with code {code}")

    def _failed(self, what: str) -> ServiceFailed:
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
    """``rollout-router serve`` with two workers, its store and sockets below *folder*.

    Raises:
        ServiceFailed: it did not start.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.state_dir = folder / "state"
        ready_file = folder / "ready.json"
        command = "from rollout_router.cli.main import main; main()"
        self.service = Service(
            "the gateway",
            [
                *(sys.executable, "-P", "-c", command, "serve", "--port", "0", "--workers", "2"),
                *("--state-dir", str(self.state_dir), "--run-dir", str(folder / "run")),
                *("--ready-file", str(ready_file), *arguments),
            ],
            log=folder / "gateway.log",
        )
        with _stopped_on_error(self.service):
            self.service.wait_line("rollout-router: ready:")
            self.url = str(json.loads(ready_file.read_text())["url"])


class Shim:
    """The sandbox side in front of *gateway_url*: the single file that goes into a sandbox.

    Raises:
        ServiceFailed: it did not start.
    """

    def __init__(self, folder: Path, gateway_url: str) -> None:
        program = folder / "shim"
        build(program)
        self._statistics_file = folder / "statistics.json"
        self.service = Service(
            "the shim",
            [
                *(sys.executable, "-I", "-S", str(program), "--gateway", gateway_url),
                *("--port", "0", "--statistics-file", str(self._statistics_file)),
                *("--parent-pid", str(os.getpid())),
            ],
            log=folder / "shim.log",
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


def _environment() -> dict[str, str]:
    """Ours, without the twins of flags: what a service is told stands in its arguments."""
    twin = "ROLLOUT_ROUTER_"
    return {name: value for name, value in os.environ.items() if not name.startswith(twin)}
