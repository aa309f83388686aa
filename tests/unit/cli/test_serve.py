# SPDX-License-Identifier: Apache-2.0
"""What ``serve`` refuses before anything runs, and what it says to do."""

import errno
import gc
import os
import re
import socket
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from rollout_router.claims import FileClaimStore, Gate, hold_gate, write_gate
from rollout_router.cli import serving
from rollout_router.cli.main import main
from rollout_router.serve.supervisor import PortTaken

serve_module = import_module("rollout_router.cli.serve")
SECONDS = [
    param.opts[0] for param in serve_module.serve.params if param.opts[0].endswith("-seconds")
]


@pytest.fixture(autouse=True)
def unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test starts a service, or what its workers are forked from; all is refused at the end."""
    monkeypatch.setattr(serve_module, "start_preloading", lambda **_: None)
    fail_to_bind(monkeypatch, errno.EADDRNOTAVAIL)


def fail_to_bind(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def bind(host: str, port: int) -> NoReturn:
        raise PortTaken(number, f"cannot listen on {host}:{port}: why")

    monkeypatch.setattr(serving, "bind_public", bind)


def run(folder: Path, *arguments: str) -> Result:
    places = ("--state-dir", str(folder / "state"), "--run-dir", str(folder / "run"))
    return CliRunner().invoke(main, ["serve", *places, *arguments])


def test_every_length_of_time_is_looked_at() -> None:
    assert len(SECONDS) == 6


@pytest.mark.parametrize("name", SECONDS)
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_seconds_that_are_no_length_of_time_are_wrong_usage(
    folder: Path, name: str, value: str
) -> None:
    done = run(folder, name, value)

    assert done.exit_code == 2
    assert name in done.stderr
    assert not (folder / "state").exists()


@pytest.mark.parametrize(
    ("number", "advised"),
    [
        (errno.EADDRINUSE, True),
        (errno.EACCES, True),
        (errno.EADDRNOTAVAIL, False),
        (errno.EMFILE, False),
        (socket.EAI_NONAME, False),
    ],
)
def test_another_port_is_advised_where_it_would_help(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, advised: bool
) -> None:
    fail_to_bind(monkeypatch, number)
    done = run(folder)

    assert done.exit_code == 1
    assert "rollout-router: cannot listen on 127.0.0.1:8000: why" in done.stderr
    assert ("name another with --port" in done.stderr) is advised


@pytest.mark.parametrize(
    ("budget_s", "end"), [(None, "until it is opened"), (3600.0, r"for \d+ s more")]
)
def test_r6_a_start_behind_a_closed_gate_says_until_when(
    folder: Path, capfd: pytest.CaptureFixture[str], budget_s: float | None, end: str
) -> None:
    store = FileClaimStore.open(folder / "state", service="model")
    if budget_s is None:
        write_gate(store.state_dir, Gate(open=False, by="ada", why="upkeep"))
    else:
        hold_gate(store.state_dir, by="ada", why="upkeep", budget_s=budget_s)

    run(folder, "--log-format", "human")

    said = capfd.readouterr().err  # of the descriptor: the log is written in a thread
    assert re.search(rf"admission is closed by ada: upkeep; calls get 503 {end}\n", said)


@pytest.mark.parametrize("name", ["--session-cookie", "--session-header"])
def test_r7_sessions_are_wrong_usage_where_nothing_is_routed(folder: Path, name: str) -> None:
    done = run(folder, name, "sid", "--no-history-delta")

    assert done.exit_code == 2
    assert f"{name} has no effect" in done.stderr
    assert "--route-always" in done.stderr
    assert not (folder / "state").exists()
    assert run(folder, name, "sid", "--no-history-delta", "--route-always").exit_code == 1


def test_two_ways_to_name_sessions_are_wrong_usage_by_their_flags(folder: Path) -> None:
    done = run(folder, "--session-cookie", "sid", "--session-header", "sid")

    assert done.exit_code == 2
    assert "--session-cookie and --session-header exclude each other" in done.stderr


GUESSES = [
    ([], {}, "", (None, None, None)),
    (["--app", "a:b", "--upstream=http://x"], {}, "", ("a:b", "http://x", None)),
    (["--app=a:b", "--app", "c:d"], {}, "", ("c:d", None, None)),
    (["--app"], {}, "", (None, None, None)),
    ([], {"ROLLOUT_ROUTER_CAPTURE_DIR": "/c", "ROLLOUT_ROUTER_APP": ""}, "", (None, None, "/c")),
    ([], {}, 'upstream = "http://x"\ncapture_dir = "c"', (None, "http://x", "c")),
    (["--app", "a:b"], {}, 'app = "c:d"', ("a:b", None, None)),
    ([], {}, "no toml", (None, None, None)),
    ([], {}, None, (None, None, None)),
]


@pytest.mark.parametrize(("arguments", "variables", "text", "guessed"), GUESSES)
def test_what_workers_will_import_is_guessed_from_all_that_is_said(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    arguments: list[str],
    variables: dict[str, str],
    text: str | None,
    guessed: tuple[str | None, ...],
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(serve_module, "start_preloading", lambda **names: seen.append(names))
    file = folder / "c.toml"
    if text is not None:
        file.write_text(text)
    command = ["serve", "--port", "none", "--config", str(file), *arguments]

    assert CliRunner().invoke(main, command, env=variables).exit_code == 2
    names = ("app", "upstream", "capture_dir", "admin")
    assert seen == [dict(zip(names, (*guessed, None), strict=True))]


@pytest.mark.parametrize(
    ("arguments", "text"), [(["--admin-port", "0"], ""), ([], "admin_port = 0")]
)
def test_where_an_admin_address_is_asked_for_all_that_is_started_counts_together(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
) -> None:
    done: list[str] = []
    monkeypatch.setattr(serve_module, "count_together", lambda: done.append("counts"))
    monkeypatch.setattr(serve_module, "start_preloading", lambda **_: done.append("forks"))
    (file := folder / "c.toml").write_text(text)

    CliRunner().invoke(main, ["serve", "--port", "none", "--config", str(file), *arguments])
    assert done == ["counts", "forks"]


def test_help_and_completion_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module, "start_preloading", None)
    assert CliRunner().invoke(main, ["serve", "--help"]).exit_code == 0
    completing = {"_COMPLETE": "bash_complete", "COMP_WORDS": "x serve --adm", "COMP_CWORD": "2"}
    done = CliRunner().invoke(main, [], env=completing, prog_name="", complete_var="_COMPLETE")
    assert done.stdout.split() == ["plain,--admin-host", "plain,--admin-port"]


def test_a_pipe_is_no_file_and_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "c.toml")
    done = run(folder, "--config", str(folder / "c.toml"))
    assert (done.exit_code, "is no plain file" in done.stderr) == (2, True)


def test_nothing_is_done_before_all_settings_are_valid(folder: Path) -> None:
    (file := folder / "c.toml").write_text('state_dri = "x"')
    collected = gc.isenabled()
    done = run(folder, "--config", str(file))

    assert done.exit_code == 2
    assert f"{file}: state_dri: no such setting; did you mean state_dir?" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["c.toml"]
    assert gc.isenabled() == collected
