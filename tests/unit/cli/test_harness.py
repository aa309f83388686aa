# SPDX-License-Identifier: Apache-2.0
"""``rollout-router harness``: what it prints, writes and refuses."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rollout_router.cli.main import main
from rollout_router.transport.bundle import build

BASE_URL = "http://127.0.0.1:8377/ng-rollout/r1/v1"


def run(*arguments: object, name: str = "codex", rollout: str = "r1") -> Result:
    asked = ["harness", name, "--rollout", rollout, "--gateway", "http://g:8", *arguments]
    return CliRunner().invoke(main, [str(one) for one in asked], catch_exceptions=False)


def document(*arguments: object, name: str = "codex") -> dict[str, Any]:
    done = run("--json", *arguments, name=name)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_document_has_all_that_it_takes(tmp_path: Path) -> None:
    found = document("--home", tmp_path, "--cache", "/cache", "--prompt", "go", "--api-key", "k")
    (path, text), *others = found.pop("files").items()
    assert (path, others) == (".codex/config.toml", [])
    assert BASE_URL in text
    environment = found.pop("environment")
    assert environment["HOME"] == str(tmp_path)
    assert "k" in environment.values()
    command = found.pop("command")
    assert command[0].startswith("/cache/codex-")
    assert command[-1] == "go"
    assert found == {
        "schema": 1,
        "harness": "codex",
        "dialect": "responses",
        "rollout_id": "r1",
        "base_url": BASE_URL,
        "shim": ["python3", "-I", "-S", "shim", "--gateway", "http://g:8", "--port", "8377"],
    }
    assert list(tmp_path.iterdir()) == []


def test_the_dialect_may_be_chosen() -> None:
    assert document(name="pi")["dialect"] == "chat"
    assert document("--dialect", "messages", name="pi")["dialect"] == "messages"


def test_a_shim_that_runs_already_is_not_started() -> None:
    found = document("--shim-url", "http://127.0.0.1:9")
    assert (found["base_url"], found["shim"]) == ("http://127.0.0.1:9/ng-rollout/r1/v1", [])
    assert document("--shim-port", 9)["shim"][-1] == "9"


def script(*arguments: object, name: str) -> str:
    done = run(*arguments, name=name)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", ["codex", "opencode", "pi", "hermes"])
def test_the_script_writes_the_files_and_sets_the_environment(tmp_path: Path, name: str) -> None:
    asked = ("--home", tmp_path / "it's", "--prompt", "it's", "--shim-url", "http://127.0.0.1:8377")
    found = document(*asked, name=name)
    before, _, command = script(*asked, name=name).partition(f"# {name}, calling ")
    assert shlex.split(command.partition("\n")[2]) == [*found["command"], "</dev/null", ")"]
    done = shell(f"{before}env -0)", tmp_path)
    environment = dict(line.split("=", 1) for line in done.stdout.split("\0")[:-1])
    assert found["environment"].items() <= environment.items()
    for path, text in found["files"].items():
        assert (tmp_path / "it's" / path).read_text() == text
        assert (tmp_path / "it's" / path).stat().st_mode & 0o777 == 0o600
    assert shell(f"{before}:)", tmp_path).returncode == 0  # the same again

    file = tmp_path / "it's" / next(iter(found["files"]))
    file.write_text("mine")
    refused = shell(f"{before}env)", tmp_path)
    assert (refused.returncode, refused.stdout, file.read_text()) == (1, "", "mine")
    assert refused.stderr == f"{file} has other content\n"


def test_the_script_starts_the_shim_first_and_ends_it_last(tmp_path: Path) -> None:
    build(tmp_path / "shim")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = script("--home", tmp_path / "home", "--shim-port", port, name="codex")
        before = text.partition("# codex, calling ")[0]
        calling = f'h = c.HTTPConnection("127.0.0.1", {port}); h.request("GET", "/")'
        asking = f"import http.client as c; {calling}; print(h.getresponse().status)"
        call = shlex.join([sys.executable, "-c", asking])
        refused = shell(f"{before}{call})", tmp_path)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "Address already in use" in refused.stderr
    for _ in range(2):  # the port is free again when the script has ended
        done = shell(f"{before}{call})", tmp_path)
        assert (done.returncode, done.stdout) == (0, "502\n"), done.stderr  # no gateway is there
    assert {one.name for one in tmp_path.iterdir()} == {"shim", "home"}


def shell(script: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["sh"],
        input=script,
        env={"PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_a_terminal_acts_on_is_not_printed(tmp_path: Path) -> None:
    asked = ("--home", tmp_path, "--prompt", "x\x1b]0;owned\x07")
    done = run(*asked)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "use --json" in done.stderr
    assert document(*asked)["command"][-1] == "x\x1b]0;owned\x07"


def test_files_are_written_when_asked_and_never_over_others_unasked(tmp_path: Path) -> None:
    file = tmp_path / ".codex" / "config.toml"
    asked = ("--home", tmp_path, "--write")
    first = run(*asked)
    assert (first.exit_code, first.stderr) == (0, f"rollout-router: wrote {file}\n")
    assert BASE_URL in file.read_text()
    assert run(*asked).exit_code == 0  # the same again

    file.write_text("mine")
    refused = run(*asked)
    assert (refused.exit_code, refused.stdout, file.read_text()) == (4, "", "mine")
    assert f"{file} has other content" in refused.stderr
    assert run(*asked, "--yes").exit_code == 0
    assert BASE_URL in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dialect", "chat"], "codex does not speak chat"),
        (["--shim-url", "nowhere"], "not a gateway URL"),
        (["--shim-url", "http://h:1", "--shim-port", "1"], "exclude each other"),
        (["--shim-port", "0"], "--shim-port"),
        (["--gateway", "http://g:8/v1"], "leave /v1 out"),
        (["--rollout", "../x"], "no rollout id"),
        (["--write"], "--write needs --home"),
    ],
)
def test_what_cannot_be_is_wrong_usage(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_key_that_cannot_be_is_not_printed() -> None:
    done = run("--api-key", "se\ncret")
    assert done.exit_code == 2
    assert "cret" not in done.output
