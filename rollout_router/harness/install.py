# SPDX-License-Identifier: Apache-2.0
"""Installs a harness from npm into a cache folder, once, however many ask at the same time.

npm runs in a folder of its own, never in the caller's project. That folder gets its final name when
everything in it is proven to work, so what has the name is whole.
"""

import fcntl
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rollout_router.harness.port import Harness

__all__ = ["CannotInstall", "install", "installed_path", "manifest"]

_INSTALL_S: Final = 600.0
_PROBE_S: Final = 60.0
_LINES_SHOWN: Final = 6


class CannotInstall(Exception):  # noqa: N818 - a refusal, told to whoever started the command
    """The harness cannot be had here; the message says why. Nothing is left behind."""


def install(harness: Harness, cache: Path, *, say: Callable[[str], None]) -> Path:
    """Make sure that *harness* is installed below *cache*; gives its folder.

    Raises:
        CannotInstall: npm is missing or failed, or what it installed does not run here.
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
    return cache.absolute() / "-".join([harness.name, *harness.packages.values()])


def manifest(harness: Harness) -> dict[str, object]:
    """The ``package.json`` of the installation."""
    return {
        "private": True,
        "dependencies": dict(harness.packages),
        "allowScripts": dict.fromkeys(harness.install_scripts, True),
    }


def _install(harness: Harness, folder: Path, say: Callable[[str], None]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstall(f"{harness.name} comes from npm, and npm is missing: install Node.js")
    names = ", ".join(f"{name}@{version}" for name, version in harness.packages.items())
    say(f"installing {names} in {folder}")
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}."))
    try:
        (new / "package.json").write_text(json.dumps(manifest(harness)))
        quiet = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
        _run([npm, "install", "--prefix", str(new), *quiet], new, limit_s=_INSTALL_S)
        _prove(harness, new)
        new.rename(folder)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _prove(harness: Harness, folder: Path) -> None:
    command, expected = harness.probe(folder)
    printed = _run(list(command), folder, limit_s=_PROBE_S).strip()
    if printed != expected:
        raise CannotInstall(f"{' '.join(command)} printed {printed!r}, not {expected!r}")


def _run(command: list[str], folder: Path, *, limit_s: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - npm, and what it installed at our wish
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
