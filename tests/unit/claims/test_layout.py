# SPDX-License-Identifier: Apache-2.0
"""How a store is made, opened and refused (C1, C2)."""

import errno
import json
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import (
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    StoreRefused,
    StoreUnavailable,
    Verdict,
)
from rollout_router.claims.epochs import floor_of
from rollout_router.claims.host import is_swept

Live = Callable[[], LifeLock]
MOUNTS = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:40 / /mnt/team rw - nfs4 server:/x rw
23 22 0:41 / /mnt/team/scratch rw - xfs /dev/sdb rw
24 21 0:42 / /mnt/with\\040space rw - fuse.sshfs host:/ rw
25 21 0:43 / /over rw - ext4 /dev/sdc rw
26 21 0:44 / /over rw - 9p host rw
"""


def format_of(state_dir: Path) -> dict[str, object]:
    return dict(json.loads((state_dir / "FORMAT").read_bytes()))


def on(file_system: str, boot_id: str = "boot") -> Host:
    return Host(boot_id=boot_id, mountinfo=f"1 0 8:1 / / rw - {file_system} /dev/x rw")


def test_c1_a_store_is_made_private_and_whole(store: FileClaimStore) -> None:
    root = store.state_dir
    names = {f"{stripe:02x}" for stripe in range(256)}

    assert {path.name for path in root.iterdir()} == {
        "FORMAT", "locks", "owners", "epochs", "claims"
    }  # fmt: skip
    for part in ("locks", "epochs", "claims"):
        assert {path.name for path in (root / part).iterdir()} - {"format"} == names
    modes = {path: path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert format_of(root) | {"sha256": ""} == {
        "v": 1,
        "service": "model",
        "store_id": store.store_id,
        "stripes": 256,
        "generation": 1,
        "boot_id": store.boot_id,
        "sha256": "",
    }


def test_c1_a_store_that_is_opened_again_is_the_same(store: FileClaimStore) -> None:
    before = format_of(store.state_dir)
    again = FileClaimStore.open(store.state_dir, service="model")

    assert again.store_id == store.store_id
    assert format_of(store.state_dir) == before


def test_c2_the_generation_rises_once_a_boot(state_dir: Path) -> None:
    generations = []
    for boot_id in ("one", "one", "two", "two", "one"):
        FileClaimStore.open(state_dir, service="model", host=on("ext4", boot_id))
        generations.append(format_of(state_dir)["generation"])

    assert generations == [1, 1, 2, 2, 3]


def test_c2_format_is_durable_before_a_store_is_used(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and directory are synced, in the order that survives a power cut."""
    synced, rename, fsync = [], os.rename, os.fsync

    def note_rename(source: str, target: str) -> None:
        rename(source, target)
        synced.append(f"rename {os.path.relpath(target, state_dir)}")

    def note_sync(fd: int) -> None:
        fsync(fd)
        path = os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), state_dir)
        synced.append("sync temporary" if ".tmp." in path else f"sync {path}")

    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(os, "fsync", note_sync)
    FileClaimStore.open(state_dir, service="model")

    assert synced[-4:] == ["sync temporary", "rename FORMAT", "sync .", "sync .."]
    assert {f"sync epochs/{stripe:02x}" for stripe in range(256)} < set(synced[:-4])
    assert {"sync epochs", "sync locks", "sync claims"} < set(synced[:-4])


@pytest.mark.parametrize("dies_at", [0, 100, 255, 256])
def test_c1_a_store_whose_making_was_cut_off_is_made_by_the_next(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    left, rename = [dies_at], os.rename

    def die(source: str, target: str) -> None:
        if not left[0]:
            raise SystemExit
        left[0] -= 1
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", die)
        with pytest.raises(SystemExit):
            FileClaimStore.open(state_dir, service="model")
    assert not (state_dir / "FORMAT").exists()

    store = FileClaimStore.open(state_dir, service="model")
    assert store.read("r1") is None


@pytest.mark.parametrize("trace", ["claim", "epoch", "owner"])
def test_c2_a_used_store_without_format_is_damaged_and_never_new(
    store: FileClaimStore, live: Live, trace: str
) -> None:
    lock = live()
    grant = store.take("r1", lock.owner)
    assert isinstance(grant, Grant)
    if trace != "claim":
        store.release(grant)
    if trace != "owner":
        lock.close(remove=True)
    (store.state_dir / "FORMAT").unlink()

    with pytest.raises(StoreRefused, match=r"no FORMAT but was used .* Restore FORMAT"):
        FileClaimStore.open(store.state_dir, service="model")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param(b"", r"damaged \(empty\): restore", id="empty"),
        pytest.param(b'{"v":1}', r"damaged \(checksum\): restore", id="by hand"),
    ],
)
def test_c2_a_damaged_format_is_refused(store: FileClaimStore, raw: bytes, message: str) -> None:
    (store.state_dir / "FORMAT").write_bytes(raw)

    with pytest.raises(StoreRefused, match=message):
        FileClaimStore.open(store.state_dir, service="model")
    with pytest.raises(StoreRefused, match=message):
        FileClaimStore.inspect(store.state_dir)


def test_c2_a_newer_format_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rollout_router.claims.envelope.FORMAT_VERSION", 2)
        FileClaimStore.open(state_dir, service="model")

    with pytest.raises(StoreRefused, match="newer version"):
        FileClaimStore.open(state_dir, service="model")


def test_c1_another_count_of_stripes_is_refused(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rollout_router.claims.creation.STRIPES", 16)
        FileClaimStore.open(state_dir, service="model")

    with pytest.raises(StoreRefused, match="16 stripes"):
        FileClaimStore.open(state_dir, service="model")


def test_c1_another_service_is_told_to_use_its_own_directory(store: FileClaimStore) -> None:
    with pytest.raises(StoreRefused, match=r"'model', not of 'agent'.*--state-dir of its own"):
        FileClaimStore.open(store.state_dir, service="agent")


@pytest.mark.parametrize("service", ["", "a b", "../x", "x" * 101])
def test_c1_a_service_without_a_proper_name_is_refused(state_dir: Path, service: str) -> None:
    with pytest.raises(StoreRefused, match="names no service"):
        FileClaimStore.open(state_dir, service=service)

    assert not state_dir.exists()


@pytest.mark.parametrize(
    ("part", "mode"),
    [(".", 0o755), (".", 0o701), ("locks", 0o770), ("owners", 0o755), ("claims", 0o750)],
)
def test_c1_a_directory_that_is_open_to_others_is_refused(
    store: FileClaimStore, part: str, mode: int
) -> None:
    (store.state_dir / part).chmod(mode)

    with pytest.raises(StoreRefused, match="chmod 700"):
        FileClaimStore.open(store.state_dir, service="model")


def test_c1_a_directory_of_another_user_is_refused(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: store.state_dir.stat().st_uid + 1)

    with pytest.raises(StoreRefused, match="run as that user"):
        FileClaimStore.open(store.state_dir, service="model")


def test_c1_a_file_in_the_place_of_the_store_is_refused(state_dir: Path) -> None:
    state_dir.touch()

    with pytest.raises(StoreRefused, match="use a --state-dir that this user may write"):
        FileClaimStore.open(state_dir, service="model")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "virtiofs", "fuse.sshfs", "ceph"])
def test_c1_a_network_file_system_is_refused_unless_allowed(state_dir: Path, kind: str) -> None:
    with pytest.raises(StoreRefused, match="--allow-network-fs"):
        FileClaimStore.open(state_dir, service="model", host=on(kind))

    store = FileClaimStore.open(state_dir, service="model", host=on(kind), allow_network_fs=True)
    assert not store.local


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs"])
def test_c1_a_local_file_system_is_used(state_dir: Path, kind: str) -> None:
    assert FileClaimStore.open(state_dir, service="model", host=on(kind)).local


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/state", "ext4"),
        ("/mnt/team/state", "nfs4"),
        ("/mnt/team", "nfs4"),
        ("/mnt/teammate", "ext4"),
        ("/mnt/team/scratch/state", "xfs"),
        ("/mnt/with space/state", "fuse.sshfs"),
        ("/over/state", "9p"),
    ],
)
def test_c1_the_deepest_and_latest_mount_decides(path: str, expected: str) -> None:
    assert Host(boot_id="b", mountinfo=MOUNTS).file_system(Path(path)) == expected


def test_c1_this_host_is_known_by_its_boot() -> None:
    here = Host.here()

    assert len(here.boot_id) == 36
    assert here.file_system(Path("/proc")) == "proc"


@pytest.mark.parametrize(
    ("path", "swept"),
    [("/tmp/x", True), ("/var/tmp/a/b", True), ("/var/lib/x", False), ("/tmpfoo", False)],  # noqa: S108 - the point
)
def test_c1_what_cleaners_sweep_is_known(path: str, *, swept: bool) -> None:
    assert is_swept(Path(path)) == swept


def test_c1_a_store_in_a_temporary_directory_is_warned_of(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollout_router.claims.creation.is_swept", lambda _: True)
    with caplog.at_level(logging.WARNING, logger="rollout_router.claims.creation"):
        FileClaimStore.open(state_dir, service="model")

    assert "use /var/lib or /run" in caplog.text


def test_c2_inspecting_makes_nothing_and_raises_nothing(
    store: FileClaimStore, live: Live, directory: Path
) -> None:
    grant = store.take("r1", live().owner)
    assert isinstance(grant, Grant)
    rebooted = replace(Host.here(), boot_id="another-boot")

    looked = FileClaimStore.inspect(store.state_dir, host=rebooted)
    assert looked.read("r1") == grant.claim
    assert format_of(store.state_dir)["generation"] == 1

    missing = directory / "missing"
    with pytest.raises(StoreRefused, match="no claim store"):
        FileClaimStore.inspect(missing)
    with pytest.raises(StoreRefused, match="no claim store"):
        FileClaimStore.open(missing, service=None)
    assert not missing.exists()


def test_c2_without_a_service_an_empty_directory_is_refused_and_stays_empty(
    state_dir: Path,
) -> None:
    state_dir.mkdir(mode=0o700)

    with pytest.raises(StoreRefused, match="no claim store"):
        FileClaimStore.open(state_dir, service=None)

    assert list(state_dir.iterdir()) == []


def test_c3_an_inspected_store_of_an_earlier_boot_judges_by_the_boot_that_runs(
    store: FileClaimStore, live: Live
) -> None:
    """Its life lock is held here, but a boot that is over held it, as far as the kernel knows."""
    owner = live().owner
    rebooted = replace(Host.here(), boot_id="another-boot")

    looked = FileClaimStore.inspect(store.state_dir, host=rebooted)

    assert looked.judge(owner).verdict is Verdict.DEAD
    proof = looked.proof_of_death(owner)
    assert proof
    assert proof.evidence == "other_boot"
    assert store.judge(owner).verdict is Verdict.ALIVE


def test_c2_an_inspected_store_grants_nothing_before_this_boot_was_counted(
    store: FileClaimStore, live: Live
) -> None:
    grant = store.take("r1", live().owner)
    assert isinstance(grant, Grant)
    rebooted = replace(Host.here(), boot_id="another-boot")
    looked = FileClaimStore.inspect(store.state_dir, host=rebooted)

    with pytest.raises(StoreUnavailable, match="not opened in this boot yet"):
        looked.force("r1", expect_epoch=grant.claim.claim_epoch, reason="test")
    assert store.read("r1") == grant.claim

    opened = FileClaimStore.open(store.state_dir, service=None, host=rebooted)
    fenced = opened.force("r1", expect_epoch=grant.claim.claim_epoch, reason="test")
    assert fenced > floor_of(2)


def test_c7_a_directory_that_cannot_be_made_is_refused_with_a_way_out(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(state_dir))

    monkeypatch.setattr(Path, "mkdir", fail)

    with pytest.raises(StoreRefused, match=r"EROFS.*use a --state-dir that this user may write"):
        FileClaimStore.open(state_dir, service="model")


def test_c1_workers_that_start_together_make_one_store(
    spawn: Callable[..., Any], state_dir: Path
) -> None:
    workers = [spawn() for _ in range(3)]
    taken = [worker.start().ask("take", rollout="r1") for worker in workers]

    assert [sorted(answer) for answer in taken] == [["epoch"], ["moved"], ["moved"]]
    assert format_of(state_dir)["generation"] == 1
