# SPDX-License-Identifier: Apache-2.0
"""Directories: each check fails where a start would be refused, and changes nothing."""

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import FileClaimStore, Host
from rollout_router.doctor import Checked, Status, places
from rollout_router.gateway import CaptureSink
from rollout_router.serve.config import ServeConfig

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a directory away")


def on(kind: str) -> Host:
    return Host(boot_id="boot", mountinfo=f"1 0 8:1 / / rw - {kind} /dev/x rw")


def service(folder: Path, **settings: Any) -> ServeConfig:
    return ServeConfig(**{"state_dir": folder / "state", "run_dir": folder / "run", **settings})


def names(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.fixture
def small(folder: Path) -> Iterator[Path]:
    """A file system with room for little."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    (mount := folder / "small").mkdir()
    options = "size=8m,nr_inodes=100,mode=0700"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(mount)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


@pytest.mark.parametrize(
    "check",
    [
        places.state_access,
        places.run_access,
        places.locks,
        places.socket_path,
        places.space,
        places.capture_access,
        places.state_file_system,
        places.capture_file_system,
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_place_that_is_as_it_should_be_is_left_as_it_is(
    folder: Path, check: Callable[[ServeConfig], Checked], *, exists: bool
) -> None:
    if exists:
        FileClaimStore.open(folder / "state", service="model")
        (folder / "run").mkdir(0o700)
        (folder / "capture").mkdir(0o700)
    before = names(folder)

    assert check(service(folder, capture_dir=folder / "capture")).status is Status.OK
    assert names(folder) == before


@pytest.mark.parametrize("check", [places.capture_access, places.capture_file_system])
def test_without_captures_there_is_nothing_to_look_at(
    folder: Path, check: Callable[[ServeConfig], Checked]
) -> None:
    assert check(service(folder)).status is Status.SKIPPED


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_c3_a_store_on_a_file_system_that_others_may_write_fails(folder: Path, kind: str) -> None:
    found = places.state_file_system(service(folder), host=on(kind))
    assert found.status is Status.FAIL
    assert kind in found.found
    allowed = service(folder, allow_network_fs=True)
    assert places.state_file_system(allowed, host=on(kind)).status is Status.WARN


def test_captures_on_such_a_file_system_are_warned_of(folder: Path) -> None:
    config = service(folder, capture_dir=folder / "capture")
    assert places.capture_file_system(config, host=on("nfs4")).status is Status.WARN
    assert places.capture_file_system(config, host=on("ext4")).status is Status.OK


def test_what_cleaners_sweep_is_warned_of(folder: Path) -> None:
    swept = Path("/tmp/rollout-router-none")  # noqa: S108 - nothing is made there
    config = service(folder, state_dir=swept, capture_dir=swept)
    for check in (places.state_file_system, places.capture_file_system):
        found = check(config, host=on("ext4"))
        assert found.status is Status.WARN
        assert "swept" in found.found


@pytest.mark.parametrize("mode", [0o755, 0o770])
@pytest.mark.parametrize("name", ["state", "run"])
def test_a_directory_that_is_open_to_others_fails(folder: Path, name: str, mode: int) -> None:
    (folder / name).mkdir()
    (folder / name).chmod(mode)
    found = getattr(places, f"{name}_access")(service(folder))
    assert found.status is Status.FAIL
    assert "open to other users" in found.found
    assert "chmod 700" in found.advice


@as_root
@pytest.mark.parametrize("name", ["state", "run"])
def test_a_directory_of_another_user_fails(folder: Path, name: str) -> None:
    (folder / name).mkdir(0o700)
    os.chown(folder / name, 65534, 65534)
    found = getattr(places, f"{name}_access")(service(folder))
    assert found.status is Status.FAIL
    assert str(folder / name) in found.found


@pytest.mark.parametrize("name", ["state", "run", "capture"])
def test_a_place_below_a_file_fails(folder: Path, name: str) -> None:
    (folder / "file").write_text("")
    config = service(folder, **{f"{name}_dir": folder / "file" / "x"})
    found = getattr(places, f"{name}_access")(config)
    assert found.status is Status.FAIL
    assert f"{folder}/file" in found.found
    assert f"--{name}-dir" in found.advice


@pytest.mark.parametrize("name", ["state", "run", "capture"])
def test_a_place_on_a_file_system_that_cannot_be_written_fails(small: Path, name: str) -> None:
    config = service(small, capture_dir=small / "capture")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    found = getattr(places, f"{name}_access")(config)
    assert found.status is Status.FAIL
    assert f"may not write in {small}" in found.found
    assert places.locks(config).status is Status.FAIL


def test_f1_captures_of_another_store_fail(folder: Path) -> None:
    config = service(folder, capture_dir=folder / "capture")
    CaptureSink(folder / "capture", store_id="another")
    found = places.capture_access(config)
    assert (found.status, "another store" in found.found) == (Status.FAIL, True)

    store = FileClaimStore.open(folder / "state", service="model")
    found = places.capture_access(config)
    assert found.status is Status.FAIL
    assert store.store_id in found.found + found.advice


def test_f1_captures_without_a_fence_fail(folder: Path) -> None:
    (folder / "capture").mkdir()
    (folder / "capture" / "r.jsonl").write_text("")
    found = places.capture_access(service(folder, capture_dir=folder / "capture"))
    assert found.status is Status.FAIL
    assert "not the name of their" in found.found + found.advice


def test_a_socket_path_that_is_too_long_fails(folder: Path) -> None:
    found = places.socket_path(service(folder, run_dir=folder / ("x" * 90)))
    assert found.status is Status.FAIL
    assert "longer than 107 bytes" in found.found
    assert "shorter run directory" in found.advice


def test_c7_a_disk_without_room_fails(small: Path) -> None:
    assert places.space(service(small)).status is Status.FAIL
    assert "inodes" in places.space(service(small)).found


def test_c7_a_disk_that_many_claims_could_fill_is_warned_of(folder: Path) -> None:
    config = service(folder, workers=256, history_rollouts=10**9)
    assert places.space(config).status is Status.WARN


def test_c1_locks_that_are_refused_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    found = places.locks(service(folder))
    assert (found.status, "No locks available" in found.found) == (Status.FAIL, True)


def test_c1_locks_that_keep_nobody_out_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # the other process uses its own
    found = places.locks(service(folder))
    assert (found.status, "does not keep another" in found.found) == (Status.FAIL, True)
