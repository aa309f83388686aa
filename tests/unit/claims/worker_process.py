# SPDX-License-Identifier: Apache-2.0
"""A real worker process that a test drives: one JSON command a line in, one JSON answer a line out.

Run as a program, never imported: ``worker_process.py STATE_DIR RUN_DIR``. It has no HTTP, only what
the claims room knows of a worker: a life lock, a socket and claims.
"""

import ctypes
import json
import multiprocessing
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from rollout_router.claims import (
    ClaimsError,
    FileClaimStore,
    Grant,
    LifeLock,
    Moved,
    new_nonce,
)


class Worker:
    """What the commands act on. Each public method is a command."""

    def __init__(self, state_dir: str, run_dir: str) -> None:
        self.run_dir = run_dir
        self.store = FileClaimStore.open(Path(state_dir), service="model")
        self.life: LifeLock | None = None
        self.socket = socket.socket(socket.AF_UNIX)
        self.starving: list[int] = []

    def start(self, *, listen: bool = True, backlog: int = 16) -> Any:
        nonce = new_nonce()
        path = f"{self.run_dir}/{nonce}.sock"
        self.life = LifeLock.acquire(self.store, nonce=nonce, socket=path)
        self.socket.bind(path)
        if listen:
            self.socket.listen(backlog)
        return {"nonce": nonce, "inode": self.life.owner.inode, "socket": path, "pid": os.getpid()}

    def stop_listening(self) -> Any:
        self.socket.close()

    def leave(self) -> Any:
        assert self.life
        self.life.close()

    def take(self, *, rollout: str, kind: Any = "rollout") -> Any:
        assert self.life
        return answer(self.store.take(rollout, self.life.owner, kind=kind))

    def take_and_release(self, *, rollouts: list[str], rounds: int) -> Any:
        """Every grant that this worker was given, in order, each released at once."""
        assert self.life
        grants = []
        for turn in range(rounds):
            rollout = rollouts[turn % len(rollouts)]
            taken = self.store.take(rollout, self.life.owner)
            if isinstance(taken, Grant):
                grants.append([rollout, taken.claim.claim_epoch])
                assert self.store.stands(taken)
                assert self.store.release(taken)
        return grants

    def prepare(self, *, rollout: str) -> Any:
        """Look at the claim and find the proof; a later ``take_over`` uses what was seen here."""
        seen = self.store.read(rollout)
        assert seen
        self.seen, self.proof = seen, self.store.proof_of_death(seen.owner)
        return self.proof is not None

    def take_over(self) -> Any:
        assert self.life
        assert self.proof
        return answer(self.store.take_over(self.seen, self.life.owner, self.proof))

    def fork(self) -> Any:
        """A child that outlives its parent, with everything that it inherited."""
        begun, beginning = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(0)
            os.close(1)
            os.write(beginning, b"x")  # what happens in a child at fork has happened
            while True:
                signal.pause()
        os.read(begun, 1)
        os.close(begun)
        os.close(beginning)
        return child

    def child(self, *, how: str) -> Any:
        """A child that outlives its parent, made the way *how* names; its pid, once it runs."""
        if how.startswith("multiprocessing "):
            context: Any = multiprocessing.get_context(how.removeprefix("multiprocessing "))
            hears, says = context.Pipe(duplex=False)
            context.Process(target=linger, args=(says,)).start()
            return hears.recv()
        hears, says = (Connection(fd) for fd in os.pipe())
        if how in ("os.fork", "fork in C"):
            if (os.fork if how == "os.fork" else ctypes.PyDLL(None).fork)() == 0:
                linger(says)
        else:
            os.set_inheritable(says.fileno(), True)  # noqa: FBT003 - os's own signature
            self._execute(how, [sys.executable, "-S", "-c", LINGER, str(says.fileno())])
        return hears.recv()

    def _execute(self, how: str, command: list[str]) -> None:
        if how == "subprocess":
            subprocess.Popen(command, close_fds=False)
        elif how == "os.system":
            os.system(shlex.join(command) + " &")  # noqa: S605 - our own words
        elif how == "os.posix_spawn":
            os.posix_spawn(command[0], command, os.environ)
        else:
            assert how == "given the lock"
            assert self.life
            subprocess.Popen(command, pass_fds=[int(command[-1]), self.life._fd])

    def starve(self, *, leave: int = 0) -> Any:
        """Leave no descriptor, or *leave* of them."""
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                self.starving.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            for _ in range(leave):
                os.close(self.starving.pop())
            return len(self.starving)

    def feed(self) -> Any:
        while self.starving:
            os.close(self.starving.pop())

    def judge_claim(self, *, rollout: str) -> Any:
        seen = self.store.read(rollout)
        assert seen
        return self.store.judge(seen.owner).verdict.value

    def judge_self(self) -> Any:
        assert self.life
        judgement = self.store.judge(self.life.owner)
        return [judgement.verdict.value, judgement.connect, judgement.life]


LINGER = """
import os, signal, sys
from multiprocessing.connection import Connection
Connection(int(sys.argv[1])).send(os.getpid())
while True:
    signal.pause()
"""


def linger(says: Connection) -> NoReturn:
    """What a child does: say that it runs, and live on."""
    for fd in (0, 1):
        os.close(fd)
    says.send(os.getpid())
    while True:
        signal.pause()


def answer(taken: Grant | Moved) -> Any:
    if isinstance(taken, Grant):
        return {"epoch": taken.claim.claim_epoch}
    return {"moved": taken.current and taken.current.owner.nonce}


def main() -> None:
    if os.geteuid() == 0 and sys.argv[3:] == ["nobody"]:
        os.setuid(65534)
    worker = Worker(*sys.argv[1:3])
    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        try:
            reply = {"ok": getattr(worker, command.pop("do"))(**command)}
        except ClaimsError as error:
            reply = {"error": type(error).__name__, "errno": getattr(error, "errno", None)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
