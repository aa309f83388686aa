# SPDX-License-Identifier: Apache-2.0
"""The machine: Python, packages, descriptors, event loop, clocks, and memory for metrics."""

import asyncio
import importlib.metadata
import operator
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rollout_router.claims import Moment
from rollout_router.doctor.checked import Checked, fail, ok, skipped, warn
from rollout_router.metrics_files import FOLDER, ROOM_BYTES_MIN, SHARED_MEMORY
from rollout_router.routing import Settings
from rollout_router.routing.limits import CONNECTIONS_MAX
from rollout_router.serve.config import ServeConfig

__all__ = ["clocks", "descriptors", "event_loop", "metrics_folder", "packages", "python"]

DISTRIBUTION: Final = "rollout-router"
CALL_DESCRIPTORS: Final = 3
"""A call in flight has its own connection, one to its owner or upstream, and a file."""

_NOT_BEFORE: Final = datetime(2026, 1, 1, tzinfo=UTC)  # this program is younger
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*([^;]*)")
_BOUND: Final = re.compile(r"(>=|<)\s*(\d+(?:\.\d+)*)")
_HOLDS: Final = {">=": operator.ge, "<": operator.lt}
"""The relations that our requirements have."""


def python(_: ServeConfig, *, version: Sequence[int] = sys.version_info[:3]) -> Checked:
    """Whether this Python is one that the product is made for."""
    said = f"{platform.python_implementation()} {'.'.join(map(str, version))}"
    wanted = importlib.metadata.distribution(DISTRIBUTION).metadata["Requires-Python"]
    if not _within(version, wanted):
        return fail(f"{said}, and {wanted} is wanted", "make the environment with another Python")
    return ok(said)


def packages(_: ServeConfig) -> Checked:
    """Whether the packages that the product stands on have the versions that it is made for."""
    found, wrong = [], []
    for name, wanted in _requirements():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{name} is not installed")
            continue
        found.append(f"{name} {version}")
        if not _within(_numbers(version), wanted):
            wrong.append(f"{name} is {version}, and {wanted} is wanted")
    if wrong:
        return fail(
            "; ".join(wrong), "install with the constraints of the release: constraints.txt"
        )
    return ok(", ".join(found))


def descriptors(config: ServeConfig) -> Checked:
    """Whether a worker may open what its bounds let in; each takes all that it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return ok("no limit")
    calls_max = Settings(state_dir=config.state_dir, run_dir=config.run_dir).calls_max
    connections = config.connections_max or max(1, min(hard // 4, CONNECTIONS_MAX))
    found = f"{hard:,} descriptors, {connections:,} connections and {calls_max:,} calls a worker"
    if 2 * connections > hard:
        return fail(
            found,
            f"raise the hard limit (LimitNOFILE=, ulimit -Hn) to {4 * connections:,}, or lower"
            f" --connections-max to {hard // 4:,}",
        )
    wanted = CALL_DESCRIPTORS * calls_max
    if hard < wanted:
        return warn(
            found, f"raise the hard limit (LimitNOFILE=, ulimit -Hn) to {wanted:,}, for all calls"
        )
    return ok(found)


def event_loop(_: ServeConfig) -> Checked:
    """Whether the event loop of the workers turns."""
    try:
        import uvloop  # noqa: PLC0415 - whether it can be imported is the question
    except ImportError as error:
        return fail(f"uvloop cannot be imported: {error}", "install it for this Python")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))
    return ok(f"uvloop {importlib.metadata.version('uvloop')}")


def clocks(
    _: ServeConfig,
    *,
    moment: Callable[[], Moment] = Moment.now,
    wall_s: Callable[[], float] = time.time,
) -> Checked:
    """Whether boot id and clocks can be read (C2), and the wall clock is not absurd."""
    try:
        now = moment()
    except OSError as error:
        return fail(f"the boot id cannot be read: {error}", "mount /proc: claims are told by boots")
    wall = datetime.fromtimestamp(wall_s(), UTC)
    found = f"boot {now.boot_id}, {now.seconds / 3600:.1f} h ago; it is {wall:%Y-%m-%d %H:%M} UTC"
    if wall < _NOT_BEFORE:
        return warn(found, "set the clock: times of claims and records are for people to read")
    return ok(found)


def metrics_folder(config: ServeConfig) -> Checked:
    """Whether workers have a place for the files of their metrics."""
    if config.admin_port is None:
        return skipped("no metrics: no --admin-port")
    named = os.environ.get(FOLDER)
    folder = Path(named) if named else SHARED_MEMORY
    advice = f"set {FOLDER} to an empty directory in memory"
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return fail(f"{folder} is no directory that this user may write", advice)
    if named and any(folder.iterdir()):
        return warn(f"{folder} is not empty: what lies there is counted too", advice)
    free = os.statvfs(folder)
    free_bytes = free.f_bavail * free.f_frsize
    found = f"{free_bytes // 1024**2:,} MiB are free at {folder}"
    return ok(found) if free_bytes >= ROOM_BYTES_MIN else warn(found, advice)


def _requirements() -> Iterator[tuple[str, str]]:
    """Name and versions of each package that is needed always."""
    for line in importlib.metadata.requires(DISTRIBUTION) or ():
        match = _REQUIREMENT.match(line)
        if match is not None and "extra ==" not in line:
            yield match[1], match[2].strip()


def _within(version: Sequence[int], wanted: str) -> bool:
    return all(
        _HOLDS[relation](list(version), _numbers(bound))
        for relation, bound in _BOUND.findall(wanted)
    )


def _numbers(version: str) -> list[int]:
    """The release of a version; what follows it, as in ``4.3.0rc1``, is left out."""
    release = re.match(r"\d+(?:\.\d+)*", version)
    return [int(number) for number in release[0].split(".")] if release else []
