# SPDX-License-Identifier: Apache-2.0
"""The product as the demonstration runs it: what is killed, who holds what, what was sent.

Every process has a group of its own, so that a terminal's Ctrl-C reaches the caller alone, which
then ends it by its id.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from rollout_router import processes
from rollout_router.demo.attempt import Holder
from rollout_router.processes import READY_S, ServiceFailed, command, environment, kill_and_wait

__all__ = ["Gateway", "Shim", "Tally"]

_DRAIN_S: Final = 5
_LOOK_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What a shim counted of one rollout; bytes are of request bodies, repeated calls included."""

    calls: int
    bytes_sent: int
    bytes_full: int  # what the SDK wrote: the same requests sent in full
    resyncs: int


class Gateway(processes.Gateway):
    """A gateway with the scripted model, whose workers can be killed.

    Args:
        folder: of its own; gets ``state``, ``capture`` and ``gateway.log``.
        run_dir: a short, private directory for the workers' sockets.

    Raises:
        ServiceFailed: nothing is left running.
    """

    def __init__(self, folder: Path, run_dir: Path) -> None:
        self.capture_dir = folder / "capture"
        flags = ("--capture-dir", str(self.capture_dir), "--drain-seconds", str(_DRAIN_S))
        super().__init__(folder, *flags, run_dir=run_dir, apart=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, failed: BaseException | None, *rest: object) -> None:
        """Stop it; where something failed before, that is what is told."""
        try:
            self.service.stop()
        except ServiceFailed as also:
            if failed is None:
                raise
            failed.add_note(str(also))
        finally:
            if self.service.process.returncode == -signal.SIGKILL:  # so nobody ends its workers
                for pid in self._workers().values():
                    _end(pid)

    def holders(self) -> dict[str, Holder]:
        """Who holds each rollout and lives, as ``claims list`` says.

        Raises:
            ServiceFailed: the command failed.
        """
        done = subprocess.run(  # noqa: S603 - our own command
            command("claims", "list", "--json", "--state-dir", str(self.state_dir)),
            capture_output=True,
            check=False,
            env=environment(),
        )
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip()
            raise ServiceFailed(f"claims list ended with {done.returncode}: {words}")
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
            LookupError: no such worker runs. ServiceFailed: no replacement came.
        """
        pid = self._pid(worker_id)
        _end(pid)
        self._wait_without(worker_id)
        return pid

    def _pid(self, worker_id: str) -> int:
        workers = self._workers()
        if worker_id not in workers:
            raise LookupError(f"no worker {worker_id} runs")
        return workers[worker_id]

    def _wait_without(self, worker_id: str) -> None:
        """The supervisor logs no line for it, so its ready file is looked at again and again."""
        deadline = time.monotonic() + READY_S
        pause = threading.Event()  # never set: a wait with a bound
        while self.service.process.poll() is None and time.monotonic() < deadline:
            if worker_id not in self._workers():
                return
            pause.wait(_LOOK_AGAIN_S)
        raise self.service.failed(f"did not replace worker {worker_id}")

    def _workers(self) -> dict[str, int]:
        """The process of each worker, as of the last time that all of them answered.

        Raises:
            ServiceFailed: the gateway has ended by itself, and its ready file with it.
        """
        try:
            document = json.loads(self.ready_file.read_bytes())  # whole: it is put in by rename
        except FileNotFoundError:
            raise self.service.failed("ended while it was needed") from None
        return {worker["id"]: int(worker["pid"]) for worker in document["workers"]}


class Shim(processes.Shim):
    """The sandbox side, ready when constructed. A sandbox has one, and one rollout.

    Raises:
        ServiceFailed: nothing is left running.
    """

    def __init__(self, folder: Path, rollout_id: str, gateway_url: str) -> None:
        super().__init__(folder, gateway_url, name=rollout_id, apart=True)
        self._rollout_id = rollout_id

    def count(self) -> Tally:
        """Stop it, and give what it counted; zeros where it has seen no call.

        Raises:
            ServiceFailed: it did not end as it should.
        """
        self.service.stop()
        found = self.statistics(self._rollout_id)
        names = ("calls", "bytes_sent", "bytes_full", "resyncs")
        return Tally(**{name: int(found.get(name, 0)) for name in names})


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        kill_and_wait(pid)
