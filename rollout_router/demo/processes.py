# SPDX-License-Identifier: Apache-2.0
"""The product as the demonstration runs it: real processes, commands and signals.

Every process is started in a group of its own, so that a terminal's Ctrl-C reaches the caller
alone, which then ends it by its id. A shim ends by itself, too, when its caller is gone.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rollout_router.demo.attempt import Holder

__all__ = ["Gateway", "Shim", "Tally", "Unstarted"]

START_S: Final = 60.0  # a machine under load; it takes about one
STOP_S: Final = 20.0
_DRAIN_S: Final = 5
_LOOK_AGAIN_S: Final = 0.02
_LOG_LINES: Final = 5
_COMMAND: Final = (
    sys.executable,
    "-P",  # nothing in the current directory stands in for a module
    "-c",
    "from rollout_router.cli.main import main; main(prog_name='rollout-router')",
)


class Unstarted(Exception):  # noqa: N818 - named by what happened
    """A process did not start, ended early, or gave no answer; the message shows its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a shim counted of one rollout; bytes are of request bodies, repeated calls included."""

    calls: int
    bytes_sent: int
    bytes_full: int  # what the SDK wrote: the same requests sent in full
    resyncs: int


class _Process:
    """A command of the product, its standard error in *log*."""

    def __init__(self, arguments: Sequence[str], ready_file: Path, log: Path) -> None:
        self._ready_file = ready_file
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [*_COMMAND, *arguments],
                stdin=subprocess.PIPE,  # never written to: its end tells that we are gone
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=_environment(),
                process_group=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and wait for the end; SIGKILL where it does not come. Again is harmless."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _wait_ready(self, *, without: str | None = None) -> Mapping[str, Any]:
        """The ready file, once it is there and does not name the worker *without*."""
        deadline = time.monotonic() + START_S
        pause = threading.Event()  # never set: a wait with a bound
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._ready_file.exists():
                document: Mapping[str, Any] = json.loads(self._ready_file.read_bytes())
                if without not in {worker["id"] for worker in document.get("workers", ())}:
                    return document
            pause.wait(_LOOK_AGAIN_S)
        last = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        raise Unstarted("\n".join([f"{self._log.stem} did not get ready; it said:", *last]))


class Gateway(_Process):
    """``rollout-router serve`` with two workers and the scripted model, ready when constructed.

    Args:
        folder: of its own; gets ``state``, ``capture`` and ``gateway.log``.
        run_dir: a short, private directory for the workers' sockets.

    Raises:
        Unstarted: nothing is left running.
    """

    def __init__(self, folder: Path, run_dir: Path) -> None:
        self.capture_dir = folder / "capture"
        self._state_dir = folder / "state"
        ready_file = folder / "gateway.json"
        arguments = [
            *("serve", "--workers", "2", "--port", "0", "--ready-file", str(ready_file)),
            *("--state-dir", str(self._state_dir), "--run-dir", str(run_dir)),
            *("--capture-dir", str(self.capture_dir), "--drain-seconds", str(_DRAIN_S)),
        ]
        super().__init__(arguments, ready_file, folder / "gateway.log")
        try:
            self._ready = self._wait_ready()
        except BaseException:
            self.stop()
            raise
        self.url = str(self._ready["url"])

    def holders(self) -> dict[str, Holder]:
        """Who holds each rollout and lives, as ``claims list`` says.

        Raises:
            Unstarted: the command failed.
        """
        command = [*_COMMAND, "claims", "list", "--json", "--state-dir", str(self._state_dir)]
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, check=False, env=_environment()
        )
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise Unstarted(f"claims list ended with {done.returncode}: {words}")
        return {
            claim["rollout_id"]: Holder(
                worker_id=claim["worker_id"], claim_epoch=claim["claim_epoch"]
            )
            for claim in json.loads(done.stdout)["claims"]
            if claim["verdict"] == "alive"
        }

    def freeze(self, worker_id: str) -> None:
        """SIGSTOP a worker: it takes and answers nothing, and is not dead. To be killed next."""
        os.kill(self._pid(worker_id), signal.SIGSTOP)

    def kill(self, worker_id: str) -> int:
        """SIGKILL a worker, wait for its death and for its replacement; its process id.

        Raises:
            LookupError: no such worker runs. Unstarted: no replacement came.
        """
        pid = self._pid(worker_id)
        _kill_and_wait(pid)
        self._ready = self._wait_ready(without=worker_id)
        return pid

    def _pid(self, worker_id: str) -> int:
        for worker in self._ready["workers"]:
            if worker["id"] == worker_id:
                return int(worker["pid"])
        raise LookupError(f"no worker {worker_id} runs")

    def stop(self) -> None:
        """Also ends the workers where the supervisor had to be killed."""
        super().stop()
        if self._process.returncode == -signal.SIGKILL:
            for worker in self._ready["workers"]:
                _kill_and_wait(int(worker["pid"]))


class Shim(_Process):
    """``rollout-router shim``, ready when constructed. A sandbox has one, and one rollout.

    Raises:
        Unstarted: nothing is left running.
    """

    def __init__(self, folder: Path, name: str, gateway_url: str) -> None:
        self._statistics_file = folder / f"{name}.statistics.json"
        ready_file = folder / f"{name}.ready.json"
        arguments = [
            *("shim", "--gateway", gateway_url, "--port", "0", "--watch-stdin"),
            *("--ready-file", str(ready_file), "--statistics-file", str(self._statistics_file)),
        ]
        super().__init__(arguments, ready_file, folder / f"{name}.log")
        try:
            self.url = str(self._wait_ready()["url"])
        except BaseException:
            self.stop()
            raise

    def count(self, rollout_id: str) -> Tally:
        """Stop it, and give what it counted; zeros where it has seen no call."""
        self.stop()
        if not self._statistics_file.exists():
            raise Unstarted(f"{self._log.stem}: its shim left no statistics; see {self._log}")
        found = json.loads(self._statistics_file.read_bytes())["rollouts"].get(rollout_id, {})
        names = ("calls", "bytes_sent", "bytes_full", "resyncs")
        return Tally(**{name: int(found.get(name, 0)) for name in names})


def _environment() -> dict[str, str]:
    """Ours without the twins of flags: the demonstration says what it wants."""
    return {k: v for k, v in os.environ.items() if not k.startswith("ROLLOUT_ROUTER_")}


def _kill_and_wait(pid: int) -> None:
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        if not select.select([watch], [], [], STOP_S)[0]:
            raise Unstarted(f"process {pid} did not end after SIGKILL")
    finally:
        os.close(watch)
