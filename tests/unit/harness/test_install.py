# SPDX-License-Identifier: Apache-2.0
"""Installation, with programs of the test in place of npm; the real one runs in the e2e tests."""

import concurrent.futures
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollout_router.harness.install import CannotInstall, install, installed_path, manifest
from rollout_router.harness.pi import Pi

WORKING_NPM = """\
pwd >> "$LOG"
mkdir node_modules
printf '#!/bin/sh\\necho "$ANSWER"\\n' > node_modules/tool
chmod +x node_modules/tool
"""


class Tool(Pi):
    """A harness whose probe runs what the test's npm installed."""

    def probe(self, installed: Path) -> tuple[Sequence[str], str]:
        return [str(installed / "node_modules" / "tool")], "works"


class Npm:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = folder / "log"
        self._program = folder / "bin" / "npm"
        self._program.parent.mkdir()
        monkeypatch.setenv("PATH", f"{self._program.parent}:/usr/bin:/bin")
        monkeypatch.setenv("LOG", str(self.log))
        monkeypatch.setenv("ANSWER", "works")

    def does(self, script: str) -> None:
        self._program.write_text(f"#!/bin/sh\n{script}")
        self._program.chmod(0o700)


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Npm:
    return Npm(tmp_path, monkeypatch)


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def quiet(_: str) -> None:
    pass


def test_npm_runs_once_and_in_a_folder_of_its_own(npm: Npm, tmp_path: Path) -> None:
    npm.does(WORKING_NPM)
    cache = tmp_path / "cache"
    installed = install(Tool(), cache, say=quiet)
    assert install(Tool(), cache, say=quiet) == installed
    (ran_in,) = npm.log.read_text().splitlines()
    assert Path(ran_in).parent == cache
    assert folders(cache) == [installed]


def test_of_many_that_ask_at_once_one_installs(npm: Npm, tmp_path: Path) -> None:
    npm.does(WORKING_NPM)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(install, Tool(), tmp_path / "c", say=quiet) for _ in range(4)]
        assert len({done.result() for done in asked}) == 1
    assert len(npm.log.read_text().splitlines()) == 1


def test_a_missing_npm_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotInstall, match="npm is missing"):
        install(Tool(), tmp_path / "cache", say=quiet)


def test_what_npm_said_is_told_and_nothing_is_left(npm: Npm, tmp_path: Path) -> None:
    npm.does("echo 'npm error network' >&2\nexit 1\n")
    with pytest.raises(CannotInstall, match="npm error network"):
        install(Tool(), tmp_path / "cache", say=quiet)
    assert folders(tmp_path / "cache") == []


def test_what_does_not_run_here_is_not_installed(
    npm: Npm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm.does(WORKING_NPM)
    monkeypatch.setenv("ANSWER", "another version")
    with pytest.raises(CannotInstall, match="another version"):
        install(Tool(), tmp_path / "cache", say=quiet)
    assert folders(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_made_is_refused(npm: Npm, tmp_path: Path) -> None:
    npm.does(WORKING_NPM)
    (tmp_path / "file").touch()
    with pytest.raises(CannotInstall, match="cannot be installed"):
        install(Tool(), tmp_path / "file" / "cache", say=quiet)


def test_every_version_is_exact_and_names_the_folder(tmp_path: Path) -> None:
    pi = Pi()
    assert manifest(pi)["dependencies"] == pi.packages
    for version in pi.packages.values():
        assert version.replace(".", "").isdigit()
        assert version in installed_path(pi, tmp_path).name


def test_only_the_named_install_scripts_are_allowed() -> None:
    assert json.loads(json.dumps(manifest(Pi())))["allowScripts"] == {"node": True}
