# SPDX-License-Identifier: Apache-2.0
"""How soon the file of a sandbox is ready, and answers, beside an interpreter that does nothing."""

import http.client
import http.server
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.processes import environment
from rollout_router.transport.bundle import build

__all__ = ["START_WARM_UPS", "run_start"]

START_WARM_UPS: Final = 1
_BARE: Final = "bare_python"
_PATIENCE_S: Final = 60.0
_OK: Final = b"ok"


def run_start(work_dir: Path, *, rounds: int, say: Callable[[str], None]) -> list[Measured]:
    """Measure the starts of a bare interpreter and of the shim, this Python with ``-I -S``.

    Args:
        work_dir: a directory for the file is made there, and removed again.
        rounds: measurements of each stage.
        say: takes one line for people.

    Raises:
        BenchFailed: a shim did not start or answer; nothing keeps running.
    """
    say(f"starting {3 * (rounds + START_WARM_UPS)} processes, one after another")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir))
        shims = _Shims(Path(folder) / "shim", gateway=stack.enter_context(_gateway()))
        stack.enter_context(closing(shims))
        stages = [
            Stage(name=_BARE, reference=None, prepare=lambda: _bare),
            Stage(name="shim_ready", reference=_BARE, prepare=lambda: shims.ready),
            Stage(name="shim_first_answer", reference=_BARE, prepare=lambda: shims.answered),
        ]
        return run_rounds(
            [_after(shims.close, stage) for stage in stages],
            rounds=rounds,
            warm_ups=START_WARM_UPS,
            clock_s=time.perf_counter,
        )


def _after(before: Callable[[], None], stage: Stage) -> Stage:
    """The stage, *before* done in front of it and not timed."""

    def prepare() -> Callable[[], object]:
        before()
        return stage.prepare()

    return Stage(name=stage.name, reference=stage.reference, prepare=prepare)


def _bare() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True, env=environment())


class _Shims:
    """Starts one at a time."""

    def __init__(self, program: Path, *, gateway: str) -> None:
        build(program)
        self._arguments = [sys.executable, "-I", "-S", str(program), "--gateway", gateway]
        self._running: subprocess.Popen[str] | None = None

    def ready(self) -> int:
        """Start one and wait for its line; gives its port."""
        self._running = subprocess.Popen(  # noqa: S603 - this product
            self._arguments, stdout=subprocess.PIPE, text=True, env=environment()
        )
        if self._running.stdout is None:
            raise BenchFailed("the shim has no standard output")
        line = self._running.stdout.readline()
        if not line:
            raise BenchFailed("the shim ended before it was ready")
        return int(json.loads(line)["port"])

    def answered(self) -> None:
        """Start one and have it answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ready(), timeout=_PATIENCE_S)
        with closing(connection):
            connection.request("POST", "/sessions/bench/v1/responses", b"{}")
            if connection.getresponse().read() != _OK:
                raise BenchFailed("the shim handed on another answer than the gateway's")

    def close(self) -> None:
        """End the one that runs."""
        if self._running is not None:
            with self._running as process:
                process.terminate()
            self._running = None


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(_OK)))
        self.end_headers()
        self.wfile.write(_OK)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it overrides
        """Say nothing: only the shims call."""


@contextmanager
def _gateway() -> Iterator[str]:
    """A server that answers at once; gives its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()
