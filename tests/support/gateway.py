# SPDX-License-Identifier: Apache-2.0
"""A running ``rollout-router serve``, driven through its command line, signals and HTTP."""

import json
import os
import queue
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from click.testing import CliRunner, Result

from rollout_router.cli.main import main
from rollout_router.transport.sandbox.wire import HISTORY_HEADER

__all__ = [
    "COMMAND",
    "PATIENCE_S",
    "TESTS",
    "Gateway",
    "Process",
    "Server",
    "Shim",
    "alone",
    "client_at",
    "client_of",
    "connections",
    "import_path",
    "invoked",
    "kept",
    "kill_and_wait",
    "open_files",
    "stopped",
    "wait_dead",
    "wait_until",
]

COMMAND = str(Path(sys.executable).with_name("rollout-router"))
PATIENCE_S = 30.0
TESTS = Path(__file__).parent.parent
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Unused, as all is ``http``; by default each client of httpx reads every authority: 37 ms."""


def invoked(*arguments: str) -> Result:
    """How a command of the product ended, without a process for it. What it cannot name raises."""
    return CliRunner().invoke(main, arguments, catch_exceptions=False)


def import_path() -> str:
    """``PYTHONPATH`` of a process that finds the tests' support, and all that this one was told."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(TESTS), *([inherited] if inherited else [])])


class Process:
    """A command, by default of the product, whose lines on stderr can be waited for."""

    program = COMMAND
    patience_s = PATIENCE_S

    def __init__(
        self,
        arguments: Sequence[str],
        environment: dict[str, str] | None = None,
        *,
        stdout: int = subprocess.DEVNULL,
        cwd: Path | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [self.program, *arguments],
            cwd=cwd,
            stderr=subprocess.PIPE,
            stdout=stdout,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": import_path(), **(environment or {})},
        )
        self.log: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait_lines(self, *texts: str) -> None:
        """Wait for a line for each of *texts*, in whatever order: processes write as they come."""
        missing = list(texts)
        while missing:
            line = self.wait_line("")
            found = next((text for text in missing if text in line), None)
            if found is not None:
                missing.remove(found)

    def wait_line(self, text: str) -> str:
        """Wait for a line on stderr that contains *text*; lines before it are passed over."""
        while True:
            line = self._lines.get(timeout=self.patience_s)
            if line is None:
                raise RuntimeError(f"ended before it said {text!r}:\n{''.join(self.log)}")
            if text in line:
                return line

    def wait_exit(self) -> int:
        """Wait for its end; its exit code, negative for a signal."""
        code = self.process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        return code

    def stop(self) -> int:
        """SIGTERM, and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait_exit()

    def _read(self) -> None:
        if self.process.stderr is None:
            raise RuntimeError("stderr is a pipe")
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line)
                self._lines.put(line)
        self._lines.put(None)


class Server(Process):
    """A running service, known by its public port and its store."""

    state_dir: Path
    prefix = "/sessions"

    @property
    def url(self) -> str:
        """Base URL of the public port."""
        raise NotImplementedError

    def client(self, **options: Any) -> httpx.Client:
        """A client of the public port. The caller closes it."""
        return client_at(self.url, **options)

    def connect(self) -> socket.socket:
        """A bare connection to the public port. The caller closes it."""
        address = urlsplit(self.url)
        return socket.create_connection((str(address.hostname), int(address.port or 0)))

    def post(
        self,
        rollout_id: str,
        body: bytes,
        *,
        keep: bool = True,
        headers: dict[str, str] | None = None,
        path: str = "/v1/responses",
    ) -> httpx.Response:
        """One full request on a connection of its own, so that any worker may take it."""
        sent = {"content-type": "application/json", **(headers or {})}
        if keep:
            sent.setdefault(HISTORY_HEADER, "keep")
        with self.client() as client:
            return client.post(f"{self.prefix}/{rollout_id}{path}", content=body, headers=sent)

    def pid_of(self, worker_id: str) -> int:
        """The process of a worker that is alive."""
        for worker in self.json("workers", "list")["workers"]:
            if worker["id"] == worker_id:
                return int(worker["pid"])
        raise LookupError(f"no worker {worker_id}")

    def kill_worker(self, worker_id: str) -> None:
        """SIGKILL a worker and wait until it is dead. Its replacement may still be starting."""
        kill_and_wait(self.pid_of(worker_id))

    def json(self, *command: str) -> dict[str, Any]:
        """The document that a listing prints with ``--json``."""
        printed = self._command(*command, "--json", "--state-dir", str(self.state_dir))
        document: dict[str, Any] = json.loads(printed)
        return document

    def claims(self) -> dict[str, dict[str, Any]]:
        """The claims by rollout."""
        return {claim["rollout_id"]: claim for claim in self.json("claims", "list")["claims"]}

    def _command(self, *arguments: str) -> str:
        """What a command of the product prints."""
        done = invoked(*arguments)
        if done.exit_code != 0:
            raise RuntimeError(f"{' '.join(arguments)} ended with {done.exit_code}: {done.output}")
        return done.stdout


class Gateway(Server):
    """The service, ready to take calls.

    Args:
        folder: an empty directory of its own; a short path, for the sockets below it.
        arguments: more flags of ``serve``.
        control: the socket of the test's control; serves ``support.app`` instead of the model.
        state: folder of an earlier gateway, to go on with its store and captures.
        environment: more variables of its processes.
        capture: whether calls are captured.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        workers: int = 2,
        control: Path | None = None,
        state: Path | None = None,
        environment: dict[str, str] | None = None,
        capture: bool = True,
    ) -> None:
        self.folder = folder
        self.state_dir = (state or folder) / "state"
        self.capture_dir = (state or folder) / "capture"
        self.ready_file = folder / "ready.json"
        app = [] if control is None else ["--app", "support.app:app"]
        super().__init__(
            [
                *("serve", "--port", "0", "--workers", str(workers)),
                *("--state-dir", str(self.state_dir), "--run-dir", str(folder / "run")),
                *(("--capture-dir", str(self.capture_dir)) if capture else ()),
                *("--ready-file", str(self.ready_file)),
                *app,
                *arguments,
            ],
            {
                **({} if control is None else {"TEST_CONTROL": str(control)}),
                **(environment or {}),
            },
        )
        self.wait_lines("ready:", *[" serves "] * workers)

    @property
    def ready(self) -> dict[str, Any]:
        """The ready file."""
        document: dict[str, Any] = json.loads(self.ready_file.read_text())
        return document

    @property
    def url(self) -> str:
        """Base URL of the public port."""
        return str(self.ready["url"])

    def kill_all(self) -> None:
        """SIGKILL the supervisor and every worker, and wait until all are dead.

        The supervisor is stopped first: it would replace its workers, and they drain without it.
        """
        self.process.send_signal(signal.SIGSTOP)
        for pid in [*(worker["pid"] for worker in self.ready["workers"]), self.process.pid]:
            kill_and_wait(pid)

    def wait_replaced(self) -> None:
        """Wait until the supervisor's replacement serves."""
        self.wait_line(" serves model at ")

    def force(self, rollout_id: str) -> None:
        """Take a rollout away from its owner, as an operator does."""
        epoch = str(self.claims()[rollout_id]["claim_epoch"])
        self._command(
            *("claims", "force", rollout_id, "--expect-epoch", epoch),
            *("--reason", "test", "--yes", "--state-dir", str(self.state_dir)),
        )

    def records(self, rollout_id: str) -> list[dict[str, Any]]:
        """The captured calls of a rollout, oldest first."""
        with (self.capture_dir / f"{rollout_id}.jsonl").open() as lines:
            return [json.loads(line) for line in lines]


class Shim(Process):
    """A running ``rollout-router shim`` in front of a gateway."""

    def __init__(self, folder: Path, gateway_url: str, *arguments: str) -> None:
        self.statistics_file = folder / "statistics.json"
        statistics = ("--statistics-file", str(self.statistics_file))
        super().__init__(
            ["shim", "--gateway", gateway_url, *statistics, *arguments], stdout=subprocess.PIPE
        )
        if self.process.stdout is None:
            raise RuntimeError("stdout is a pipe")
        with self.process.stdout as lines:
            self.url: str = json.loads(lines.readline())["url"]

    def client(self) -> httpx.Client:
        """A harness's client of the shim. The caller closes it."""
        return client_at(self.url)

    def post(self, rollout_id: str, body: bytes) -> httpx.Response:
        """One call, as a harness writes it."""
        headers = {"content-type": "application/json"}
        with self.client() as client:
            return client.post(
                f"/sessions/{rollout_id}/v1/responses", content=body, headers=headers
            )

    def stop_and_count(self) -> dict[str, Any]:
        """Stop, and give the statistics of each rollout."""
        if self.stop() != 0:
            raise RuntimeError("".join(self.log))
        rollouts: dict[str, Any] = json.loads(self.statistics_file.read_text())["rollouts"]
        return rollouts


def client_at(url: str, **options: Any) -> httpx.Client:
    """A client of an ``http`` URL. The caller closes it."""
    return httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S, verify=TLS, **options)


def kept(answer: httpx.Response) -> str | None:
    """The digest that an answer says is held, or None."""
    mark = answer.headers.get(HISTORY_HEADER, "")
    return mark.removeprefix("kept=") if mark.startswith("kept=") else None


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for *condition*, where nothing tells of it: look, with pauses, for a bounded time."""
    pause = threading.Event()  # never set
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited in vain until {what}")
        pause.wait(0.01)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP a process for as long as the block lasts; when it begins, no thread of it runs.

    It may be killed meanwhile.
    """
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _states(pid) == {"T"}, f"process {pid} is stopped")
        yield
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(watch, signal.SIGCONT)
        os.close(watch)


@contextmanager
def alone(gateway: Gateway, worker_id: str) -> Iterator[None]:
    """Stop all other workers of the ready file: what connects meanwhile leads to this one."""
    with ExitStack() as stack:
        for worker in gateway.ready["workers"]:
            if worker["id"] != worker_id:
                stack.enter_context(stopped(worker["pid"]))
        yield


@contextmanager
def client_of(gateway: Gateway, worker_id: str) -> Iterator[httpx.Client]:
    """A client whose kept connection leads to this worker of the ready file."""
    with gateway.client() as client:
        with alone(gateway, worker_id):
            client.get("/")  # names no rollout: whoever accepted the connection has answered it
        yield client


def open_files(pid: int) -> Iterator[str]:
    """What a process has open, as proc_pid_fd(5) names it: a path, or ``kind:[inode]``."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            yield str(link.readlink())


def _states(pid: int) -> set[str]:
    """The states of a process's threads. Source: proc_pid_stat(5)."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        # The name before it may hold anything, and ends with the last parenthesis.
        found.add((thread / "stat").read_text().rpartition(") ")[2][0])
    return found


def kill_and_wait(pid: int) -> None:
    """SIGKILL, and wait for the death."""
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    wait_dead(watch)


def wait_dead(watch: int) -> None:
    """Wait for the end of the process behind a pidfd, and close the pidfd."""
    try:
        if not select.select([watch], [], [], PATIENCE_S)[0]:
            raise TimeoutError("the process did not end")
    finally:
        os.close(watch)


def connections(path: str) -> int:
    """Connections to a Unix socket that still listens. Source: proc_net(5), "unix"."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return len([line for line in lines if line.endswith(f" {path}")]) - 1
