# SPDX-License-Identifier: Apache-2.0
"""``doctor`` as a command: its document, its table, its exit codes."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollout_router import doctor
from rollout_router.cli.main import main
from rollout_router.doctor import machine
from rollout_router.doctor.checked import fail, ok, refused, skipped, warn
from rollout_router.serve.config import ServeConfig

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def examined(folder: Path, *arguments: str) -> Result:
    places = ("--state-dir", str(folder / "state"), "--run-dir", str(folder / "run"))
    return CliRunner().invoke(main, ["doctor", "--port", "0", *places, *arguments])


def test_each_check_is_in_the_document_and_nothing_is_changed(folder: Path) -> None:
    done = examined(folder, "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert [check["name"] for check in document["checks"]] == list(doctor.CHECKS)
    assert {tuple(check) for check in document["checks"]} == {("name", "status", "found", "advice")}
    assert {check["status"] for check in document["checks"]} <= {"ok", "warn", "skipped"}
    assert done.exit_code == 0
    assert list(folder.iterdir()) == []


def test_what_fails_is_exit_code_1_and_named(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state").chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = examined(folder, "--port", str(taken.getsockname()[1]), "--json")
    failed = {
        check["name"]: check["advice"]
        for check in json.loads(done.stdout)["checks"]
        if check["status"] == "fail"
    }
    assert done.exit_code == 1
    assert set(failed) == {"state_access", "public_port"}
    assert failed["state_access"] == f"chmod 700 {folder}/state"


@pytest.mark.parametrize(
    ("checks", "code", "last"),
    [
        ([ok("a"), skipped("b")], 0, "2 checks: 0 failed, 0 warnings"),
        ([ok("a"), warn("b", "mend it")], 0, "2 checks: 0 failed, 1 warnings"),
        ([warn("a", "x"), fail("b", "mend it")], 1, "2 checks: 1 failed, 1 warnings"),
    ],
)
def test_people_read_a_table(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    checks: list[doctor.Checked],
    code: int,
    last: str,
) -> None:
    found = dict(zip(("first", "second"), checks, strict=True))
    monkeypatch.setattr(doctor, "examine", lambda _: found.items())
    done = examined(folder)
    lines = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    second = found["second"]
    assert done.exit_code == code
    assert f"second {second.status} {second.found} {second.advice}".rstrip() in lines
    assert lines[-1] == last


def test_a_configuration_that_makes_no_sense_is_wrong_usage(folder: Path) -> None:
    done = examined(folder, "--workers", "0")
    assert (done.exit_code, "--workers: it should be" in done.stderr) == (2, True)


def test_what_the_system_refuses_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_: ServeConfig) -> doctor.Checked:
        raise PermissionError(13, "Permission denied", "/proc")

    monkeypatch.setattr(doctor, "CHECKS", {"one": closed})
    ((name, found),) = doctor.examine(ServeConfig())
    assert (name, found.status, "/proc" in found.found) == ("one", doctor.Status.FAIL, True)


def test_a_product_that_is_not_installed_is_a_failed_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DISTRIBUTION", "no-such-product")
    found = dict(doctor.examine(ServeConfig()))
    for name in ("python", "packages"):
        assert found[name].status is doctor.Status.FAIL
        assert "no-such-product" in found[name].found


def test_a_refusal_is_what_was_found_and_what_to_do() -> None:
    assert refused(ValueError("/x: is open: chmod 700 it")) == fail("/x: is open", "chmod 700 it")
    assert refused(ValueError("it is so")).found == "it is so"


def test_each_check_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in doctor.CHECKS if f"| `{name}` |" not in page] == []
