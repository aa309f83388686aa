# SPDX-License-Identifier: Apache-2.0
"""What is shipped: wheel, sdist, systemd unit, example settings, and the list of make's targets."""

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet

import rollout_router
from rollout_router.cli.main import main
from rollout_router.serve.admin_slot import ADMIN_END_S

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rollout_router"
UNIT = ROOT / "packaging" / "rollout-router.service"
SETTINGS = ROOT / "packaging" / "rollout-router.toml"
HELP_LINES_MAX = 24


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return folder


def _wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.mark.long
def test_the_wheel_holds_the_package_whole_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(_wheel(built)) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        information = {Path(name).name for name in wheel.namelist()} - {Path(n).name for n in names}
    there = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == there
    assert "rollout_router/py.typed" in names
    assert {"METADATA", "entry_points.txt", "LICENSE"} <= information


@pytest.mark.long
def test_the_sdist_holds_what_it_takes_to_test_it_and_to_read_it(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for folder in ("docs", "packaging", "rollout_router", "tests", "tools"):
        there = {
            str(one.relative_to(ROOT))
            for one in (ROOT / folder).rglob("*")
            if one.is_file() and "__pycache__" not in one.parts
        }
        assert there <= names
    assert {".ci/run", "LICENSE", "Makefile", "README.md", "constraints.txt", "mkdocs.yml"} <= names
    assert not [name for name in names if name == ".git" or name.startswith((".git/", ".site/"))]


@pytest.mark.long
def test_the_wheel_works_where_it_is_installed(built: Path, tmp_path: Path) -> None:
    venv, bin_ = tmp_path / "venv", tmp_path / "venv" / "bin"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python3.*/site-packages")
    # The dependencies are those of this environment; its own rollout_router is not among them,
    # because what a .pth names is searched, and .pth files in there are not.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(bin_ / "python"), "install"]
    flags = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, *flags, str(_wheel(built))], check=True)

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def said(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    where = said(bin_ / "python", "-c", "import rollout_router; print(rollout_router.__file__)")
    assert Path(where).is_relative_to(site)
    assert said(bin_ / "rollout-router", "--version").endswith(rollout_router.__version__)
    for name in ("integrations.nemo_gym", "checkpoint", "transport.httpx2", "transport.httpx"):
        said(bin_ / "python", "-c", f"import rollout_router.{name}")
    shim = tmp_path / "shim"
    said(bin_ / "rollout-router", "shim", "build", shim)
    assert "--gateway" in said(sys.executable, "-I", "-S", shim, "--help")


def test_what_is_pinned_runs_on_the_oldest_python_that_a_distribution_has() -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    installed = {one.metadata["Name"].lower(): one for one in importlib.metadata.distributions()}
    asks = {
        name: str(installed[name.lower()].metadata.json.get("requires_python", ""))
        for name, version in pins
        if name.lower() in installed and installed[name.lower()].version == version
    }
    assert len(asks) > len(pins) / 2
    oldest = "3.11.2"  # as Debian 12 has it
    assert {name for name, asked in asks.items() if oldest not in SpecifierSet(asked)} == set()


def test_the_console_script_names_what_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["rollout-router"].partition(":")
    assert callable(getattr(__import__(module, fromlist=[name]), name))


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    program = str(Path(sys.executable).with_name("rollout-router"))
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/rollout-router/bin/rollout-router", program))
    done = subprocess.run([analyze, "verify", copy], check=False, capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, ours) == (0, [])


def test_the_unit_starts_serve_with_flags_that_it_has_and_lets_it_drain() -> None:
    settings = _shown(*_serve_of_the_unit())
    assert {row["origin"] for row in settings.values()} == {str(SETTINGS), "default"}
    needed_s = sum(settings[f"{name}_seconds"]["value"] for name in ("drain", "keep_alive_grace"))
    assert int(_of_the_unit("TimeoutStopSec")) > needed_s + ADMIN_END_S


def test_the_example_settings_are_those_of_the_unit_and_of_the_documented_ports() -> None:
    settings = {name: row["value"] for name, row in _shown("--config", str(SETTINGS)).items()}
    state, run = Path("/var/lib", _of_the_unit("StateDirectory")), _of_the_unit("RuntimeDirectory")
    assert Path(settings["state_dir"]).parent == Path(settings["capture_dir"]).parent == state
    assert Path(settings["run_dir"]) == Path("/run", run)
    assert (settings["port"], settings["admin_port"]) == (9000, 9100)


def _of_the_unit(key: str) -> str:
    (value,) = re.findall(rf"^{key}=(.*)$", UNIT.read_text().replace("\\\n", " "), re.MULTILINE)
    return str(value)


def _serve_of_the_unit() -> list[str]:
    """The arguments of its `serve`, with our file in the place of the installed one."""
    program, command, *arguments = shlex.split(_of_the_unit("ExecStart"))
    assert (Path(program).name, command) == ("rollout-router", "serve")
    return [one.replace("/etc/rollout-router.toml", str(SETTINGS)) for one in arguments]


def _shown(*arguments: str) -> dict[str, dict[str, Any]]:
    """Each setting that `serve` would have of *arguments*, by name, as `config show` has it."""
    environment = {name: None for name in os.environ if name.startswith("ROLLOUT_ROUTER_")}
    command = ["config", "show", "--json", *arguments]
    done = CliRunner().invoke(main, command, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output  # wrong usage is 2
    return {row["name"]: row for row in json.loads(done.stdout)["settings"]}


def test_make_says_what_it_can_do_on_one_screen() -> None:
    text = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    command = ["make", "--no-print-directory"]  # which a make within make does by itself
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == phony.split()
    assert len(lines) <= HELP_LINES_MAX
    assert all(len(line) <= 100 for line in lines)
