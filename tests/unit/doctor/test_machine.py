# SPDX-License-Identifier: Apache-2.0
"""The machine: what is wrong with it is really so, where a test can make it so."""

import os
import resource
import sys
from pathlib import Path

import pytest

from rollout_router.claims import Moment
from rollout_router.doctor import Status, machine
from rollout_router.metrics_files import ROOM_BYTES_MIN
from rollout_router.serve.config import ServeConfig

CONFIG = ServeConfig()
ADMIN = ServeConfig(admin_port=0)


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root can raise a limit again, so that it is told instead of set."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (512, 1024))


def distribution(folder: Path, name: str, version: str) -> None:
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_this_machine_runs_it() -> None:
    for check in (machine.python, machine.packages, machine.event_loop, machine.clocks):
        assert check(CONFIG).status is Status.OK


def test_an_older_python_fails() -> None:
    found = machine.python(CONFIG, version=(3, 10, 4))
    assert (found.status, "3.10.4, and >=3.11 is wanted" in found.found) == (Status.FAIL, True)


@pytest.mark.parametrize(("version", "right"), [("4.3.9", True), ("4.2.0", False), ("4.4", False)])
def test_c4_another_filelock_than_the_pinned_one_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, right: bool
) -> None:
    distribution(folder, "filelock", version)
    monkeypatch.syspath_prepend(str(folder))
    found = machine.packages(CONFIG)
    assert (found.status is Status.OK) is right
    assert f"filelock {'' if right else 'is '}{version}" in found.found


def test_a_package_that_is_not_installed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_requirements", lambda: iter([("no-such-package", ">=1")]))
    assert "no-such-package is not installed" in machine.packages(CONFIG).found


def test_each_package_that_is_always_needed_is_looked_at() -> None:
    names = {name for name, _ in machine._requirements()}
    assert {"filelock", "uvicorn", "aiohttp"} <= names
    assert names.isdisjoint({"pytest", "openai", "ruff"})


def test_a_loop_that_is_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert machine.event_loop(CONFIG).status is Status.FAIL


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    ("connections_max", "status"),
    [(None, Status.WARN), (512, Status.WARN), (513, Status.FAIL)],
)
def test_c7_descriptors_are_held_against_what_they_are_for(
    connections_max: int | None, status: Status
) -> None:
    found = machine.descriptors(ServeConfig(connections_max=connections_max))
    assert (found.status, found.found.startswith("1,024 descriptors")) == (status, True)


def test_without_a_limit_descriptors_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, resource.RLIM_INFINITY))
    assert machine.descriptors(CONFIG).status is Status.OK
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 12_288))
    assert machine.descriptors(CONFIG).status is Status.OK


def test_c2_a_boot_that_cannot_be_told_fails() -> None:
    def none() -> Moment:
        raise FileNotFoundError(2, "No such file", "/proc/sys/kernel/random/boot_id")

    found = machine.clocks(CONFIG, moment=none)
    assert (found.status, "boot_id" in found.found) == (Status.FAIL, True)


def test_a_clock_that_was_never_set_is_warned_of() -> None:
    assert machine.clocks(CONFIG, wall_s=lambda: 0.0).status is Status.WARN


def test_metrics_need_a_place_only_with_an_admin_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert machine.metrics_folder(CONFIG).status is Status.SKIPPED
    monkeypatch.setattr(machine, "SHARED_MEMORY", Path("/no/such/folder"))
    assert machine.metrics_folder(ADMIN).status is Status.FAIL


def test_a_place_for_metrics_that_is_named_has_to_be_there_and_empty(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "metrics"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(place))
    assert machine.metrics_folder(ADMIN).status is Status.FAIL
    place.mkdir()
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    enough = free >= ROOM_BYTES_MIN
    assert (machine.metrics_folder(ADMIN).status is Status.OK) is enough
    (place / "counter_1.db").write_text("")
    assert "not empty" in machine.metrics_folder(ADMIN).found
