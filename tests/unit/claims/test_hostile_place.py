# SPDX-License-Identifier: Apache-2.0
"""Places where a store may not be: each refusal says what to do, and changes nothing (C1, C3).

Wrong modes, another user, missing or strange parts, a read-only mount, file systems that others
may write. Where it can be, the refusal is asked for under a new boot id: then an opening that
went too far would have raised the generation.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import (
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    Moved,
    StoreRefused,
    StoreUnavailable,
    Verdict,
    repair,
)

Live = Callable[[], LifeLock]
Spawn = Callable[..., Any]
Tree = Callable[[Path], dict[str, Any]]
PARTS = ("locks", "owners", "epochs", "claims")
REBOOTED = replace(Host.here(), boot_id="another-boot")
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")


@pytest.fixture
def as_nobody() -> tuple[str, ...]:
    """What runs a command as an unprivileged user."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("becoming another user needs root and setpriv")
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    probe = [*prefix, sys.executable, "-c", "import rollout_router.claims"]
    if subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("an unprivileged user may not read this Python or the product")
    return prefix


def on(file_system: str, boot_id: str = "boot") -> Host:
    return Host(boot_id=boot_id, mountinfo=f"1 0 8:1 / / rw - {file_system} /dev/x rw")


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
@pytest.mark.parametrize("part", [".", *PARTS])
def test_c1_each_part_that_is_open_to_others_is_refused_by_name(
    store: FileClaimStore, tree: Tree, part: str, mode: int
) -> None:
    path = store.state_dir / part
    path.chmod(mode)
    before = tree(store.state_dir)

    for service in ("model", None):
        with pytest.raises(StoreRefused, match=rf"mode {mode:04o}.*chmod 700 {path}$"):
            FileClaimStore.open(store.state_dir, service=service, host=REBOOTED)

    assert tree(store.state_dir) == before
    path.chmod(0o700)
    assert FileClaimStore.open(store.state_dir, service="model").store_id == store.store_id


@as_root
@pytest.mark.parametrize("part", [".", *PARTS])
def test_c1_each_part_of_another_user_is_refused_by_name(
    store: FileClaimStore, tree: Tree, part: str
) -> None:
    path = store.state_dir / part
    os.chown(path, NOBODY, NOBODY)
    before = tree(store.state_dir)

    with pytest.raises(
        StoreRefused, match=rf"{path} belongs to user {NOBODY}, this process is 0: run as that user"
    ):
        FileClaimStore.open(store.state_dir, service="model", host=REBOOTED)

    assert tree(store.state_dir) == before


@pytest.mark.parametrize("part", [part for part in PARTS if part != "owners"])
def test_c1_a_part_that_is_missing_is_refused_until_it_is_repaired(
    store: FileClaimStore, live: Live, tree: Tree, part: str
) -> None:
    worker = live()
    grant = store.take("r1", worker.owner)
    assert isinstance(grant, Grant)
    assert store.release(grant)
    worker.close()
    (store.state_dir / part).rename(store.state_dir.with_name("away"))
    before = tree(store.state_dir)

    with pytest.raises(StoreRefused, match=rf"lacks {part}: stop all .*claims verify --repair"):
        FileClaimStore.open(store.state_dir, service="model", host=REBOOTED)
    assert tree(store.state_dir) == before

    repair(FileClaimStore.open(store.state_dir, service=None))
    again = FileClaimStore.open(store.state_dir, service="model")
    second = again.take("r1", live().owner)
    assert isinstance(second, Grant)
    assert second.claim.claim_epoch > grant.claim.claim_epoch


def test_c3_a_directory_of_owner_files_that_is_missing_is_made_anew(
    store: FileClaimStore, live: Live
) -> None:
    """Claims of before stay whose they are: nobody can prove their owner dead."""
    old = live()
    grant = store.take("r1", old.owner)
    assert isinstance(grant, Grant)
    (store.state_dir / "owners").rename(store.state_dir.with_name("away"))

    again = FileClaimStore.open(store.state_dir, service="model")

    assert again.judge(old.owner).verdict is Verdict.UNKNOWN
    assert isinstance(again.take("r1", live().owner), Moved)
    assert isinstance(again.take("r2", live().owner), Grant)


@pytest.mark.parametrize("stands", ["file", "link", "loop"])
@pytest.mark.parametrize("part", PARTS)
def test_c1_a_part_that_is_no_directory_is_refused_by_name(
    store: FileClaimStore, tree: Tree, part: str, stands: str
) -> None:
    path, away = store.state_dir / part, store.state_dir.with_name("away")
    path.rename(away)
    if stands == "file":
        path.touch()
    else:
        path.symlink_to(away if stands == "link" else path)
    before = tree(store.state_dir.parent)

    with pytest.raises(StoreRefused, match=rf"{path} is not a directory: move it away"):
        FileClaimStore.open(store.state_dir, service="model", host=REBOOTED)

    assert tree(store.state_dir.parent) == before


NETWORK = ["nfs", "nfs4", "cifs", "smb3", "fuse", "fuse.sshfs", "9p", "virtiofs", "newfs"]


@pytest.mark.parametrize("kind", NETWORK)
def test_c1_a_file_system_that_others_may_write_is_refused_before_anything_is_made(
    store: FileClaimStore, tree: Tree, kind: str
) -> None:
    before = tree(store.state_dir.parent)

    for path in (store.state_dir, store.state_dir.with_name("new")):
        with pytest.raises(StoreRefused, match=rf"\({kind}\).*--allow-network-fs$"):
            FileClaimStore.open(path, service="model", host=on(kind))

    assert tree(store.state_dir.parent) == before


def test_c3_where_others_may_write_another_boot_id_proves_nothing(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    for kind in NETWORK:
        allowed = FileClaimStore.open(
            store.state_dir, service="model", host=on(kind, "other"), allow_network_fs=True
        )

        assert allowed.judge(owner).verdict is Verdict.UNKNOWN, kind
        assert allowed.proof_of_death(owner) is None, kind


def test_c3_where_no_mount_is_known_nothing_is_local(directory: Path) -> None:
    nowhere = Host(boot_id="boot", mountinfo="")

    with pytest.raises(StoreRefused, match=r"\(unknown\)"):
        FileClaimStore.open(directory / "state", service="model", host=nowhere)
    assert not (directory / "state").exists()


def test_c1_a_store_with_another_count_of_stripes_or_service_is_refused_and_unchanged(
    state_dir: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rollout_router.claims.creation.STRIPES", 16)
        FileClaimStore.open(state_dir, service="model")
    before = tree(state_dir)

    for service in ("model", None):
        with pytest.raises(StoreRefused, match=r"16 stripes.*use another directory"):
            FileClaimStore.open(state_dir, service=service, host=REBOOTED)
    assert tree(state_dir) == before


def test_c1_a_store_of_another_service_is_refused_and_unchanged(
    store: FileClaimStore, tree: Tree
) -> None:
    before = tree(store.state_dir)

    with pytest.raises(StoreRefused, match=r"'model', not of 'agent'.*--state-dir of its own"):
        FileClaimStore.open(store.state_dir, service="agent", host=REBOOTED)

    assert tree(store.state_dir) == before


@pytest.fixture
def mount(directory: Path) -> Iterator[Path]:
    """A file system of its own, which can be made read-only."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    path = directory / "mount"
    path.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", str(path)],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("mounting is not allowed here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_c7_on_a_read_only_mount_a_store_is_refused_to_workers_and_shown_to_people(
    mount: Path, tree: Tree
) -> None:
    store = FileClaimStore.open(mount / "state", service="model")
    dead = LifeLock.acquire(store, nonce="dead", socket=f"{mount}/dead.sock")
    grant = store.take("r1", dead.owner)
    assert isinstance(grant, Grant)
    dead.close()
    subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
    before = tree(mount)

    for path in (mount / "state", mount / "new"):
        for host in (None, REBOOTED):
            with pytest.raises(StoreRefused, match=r"EROFS"):
                FileClaimStore.open(path, service="model", host=host)
    with pytest.raises(StoreRefused, match=r"EROFS; mount the file system .* for writing"):
        FileClaimStore.open(mount / "state", service=None)
    looked = FileClaimStore.inspect(mount / "state")
    assert list(looked.survey()) == [grant.claim]
    assert looked.judge(dead.owner).verdict is Verdict.DEAD
    assert looked.stands(grant)
    for attempt in (
        lambda: looked.take("r2", dead.owner),
        lambda: looked.release(grant),
        lambda: looked.force("r1", expect_epoch=grant.claim.claim_epoch, reason="test"),
        lambda: LifeLock.acquire(store, nonce="next", socket="/run/next.sock"),
    ):
        with pytest.raises(StoreUnavailable, match=r"EROFS; mount the file system .* for writing"):
            attempt()
    assert tree(mount) == before


OPENS = """
import sys
from pathlib import Path
from rollout_router.claims import FileClaimStore, StoreRefused
for open in (lambda p: FileClaimStore.open(p, service="model"), FileClaimStore.inspect):
    try:
        open(Path(sys.argv[1]))
    except StoreRefused as error:
        print(error)
"""


def test_c1_the_store_of_another_user_is_refused_to_an_unprivileged_one(
    store: FileClaimStore, tree: Tree, as_nobody: tuple[str, ...]
) -> None:
    root = store.state_dir
    root.parent.chmod(0o755)
    before = tree(root)

    said = subprocess.run(
        [*as_nobody, sys.executable, "-c", OPENS, str(root)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()

    to_work, to_look = said
    assert to_work == (
        f"{root} belongs to user 0, this process is {NOBODY}: run as that user, "
        "or use another --state-dir"
    )
    assert to_look == (
        f"{root} cannot be opened: Permission denied (EACCES, {root}/FORMAT): "
        "use a --state-dir that this user may write"
    )
    assert tree(root) == before


def test_c1_an_unprivileged_user_has_a_whole_store_of_its_own(
    state_dir: Path, run_dir: Path, spawn: Spawn, as_nobody: tuple[str, ...]
) -> None:
    for path in (state_dir.parent, run_dir):
        os.chown(path, NOBODY, NOBODY)
    first, second = (spawn(prefix=as_nobody).start() for _ in range(2))

    epoch = first.ask("take", rollout="r1")["epoch"]
    assert second.ask("take", rollout="r1") == {"moved": first.owner.nonce}
    assert second.ask("judge_claim", rollout="r1") == "alive"
    first.kill()
    assert second.ask("prepare", rollout="r1")
    assert second.ask("take_over")["epoch"] > epoch
    assert {path.stat().st_uid for path in (state_dir, *state_dir.rglob("*"))} == {NOBODY}
