# SPDX-License-Identifier: Apache-2.0
"""The one file that goes into a sandbox, under every Python that this machine has."""

import ast
import http.client
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollout_router.cli.shim import shim
from rollout_router.transport import sandbox
from rollout_router.transport.bundle import build
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.frame import parse_frame, rebuild

VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]
TURNS = [
    b'{"messages":["' + b"the first turn " * 40 + b'","and %b"]}' % (b"more " * turn)
    for turn in range(5)
]
SANDBOX = sandbox.__name__
DEAR = {"argparse", "enum", "json", "re", "selectors", "signal", "socket", "threading", "typing"}


def interpreter(version: str) -> str | None:
    """A Python of that version: from pyenv, or from PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for folder in sorted((root / "versions").glob(f"{version}.*")):
        if (folder / "bin" / "python").exists():
            return str(folder / "bin" / "python")
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    runs = subprocess.run([found, "--version"], check=False, capture_output=True)
    return found if runs.returncode == 0 else None


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest) -> str:
    found = interpreter(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} on this machine")
    return found


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "shim"
    build(path)
    return path


class Owner(http.server.BaseHTTPRequestHandler):
    """Keeps the last body and rebuilds the next one; loses the third."""

    protocol_version = "HTTP/1.1"
    bodies: list[bytes]
    kinds: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        framed = self.headers["Content-Type"] == wire.CONTENT_TYPE
        self.kinds.append("frame" if framed else str(self.headers[wire.HISTORY_HEADER]))
        if framed:
            frame = parse_frame(body, length_max=1 << 20)
            if len(self.bodies) == 3 and frame.base != wire.EMPTY_SHA256:
                self.answer(409, wire.RESYNC)
                return
            base = b"" if frame.base == wire.EMPTY_SHA256 else self.bodies[-1]
            body = rebuild(frame, base)
        self.bodies.append(body)
        self.answer(200, wire.KEPT + wire.sha256_hex(body))

    def answer(self, status: int, mark: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.send_header(wire.HISTORY_HEADER, mark)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it overrides
        del format, args


@pytest.fixture
def owner() -> Iterator[http.server.ThreadingHTTPServer]:
    Owner.bodies, Owner.kinds = [], []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Owner)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    yield server
    server.shutdown()
    serving.join()
    server.server_close()


def test_it_says_how_it_is_used(python: str, program: Path) -> None:
    done = subprocess.run(
        [python, "-I", "-S", str(program), "--help"], check=True, capture_output=True, text=True
    )

    assert "--gateway URL" in done.stdout


def test_s1_a_conversation_goes_out_as_deltas_and_the_harness_notices_nothing(
    python: str, program: Path, owner: http.server.ThreadingHTTPServer, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{owner.server_address[1]}"
    statistics = tmp_path / "statistics.json"
    process = subprocess.Popen(
        [
            *(python, "-I", "-S", program, "--gateway", url, "--statistics-file", statistics),
            *("--parent-pid", str(os.getpid())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for body in TURNS:
            connection.request("POST", "/ng-rollout/r1/x", body, {"Content-Type": "a/b"})
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"ok")
            assert response.getheader(wire.HISTORY_HEADER) is None
        connection.close()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)

    written = f"rollout-router shim: statistics written to {statistics}\n"
    assert (process.returncode, errors) == (0, written)
    assert Owner.bodies == TURNS
    assert Owner.kinds == ["keep", "frame", "frame", "frame", "frame", "frame"]
    assert json.loads(statistics.read_text())["rollouts"]["r1"]["resyncs"] == 1


def test_what_lies_beside_it_is_not_looked_up(python: str, tmp_path: Path) -> None:
    build(tmp_path / "shim")
    for name in ("_socket", "argparse", "rollout_router"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('found')")

    done = subprocess.run(
        [python, "-S", "shim", "--help"], check=True, cwd=tmp_path, capture_output=True
    )

    assert b"--gateway URL" in done.stdout


@pytest.mark.parametrize(
    ("flags", "more"),
    [([], []), (["--watch-stdin"], ["parent"])],
    ids=["plain", "watching"],
)
def test_little_is_loaded_when_it_says_that_it_is_ready(
    python: str, program: Path, flags: list[str], more: list[str]
) -> None:
    code = (
        "import os, sys\n"
        "def say(*_, **__): sys.stdout.write(' '.join(sys.modules)); sys.exit()\n"
        f"os.write = say; __file__ = sys.argv[0] = {str(program)!r}\n"
        "exec(compile(open(__file__).read(), __file__, 'exec'))"
    )
    reading, writing = os.pipe()  # a standard input that does not end
    try:
        done = subprocess.run(
            [python, "-I", "-S", "-c", code, "--gateway", "http://h", *flags],
            check=True,
            stdin=reading,
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(reading)
        os.close(writing)

    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("rollout_router")}
    parts = ["start", "flags", *more]
    assert ours == {"rollout_router", "rollout_router.transport", SANDBOX} | {
        f"{SANDBOX}.{part}" for part in parts
    }
    assert loaded & DEAR == set()


def test_it_holds_the_sandbox_side_and_nothing_else(program: Path) -> None:
    [held] = [
        ast.literal_eval(node.value)
        for node in ast.parse(program.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TEXTS"
    ]

    assert held.pop("rollout_router") == held.pop("rollout_router.transport") == ""
    folder = Path(sandbox.__path__[0])
    assert held.pop(SANDBOX) == (folder / "__init__.py").read_text()
    assert held == {
        f"{SANDBOX}.{path.stem}": path.read_text()
        for path in folder.glob("*.py")
        if path.stem != "__init__"
    }


def test_it_imports_only_the_standard_library(program: Path) -> None:
    code = (
        "import importlib, sys\nbefore = set(sys.modules)\n"
        f"__file__ = {str(program)!r}; sys.argv = [__file__, '--help']\n"
        "try: exec(compile(open(__file__).read(), __file__, 'exec'))\n"
        "except SystemExit: pass\n"
        f"for name in TEXTS.keys() - {{{SANDBOX + '.__main__'!r}}}: importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )

    imported = set(done.stdout.splitlines()[-1].split())
    assert imported - sys.stdlib_module_names == {"rollout_router"}


def test_the_same_sources_give_the_same_bytes(program: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.write_text("an older one")

    build(again)

    assert again.read_bytes() == program.read_bytes()
    assert again.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert again.stat().st_mode & 0o777 == 0o755
    assert list(tmp_path.iterdir()) == [again]


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()

    with pytest.raises(OSError, match="taken"):
        build(tmp_path / "taken")

    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("file", "said"), [("missing/shim", "there is no folder"), (".", "is a folder")]
)
def test_a_build_to_where_it_cannot_go_says_so(file: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / file

    result = CliRunner().invoke(shim, ["build", str(path)])

    assert result.exit_code == 1
    assert f"{path} was not written: " in result.output
    assert said in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_build_says_what_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "shim"

    result = CliRunner().invoke(shim, ["build", str(path)])

    assert (result.exit_code, path.is_file()) == (0, True)
    assert f"wrote {path}" in result.output
