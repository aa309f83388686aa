# SPDX-License-Identifier: Apache-2.0
"""How soon a command and a worker are there, each beside the least that could do the same.

``bare_pass``                the reference of commands: ``python -c pass``, and its end.
``claims_list``              ``rollout-router claims list`` as an installation starts it, on a store
                             without claims, and its end.
``uvicorn_fastapi_answers``  the reference of workers: ``python -m uvicorn`` with a FastAPI
                             application of one route, uvloop and httptools, from the start of its
                             process until a request is answered.
``serve_answers``            the same of ``rollout-router serve --workers 1``, scripted model, on
                             a store that is there: supervisor, fork server and worker.
``worker_again``             from the SIGKILL of that one worker until a request that was sent after
                             its end is answered, by its replacement.

The warm-up leaves compiled modules, as an installation does, also where this process was told to
leave none. A server that does not listen yet is asked again every 2 ms.
"""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.measure import Stage
from rollout_router.claims import FileClaimStore
from rollout_router.processes import environment, kill_and_wait

__all__ = ["Served", "served_stages"]

_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.002
_SHOWN: Final = 2000  # characters of a log
_SCRIPT: Final = """
import sys
from rollout_router.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
_BARE: Final = """
from fastapi import FastAPI
app = FastAPI()
@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}
"""


def served_stages(served: "Served") -> list[Stage]:
    """The stages of this module; the caller closes *served* after each measurement."""
    worker = "uvicorn_fastapi_answers"

    return [
        Stage(name="bare_pass", reference=None, prepare=lambda: served.bare_pass),
        Stage(name="claims_list", reference="bare_pass", prepare=lambda: served.claims_list),
        Stage(name=worker, reference=None, prepare=lambda: served.uvicorn),
        Stage(name="serve_answers", reference=worker, prepare=lambda: served.serve),
        Stage(name="worker_again", reference=worker, prepare=served.with_worker),
    ]


class Served:
    """Starts commands and servers, one at a time.

    Args:
        folder: exists, is empty, and has a short path: sockets lie below it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._pause = threading.Event()  # never set: a wait with a bound
        self._ready_file = folder / "ready.json"
        script, self._store = folder / "rollout-router", ("--state-dir", str(folder / "state"))
        script.write_text(_SCRIPT)
        (folder / "bare.py").write_text(_BARE)
        self._command = (sys.executable, str(script))
        FileClaimStore.open(folder / "state", service="model")
        self._environment = environment()
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def bare_pass(self) -> None:
        """An interpreter that does nothing."""
        self._run(sys.executable, "-c", "pass")

    def claims_list(self) -> None:
        """The command, to its end."""
        if self._run(*self._command, "claims", "list", *self._store) != b"0 claims\n":
            raise BenchFailed("`claims list` of a store without claims said something else")

    def uvicorn(self) -> None:
        """The bare server, until it answers."""
        self._port = _free_port()
        self._start(
            *(sys.executable, "-m", "uvicorn", "bare:app", "--app-dir", str(self._folder)),
            *("--loop", "uvloop", "--http", "httptools", "--port", str(self._port)),
        )
        self._answered()

    def serve(self) -> None:
        """The service, until it answers."""
        self._port = _free_port()
        self._start(
            *(*self._command, "serve", *self._store, "--run-dir", str(self._folder / "run")),
            *("--workers", "1", "--port", str(self._port), "--ready-file", str(self._ready_file)),
            *("--keep-alive-grace-seconds", "0"),
        )
        self._answered()

    def with_worker(self) -> Callable[[], None]:
        """Serve; gives what ends its worker and waits until the next one answers."""
        self.serve()
        ends_at = time.monotonic() + _PATIENCE_S
        while not self._ready_file.exists():  # it is written after the first answers
            self._wait(ends_at)
        (worker,) = json.loads(self._ready_file.read_text())["workers"]

        def again() -> None:
            kill_and_wait(worker["pid"])
            self._answered()

        return again

    def close(self) -> None:
        """End the server that runs."""
        if self._running is not None:
            with self._running as process:
                process.terminate()
            self._running = None

    def _run(self, *arguments: str) -> bytes:
        done = subprocess.run(  # noqa: S603 - this product
            arguments, check=False, capture_output=True, env=self._environment
        )
        if done.returncode:
            raise BenchFailed(f"{arguments} ended with code {done.returncode}: {done.stderr!r}")
        return done.stdout

    def _start(self, *arguments: str) -> None:
        log = (self._folder / "log").open("wb")
        with log:
            self._running = subprocess.Popen(  # noqa: S603 - this product
                arguments, stdout=log, stderr=log, env=self._environment
            )

    def _answered(self) -> None:
        """Ask until the server answers; a call that it takes is waited for."""
        ends_at = time.monotonic() + _PATIENCE_S
        while not self._asked():
            self._wait(ends_at)

    def _asked(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        with closing(connection):
            try:
                connection.connect()
            except ConnectionRefusedError:
                return False
            try:
                connection.request("GET", "/healthz")
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as error:
                raise self._failed(f"gave no answer: {error!r}") from error
        if status != http.HTTPStatus.OK:
            raise self._failed(f"answered {status}")
        return True

    def _wait(self, ends_at: float) -> None:
        if self._running is None or self._running.poll() is not None:
            raise self._failed("ended before it answered")
        if time.monotonic() > ends_at:
            raise self._failed(f"did not answer within {_PATIENCE_S:g} s")
        self._pause.wait(_POLL_S)

    def _failed(self, what: str) -> BenchFailed:
        log = (self._folder / "log").read_text(errors="replace")
        return BenchFailed(f"a server {what}; it said:\n{log[-_SHOWN:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
