# SPDX-License-Identifier: Apache-2.0
"""Installation, with programs of the test in place of npm, Python and pip.

The real ones run in the e2e tests.
"""

import concurrent.futures
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollout_router.harness.hermes import Hermes
from rollout_router.harness.install import (
    CannotInstall,
    install,
    installed_path,
    manifest,
    python,
)
from rollout_router.harness.pi import Pi
from rollout_router.harness.port import Packages

WORKING_NPM = """\
pwd >> "$LOG"
mkdir node_modules
printf '#!/bin/sh\\necho "$ANSWER"\\n' > node_modules/tool
chmod +x node_modules/tool
"""

# As `python3.X`, it says its version or makes an environment with itself; in it, pip is called.
WORKING_PYTHON = """\
case "$1 $2" in
  "-c "*) echo "${0##*python}" ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && pwd >> "$LOG" ;;
  "-m pip") shift 3 && echo "$*" >> "$LOG" ;;
  "-m tool") echo "$ANSWER" ;;
esac
"""


class Tool(Pi):
    """A harness whose probe runs what the test's npm installed."""

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        return [str(installed / "node_modules" / "tool")], "works"


class Module(Hermes):
    """A harness whose probe runs what the test's pip installed."""

    packages = Packages(pypi={"tool": "1.2", "other": "3.4"}, python=((3, 96), (3, 98)))

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        return [str(python(installed)), "-m", "tool"], "works"


class Machine:
    """Its programs are those of the test and the system's, and its home is *folder*."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "log"
        self._folder = folder
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.delenv("PYENV_ROOT", raising=False)
        monkeypatch.setenv("LOG", str(self.log))
        monkeypatch.setenv("ANSWER", "works")

    def has(self, program: str, script: str) -> None:
        path = self._folder / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o700)

    def npm(self, script: str) -> None:
        self.has("bin/npm", script)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def quiet(_: str) -> None:
    pass


def test_npm_runs_once_and_in_a_folder_of_its_own(machine: Machine, tmp_path: Path) -> None:
    machine.npm(WORKING_NPM)
    cache = tmp_path / "cache"
    installed = install(Tool(), cache, say=quiet)
    assert install(Tool(), cache, say=quiet) == installed
    (ran_in,) = machine.log.read_text().splitlines()
    assert Path(ran_in).parent == cache
    assert folders(cache) == [installed]


def test_of_many_that_ask_at_once_one_installs(machine: Machine, tmp_path: Path) -> None:
    machine.npm(WORKING_NPM)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(install, Tool(), tmp_path / "c", say=quiet) for _ in range(4)]
        assert len({done.result() for done in asked}) == 1
    assert len(machine.log.read_text().splitlines()) == 1


def test_a_missing_npm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotInstall, match="npm is missing"):
        install(Tool(), tmp_path / "cache", say=quiet)


def test_what_npm_said_is_told_and_nothing_is_left(machine: Machine, tmp_path: Path) -> None:
    machine.npm("echo 'npm error network' >&2\nexit 1\n")
    with pytest.raises(CannotInstall, match="npm error network"):
        install(Tool(), tmp_path / "cache", say=quiet)
    assert folders(tmp_path / "cache") == []


def test_what_does_not_run_here_is_not_installed(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.npm(WORKING_NPM)
    monkeypatch.setenv("ANSWER", "another version")
    with pytest.raises(CannotInstall, match="another version"):
        install(Tool(), tmp_path / "cache", say=quiet)
    assert folders(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_made_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.npm(WORKING_NPM)
    (tmp_path / "file").touch()
    with pytest.raises(CannotInstall, match="cannot be installed"):
        install(Tool(), tmp_path / "file" / "cache", say=quiet)


def test_every_version_names_the_folder(tmp_path: Path) -> None:
    assert installed_path(Module(), tmp_path).name == "hermes-1.2-3.4"
    assert installed_path(Pi(), tmp_path).name == "pi-1.6.0-24.21.0"


def test_only_the_named_install_scripts_are_allowed() -> None:
    packages = Pi().packages
    assert manifest(packages)["allowScripts"] == {"node": True}
    assert manifest(packages)["dependencies"] == packages.npm


def test_pip_runs_once_in_an_environment_of_its_own(machine: Machine, tmp_path: Path) -> None:
    machine.has("bin/python3.97", WORKING_PYTHON)
    cache = tmp_path / "cache"
    installed = install(Module(), cache, say=quiet)
    assert install(Module(), cache, say=quiet) == installed
    made_in, pip = machine.log.read_text().splitlines()
    assert Path(made_in).parent == cache
    assert pip.split()[-2:] == ["tool==1.2", "other==3.4"]
    assert folders(cache) == [installed]


def test_the_newest_python_that_makes_environments_is_taken(
    machine: Machine, tmp_path: Path
) -> None:
    machine.has("bin/python3.98", "exit 127")  # only the name: the version is not installed
    machine.has("bin/python3.96", WORKING_PYTHON)
    below_pyenv = '[ "$1" = -c ] && exec echo 3.97\nexit 5'
    machine.has(".pyenv/versions/3.97.1/bin/python3", below_pyenv)
    with pytest.raises(CannotInstall, match=r"3\.97\.1/bin/python3 -m venv"):
        install(Module(), tmp_path / "cache", say=quiet)


def test_a_missing_python_is_refused(machine: Machine, tmp_path: Path) -> None:
    machine.has("bin/python3.95", WORKING_PYTHON)
    machine.has("bin/python3.97", "exit 127")
    with pytest.raises(CannotInstall, match=r"hermes needs Python 3\.96 to 3\.98"):
        install(Module(), tmp_path / "cache", say=quiet)
    assert folders(tmp_path / "cache") == []


def test_what_pip_said_is_told_and_nothing_is_left(machine: Machine, tmp_path: Path) -> None:
    pip = "echo 'ERROR: No matching distribution' >&2; exit 1"
    machine.has("bin/python3.97", WORKING_PYTHON.replace('shift 3 && echo "$*" >> "$LOG"', pip))
    with pytest.raises(CannotInstall, match="No matching distribution"):
        install(Module(), tmp_path / "cache", say=quiet)
    assert folders(tmp_path / "cache") == []
