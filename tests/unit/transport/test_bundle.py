# SPDX-License-Identifier: Apache-2.0
"""The one file that goes into a sandbox, under every Python that this machine has."""

import http.client
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollout_router.cli.shim import shim
from rollout_router.transport.bundle import build
from rollout_router.transport.sandbox import wire
from rollout_router.transport.sandbox.frame import parse_frame, rebuild

VERSIONS = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]
ONE = b'{"messages":["' + b"the first turn " * 40 + b'"]}'
TWO = ONE[:-2] + b',"and the second"]}'


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
    """Keeps the last body and rebuilds the next one."""

    protocol_version = "HTTP/1.1"
    bodies: list[bytes]
    framed: list[bool]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        framed = self.headers["Content-Type"] == wire.CONTENT_TYPE
        if framed:
            body = rebuild(parse_frame(body, length_max=1 << 20), self.bodies[-1])
        self.bodies.append(body)
        self.framed.append(framed)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.send_header(wire.HISTORY_HEADER, wire.KEPT + wire.sha256_hex(body))
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it overrides
        del format, args


@pytest.fixture
def owner() -> Iterator[http.server.ThreadingHTTPServer]:
    Owner.bodies, Owner.framed = [], []
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


def test_s1_a_delta_goes_out_and_the_harness_notices_nothing(
    python: str, program: Path, owner: http.server.ThreadingHTTPServer
) -> None:
    url = f"http://127.0.0.1:{owner.server_address[1]}"
    process = subprocess.Popen(
        [python, "-I", "-S", str(program), "--gateway", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for body in (ONE, TWO):
            connection.request("POST", "/ng-rollout/r1/x", body, {"Content-Type": "a/b"})
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"ok")
            assert response.getheader(wire.HISTORY_HEADER) is None
        connection.close()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)

    assert (process.returncode, errors) == (0, b"")
    assert (Owner.bodies, Owner.framed) == ([ONE, TWO], [False, True])


def test_it_holds_the_sandbox_side_and_nothing_else(program: Path) -> None:
    with zipfile.ZipFile(program) as archive:
        names = archive.namelist()
        outside = [
            name for name in names if not name.startswith("rollout_router/transport/sandbox")
        ]

        assert outside == [
            "__main__.py",
            "rollout_router/__init__.py",
            "rollout_router/transport/__init__.py",
        ]
        assert archive.read("rollout_router/__init__.py") == b""
        assert archive.read("rollout_router/transport/__init__.py") == b""
    assert "rollout_router/transport/sandbox/shim.py" in names


def test_it_imports_only_the_standard_library(program: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(program)!r}); before = set(sys.modules)\n"
        "import rollout_router.transport.sandbox.shim\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True, text=True
    )

    assert set(done.stdout.split()) - sys.stdlib_module_names == {"rollout_router"}


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
