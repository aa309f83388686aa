# SPDX-License-Identifier: Apache-2.0
"""Stores in memory, so that a sync costs nothing, and real worker processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import FileClaimStore, LifeLock, Owner, new_nonce

PROGRAM = Path(__file__).with_name("worker_process.py")
NOBODY = 65534


class WorkerProcess:
    """One real process; see ``worker_process.py`` for its commands."""

    def __init__(
        self, state_dir: Path, run_dir: Path, *arguments: str, prefix: Sequence[str] = ()
    ) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PROGRAM), str(state_dir), str(run_dir), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children: list[int] = []
        self.owner = Owner(nonce="unstarted", inode=1)
        self.socket = ""

    def tell(self, do: str, **arguments: Any) -> None:
        """Send a command; its answer is read by :meth:`hear`."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        """The answer, whole: ``{"ok": ...}`` or ``{"error": ..., "errno": ...}``."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, do: str, **arguments: Any) -> Any:
        """The result of a command that must succeed."""
        self.tell(do, **arguments)
        reply = self.hear()
        assert "ok" in reply, reply
        return reply["ok"]

    def start(self, **arguments: Any) -> "WorkerProcess":
        started = self.ask("start", **arguments)
        self.owner = Owner(nonce=started["nonce"], inode=started["inode"])
        self.socket = started["socket"]
        return self

    def fork(self) -> None:
        self.children.append(self.ask("fork"))

    def give_birth(self, how: str) -> int:
        """A child that outlives the worker, made by one of the ways of ``Worker.child``."""
        self.children.append(self.ask("child", how=how))
        return self.children[-1]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def close(self) -> None:
        self.kill()
        for child in self.children:
            os.kill(child, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@pytest.fixture
def directory(folder: Path) -> Path:
    """A private directory in memory where there is one, with a short path."""
    return folder


@pytest.fixture
def state_dir(directory: Path) -> Path:
    return directory / "state"


@pytest.fixture
def run_dir(directory: Path) -> Path:
    made = directory / "run"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def unprivileged(directory: Path, run_dir: Path) -> Iterator[None]:
    """The test runs as another user than root, who is refused nothing; the directory is its own."""
    if os.geteuid() != 0:
        yield
        return
    for path in (directory, run_dir):
        os.chown(path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


@pytest.fixture
def tree() -> Callable[[Path], dict[str, Any]]:
    """Every name below a directory and what is there; change times too, so no touch is missed."""

    def look(directory: Path) -> dict[str, Any]:
        return {
            str(path): (status.st_mode, status.st_ino, status.st_size, status.st_ctime_ns)
            for path in directory.rglob("*")
            for status in [path.lstat()]
        }

    return look


@pytest.fixture
def store(state_dir: Path) -> FileClaimStore:
    return FileClaimStore.open(state_dir, service="model")


@pytest.fixture
def live(store: FileClaimStore, run_dir: Path) -> Iterator[Callable[[], LifeLock]]:
    """Makes workers in this process: a life lock each, and no socket behind its path."""
    with contextlib.ExitStack() as stack:

        def make() -> LifeLock:
            nonce = new_nonce()
            lock = LifeLock.acquire(store, nonce=nonce, socket=f"{run_dir}/{nonce}.sock")
            stack.callback(lock.close)
            return lock

        yield make


@pytest.fixture
def spawn(state_dir: Path, run_dir: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Makes worker processes; whatever is left of them is killed at the end."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: str, prefix: Sequence[str] = ()) -> WorkerProcess:
            worker = WorkerProcess(state_dir, run_dir, *arguments, prefix=prefix)
            stack.callback(worker.close)
            return worker

        yield make
