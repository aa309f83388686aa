# SPDX-License-Identifier: Apache-2.0
"""The shim as a process: flags, their twins, files, signals, ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from rollout_router.transport.bundle import build
from rollout_router.transport.sandbox import parent
from rollout_router.transport.sandbox.start import main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unit.transport.sandbox.conftest import FakeGateway, Harness

WAIT_S = 30.0
BODY = b'{"messages":[' + b"1," * 500 + b"1]}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "shim"
    build(path)
    return path


Start: TypeAlias = "Callable[..., subprocess.Popen[str]]"


@pytest.fixture
def start(program: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), *arguments],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    document: dict[str, Any] = json.loads(process.stdout.readline())
    return document


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(
    start: Start, gateway: FakeGateway, number: signal.Signals
) -> None:
    process = start("--gateway", gateway.url)
    document = ready(process)
    assert document == {
        "url": f"http://127.0.0.1:{document['port']}",
        "port": document["port"],
        "pid": process.pid,
    }

    process.send_signal(number)

    assert ended(process) == (0, "")


def test_a_signal_that_comes_while_it_ends_changes_nothing(
    start: Start, gateway: FakeGateway
) -> None:
    process = start("--gateway", gateway.url)
    ready(process)

    process.terminate()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)

    assert ended(process) == (0, "")


def test_statistics_are_written_on_sigusr1_and_at_the_end(
    start: Start, gateway: FakeGateway, harness: Harness, tmp_path: Path
) -> None:
    file = tmp_path / "statistics.json"
    process = start("--gateway", gateway.url, "--statistics-file", str(file))
    port = ready(process)["port"]
    sizes = dict.fromkeys(("bytes_sent", "bytes_plain", "bytes_full"), len(BODY))
    one = {"calls": 1, **sizes, "resyncs": 0}

    type(harness)(port).post(BODY)
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    assert str(file) in process.stderr.readline()
    assert json.loads(file.read_text()) == {"rollouts": {"r1": one}}

    type(harness)(port).post(BODY)
    process.terminate()
    assert ended(process)[0] == 0
    tally = json.loads(file.read_text())["rollouts"]["r1"]
    assert (tally["calls"], tally["bytes_full"]) == (2, 2 * len(BODY))
    assert tally["bytes_sent"] < 2 * len(BODY)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_statistics_that_cannot_be_written_are_said_and_end_nothing_early(
    start: Start, gateway: FakeGateway, harness: Harness, tmp_path: Path
) -> None:
    file = tmp_path / "missing" / "statistics.json"
    process = start("--gateway", gateway.url, "--statistics-file", str(file))
    port = ready(process)["port"]

    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith(f"rollout-router shim: statistics could not be written to {file}:")
    assert type(harness)(port).post(BODY)[0] == 200
    process.terminate()

    assert ended(process) == (1, said)


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(
    start: Start, gateway: FakeGateway, tmp_path: Path
) -> None:
    process = start("--gateway", gateway.url, "--ready-file", "/")
    assert ended(process)[0] == 1

    (tmp_path / "folder").mkdir()
    process = start("--gateway", gateway.url, "--statistics-file", str(tmp_path / "folder"))
    ready(process)
    process.terminate()

    assert ended(process)[0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def refused_calls(harness: Harness, number: int) -> None:
    """Each is reported, and the next one on the same connection has to wait for that."""
    connection = harness.connect()
    for _ in range(number):
        connection.request("POST", "/v1/x", BODY)
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (502, True)
        assert not response.will_close
    connection.close()


def test_s5_a_standard_error_that_nobody_reads_holds_up_no_call_and_no_end(
    start: Start, harness: Harness
) -> None:
    process = start("--gateway", "http://127.0.0.1:1")
    assert process.stderr is not None
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4_096)
    port = ready(process)["port"]

    refused_calls(type(harness)(port), 100)  # over 10 KB of reports
    process.terminate()

    assert process.wait(WAIT_S) == 0


def test_s5_a_standard_error_that_is_closed_costs_no_call(start: Start, harness: Harness) -> None:
    process = start("--gateway", "http://127.0.0.1:1")
    port = ready(process)["port"]
    assert process.stderr is not None
    process.stderr.close()

    refused_calls(type(harness)(port), 3)
    process.terminate()

    assert process.wait(WAIT_S) == 0


def test_it_ends_with_standard_input_and_has_written_the_ready_file(
    start: Start, gateway: FakeGateway, tmp_path: Path
) -> None:
    file = tmp_path / "ready.json"
    file.write_text("of another time")
    process = start("--gateway", gateway.url, "--ready-file", str(file), "--watch-stdin")

    assert ended(process) == (0, "")  # communicate() closes its standard input

    assert json.loads(file.read_text())["pid"] == process.pid


@pytest.mark.parametrize("how", ["<&-", "0>/dev/null", "</dev/null"])
def test_it_does_not_outlive_a_standard_input_that_cannot_be_read(program: Path, how: str) -> None:
    command = f'exec "$0" -I -S "$1" --gateway http://h --watch-stdin {how}'
    shell = ["sh", "-c", command, sys.executable, str(program)]

    done = subprocess.run(shell, capture_output=True, timeout=WAIT_S, check=True)

    assert done.stderr == b""


def test_it_ends_with_a_standard_input_that_was_set_not_to_wait(program: Path) -> None:
    theirs, ours = os.pipe()
    os.set_blocking(theirs, False)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(program), "--gateway", "http://h", "--watch-stdin"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(theirs)
    ready(process)

    os.close(ours)

    assert ended(process) == (0, "")


def test_it_ends_with_the_process_that_it_serves(start: Start, gateway: FakeGateway) -> None:
    harness = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = start("--gateway", gateway.url, "--parent-pid", str(harness.pid))
    ready(process)

    harness.communicate(b"\n")

    assert ended(process) == (0, "")


def test_it_does_not_outlive_a_process_that_is_gone_already(
    start: Start, gateway: FakeGateway
) -> None:
    harness = subprocess.Popen([sys.executable, "-c", ""])
    harness.wait()

    assert ended(start("--gateway", gateway.url, "--parent-pid", str(harness.pid))) == (0, "")


def test_a_kernel_that_cannot_tell_of_strangers_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, f"no pidfd for {pid}")

    monkeypatch.setattr(parent, "_pidfd", refuse)

    with pytest.raises(OSError, match="no pidfd"):
        parent.terminate_with(1 if os.getppid() != 1 else 2)


def test_flags_have_twins_in_the_environment(
    start: Start, gateway: FakeGateway, harness: Harness, tmp_path: Path
) -> None:
    timings = tmp_path / "timings"
    process = start(
        ROLLOUT_ROUTER_SHIM_GATEWAY=gateway.url,
        ROLLOUT_ROUTER_SHIM_ROLLOUT="from-environment",
        ROLLOUT_ROUTER_SHIM_ROLLOUT_HEADER="X-Run",
        ROLLOUT_ROUTER_SHIM_NO_DELTA="1",
        ROLLOUT_ROUTER_SHIM_NO_DEFLATE="1",
        ROLLOUT_ROUTER_SHIM_TIMINGS_FILE=str(timings),
        ROLLOUT_ROUTER_SHIM_BASES_BYTES="1000",
        ROLLOUT_ROUTER_SHIM_PORT="0",
    )

    type(harness)(ready(process)["port"]).post(BODY, "/v1/x")

    assert gateway.received[0].header("X-Run") == "from-environment"
    assert not gateway.received[0].kept
    process.terminate()
    assert ended(process) == (0, "")
    assert json.loads(timings.read_text())["sent"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "--gateway is required", id="no gateway"),
        pytest.param(["--gateway", "h:80"], "not a gateway URL", id="no URL"),
        pytest.param(["--gateway", "http://h", "--port", "x"], "--port", id="no number"),
        pytest.param(["--gateway", "http://h", "--port", "99999"], "not a port", id="no port"),
        pytest.param(["--gateway", "http://h", "--port", "-1"], "not a port", id="below"),
        pytest.param(
            ["--gateway", "http://h", "--parent-pid", "99999999999"], "process", id="no pid"
        ),
        pytest.param(["--gateway", "http://h", "--parent-pid", "0"], "process", id="a group"),
        pytest.param(["--gateway", "http://h", "--bases-bytes", "-1"], "bytes", id="no size"),
        pytest.param(
            ["--gateway", "http://h", "--rollout-header", "X é"], "name of a header", id="no header"
        ),
        pytest.param(["--gateway", "http://h", "--rollout", "a b"], "not a rollout id", id="no id"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.out == ""  # it never said that it is ready


@pytest.fixture
def signals() -> Iterator[None]:
    """The program leaves them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("signals")
def test_a_port_that_is_taken_is_said(
    gateway: FakeGateway, capfd: pytest.CaptureFixture[str]
) -> None:
    port = str(gateway.server_address[1])

    assert main(["--gateway", gateway.url, "--port", port]) == 1
    assert "cannot start" in capfd.readouterr().err


def test_a_standard_output_that_is_full_is_said(program: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-I", "-S", program, "--gateway", "http://h"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=WAIT_S,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr.startswith(b"rollout-router shim: cannot start: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("name", ["accept", "reports"])
def test_a_thread_that_cannot_be_started_is_said(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begin = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("no thread is free")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)

    assert main(["--gateway", "http://h"]) == 1
    assert "cannot start: no thread is free" in capfd.readouterr().err


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollout_router.transport.sandbox", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )

    assert "--gateway URL" in done.stdout
