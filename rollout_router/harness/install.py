# SPDX-License-Identifier: Apache-2.0
"""Installs a harness into a cache folder, once, however many ask at the same time.

npm packages lie in ``node_modules`` of that folder, those of PyPI in ``venv``, an environment of
their own: never in the caller's project. The folder gets its final name when everything in it is
proven to work, so what has the name is whole. Scripts of the environment name the folder in which
it was made, so its modules are run instead: :func:`python` with ``-m``.
"""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollout_router.harness.port import Harness, Packages

__all__ = ["CannotInstall", "install", "installed_path", "manifest", "python"]

_INSTALL_S: Final = 600.0
_PROBE_S: Final = 60.0
_LINES_SHOWN: Final = 6

_ABLE: Final = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


class CannotInstall(Exception):  # noqa: N818 - a refusal, told to whoever started the command
    """The harness cannot be had here; the message says why. Nothing is left behind."""


def install(harness: Harness, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Make sure that *harness* is installed below *cache*; gives its folder.

    Raises:
        CannotInstall: npm or a fitting Python is missing, an installer failed, or what it
            installed does not run here.
    """
    folder = installed_path(harness, cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f"{folder.name}.lock"):
            if not folder.exists():
                _install(harness, folder, say)
    except OSError as error:
        raise CannotInstall(f"{harness.name} cannot be installed in {cache}: {error}") from error
    return folder


def installed_path(harness: Harness, cache: Path) -> Path:
    """Where it is or will be: other versions have another folder."""
    packages = harness.packages
    versions = [*packages.npm.values(), *packages.pypi.values()]
    return cache.absolute() / "-".join([harness.name, *versions])


def manifest(packages: Packages) -> dict[str, object]:
    """The ``package.json`` of the installation."""
    return {
        "private": True,
        "dependencies": dict(packages.npm),
        "allowScripts": dict.fromkeys(packages.npm_install_scripts, True),
    }


def python(installed: Path) -> Path:
    """The Python of a harness from PyPI."""
    return installed / "venv" / "bin" / "python"


def _install(harness: Harness, folder: Path, say: Callable[[str], None]) -> None:
    packages = harness.packages
    names = [f"{name}@{version}" for name, version in packages.npm.items()]
    say(f"installing {', '.join(names + _pinned(packages.pypi))} in {folder}")
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        if packages.npm:
            _from_npm(harness.name, packages, new)
        if packages.pypi:
            _from_pypi(harness.name, packages, new)
        _prove(harness, new)
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _from_npm(name: str, packages: Packages, new: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall(f"{name} comes from npm, and npm is missing: install Node.js")
    (new / "package.json").write_text(json.dumps(manifest(packages)))
    quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    _run([npm, "install", "--prefix", str(new), *quiet], new, limit_s=_INSTALL_S)


def _from_pypi(name: str, packages: Packages, new: Path) -> None:
    (least, most) = packages.python
    able = _able_python(least, most)
    if able is None:
        between = f"Python {least[0]}.{least[1]} to {most[0]}.{most[1]}"
        raise CannotInstall(
            f"{name} needs {between} with venv and ensurepip; none is on PATH as python3.X or below"
            " ~/.pyenv/versions: install one"
        )
    _run([able, "-m", "venv", str(new / "venv")], new, limit_s=_INSTALL_S)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    pip = [str(python(new)), "-m", "pip", "install", *quiet]
    _run([*pip, *_pinned(packages.pypi)], new, limit_s=_INSTALL_S)


def _able_python(least: tuple[int, int], most: tuple[int, int]) -> str | None:
    """The newest Python in the range that makes environments; one that only has the name is not."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(most[1], least[1] - 1, -1):
        version = f"{most[0]}.{minor}"
        found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python3"))]
        for candidate in filter(None, found):
            try:
                said = _run([str(candidate), "-c", _ABLE], pyenv.anchor, limit_s=_PROBE_S)
            except (CannotInstall, OSError):  # a shim without a Python, or one without venv
                continue
            if said.strip() == version:
                return str(candidate)
    return None


def _pinned(packages: Mapping[str, str]) -> list[str]:
    return [f"{name}=={version}" for name, version in packages.items()]


def _prove(harness: Harness, folder: Path) -> None:
    command, expected = harness.probe(folder)
    printed = _run(list(command), folder, limit_s=_PROBE_S).strip()
    if printed != expected:
        raise CannotInstall(f"{' '.join(command)} printed {printed!r}, not {expected!r}")


def _run(command: list[str], folder: str | Path, *, limit_s: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - an installer, or what it installed at our wish
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"{command[0]} did not end within {limit_s:.0f} s") from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LINES_SHOWN:])
        raise CannotInstall(f"{' '.join(command)} exited with code {done.returncode}:\n{said}")
    return done.stdout


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process installs the same; its end gives the lock back."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
