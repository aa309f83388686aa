# SPDX-License-Identifier: Apache-2.0
"""How soon a shim, a command and a worker are there, each beside the least that could do the same.

``bare_python``         the reference of the shim: ``python -I -S -c pass``, and its end.
``shim_ready``          the file of a sandbox has said that it is ready.
``shim_first_answer``   a request that was sent then is answered.

The other stages are those of :mod:`rollout_router.bench.served`.
"""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.figures import Part, Target, at_most, stage_table
from rollout_router.bench.measure import Measured, Stage, run_rounds
from rollout_router.bench.served import Served, served_stages
from rollout_router.processes import environment
from rollout_router.tables import Table
from rollout_router.transport.bundle import build

__all__ = ["StartCosts", "run_start"]

_WARM_UPS: Final = 1
_SHARE: Final = 5
_BARE: Final = "bare_python"
_PATIENCE_S: Final = 60.0
_OK: Final = b"ok"


_AT_MOST: Final = {
    "shim_ready": 3.0,
    "claims_list": 4.0,
    "serve_answers": 4 / 3,
    "worker_again": 4 / 3,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCosts(Part):
    """All starts."""

    rounds: int  # of the shim; of the others a fifth
    stages: list[Measured]

    def tables(self) -> list[Table]:
        """A table of the stages."""
        title = f"Starts; {self.rounds} rounds, a fifth of those of commands and servers"
        return [stage_table(title, self.stages, "ms")]

    def targets(self) -> list[Target]:
        """Those of the stages that have one."""
        return [
            at_most(f"{stage.stage}, of {stage.reference}", stage.ratio, _AT_MOST[stage.stage])
            for stage in self.stages
            if stage.ratio is not None and stage.stage in _AT_MOST
        ]

    def measured(self) -> dict[str, Measured]:
        """All stages."""
        return {f"start {stage.stage}": stage for stage in self.stages}


def run_start(work_dir: Path, *, rounds: int, say: Callable[[str], None]) -> StartCosts:
    """Measure the starts.

    Args:
        work_dir: a directory for the files is made there, and removed again.
        rounds: measurements of each stage of the shim; a fifth as many of the others, which take
            seconds.
        say: takes one line for people.

    Raises:
        BenchFailed: something did not start or answer; nothing keeps running.
    """
    say(f"starting {3 * (rounds + _WARM_UPS)} processes, one after another")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir))
        shims = _Shims(Path(folder) / "shim", gateway=stack.enter_context(_gateway()))
        stack.enter_context(closing(shims))
        of_the_shim = [
            Stage(name=_BARE, reference=None, prepare=lambda: _bare),
            Stage(name="shim_ready", reference=_BARE, prepare=lambda: shims.ready),
            Stage(name="shim_first_answer", reference=_BARE, prepare=lambda: shims.answered),
        ]
        measured = _measured(of_the_shim, shims.close, rounds=rounds)
        (served_folder := Path(folder) / "served").mkdir()
        served = Served(served_folder)
        stack.enter_context(closing(served))
        few = max(1, rounds // _SHARE)
        say(f"starting commands and servers, {few} rounds")
        measured += _measured(served_stages(served), served.close, rounds=few)
        return StartCosts(rounds=rounds, stages=measured)


def _measured(stages: list[Stage], close: Callable[[], None], *, rounds: int) -> list[Measured]:
    return run_rounds(
        [_after(close, stage) for stage in stages],
        rounds=rounds,
        warm_ups=_WARM_UPS,
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
