# SPDX-License-Identifier: Apache-2.0
"""No space, no permission, no descriptors: refused clearly, nothing lost, works again (C7)."""

import errno
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import FileClaimStore, Grant, LifeLock, StoreUnavailable
from rollout_router.claims.names import stripe_of

Spawn = Callable[..., Any]
Live = Callable[[], LifeLock]


@pytest.fixture
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of 2 MiB: an epoch file takes a page of it, and there are 256."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = directory / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(mount)], check=False
    )
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    yield mount
    # Lazy: a test that failed may have left a life lock open in it.
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        sum(filler.write(b"x" * 4096) for _ in itertools.count())


def temporary_files(store: FileClaimStore) -> list[Path]:
    return list(store.state_dir.rglob(".tmp.*"))


def test_c7_on_a_full_disk_nothing_is_lost_and_it_works_again(small_disk: Path) -> None:
    store = FileClaimStore.open(small_disk / "state", service="model")
    life = LifeLock.acquire(store, nonce="first", socket="/run/x.sock")
    grant = store.take("r1", life.owner)
    assert isinstance(grant, Grant)
    fill(small_disk / "filler")

    with pytest.raises(StoreUnavailable, match="ENOSPC; free space") as raised:
        store.take("r2", life.owner)
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(StoreUnavailable, match="ENOSPC"):
        store.take("r1", life.owner)
    with pytest.raises(StoreUnavailable, match="ENOSPC"):
        LifeLock.acquire(store, nonce="second", socket="/run/y.sock")

    assert store.read("r2") is None
    assert store.read("r1") == grant.claim
    assert store.stands(grant)
    assert temporary_files(store) == []
    assert store.owner("second") is None

    (small_disk / "filler").unlink()
    again = store.take("r1", life.owner)
    assert isinstance(again, Grant)
    assert again.claim.claim_epoch > grant.claim.claim_epoch
    assert isinstance(store.take("r2", life.owner), Grant)
    life.close()


def test_c7_a_claim_is_given_back_on_a_full_disk(small_disk: Path) -> None:
    """Unlinking needs no space, so that a full disk does not keep what frees it."""
    store = FileClaimStore.open(small_disk / "state", service="model")
    life = LifeLock.acquire(store, nonce="first", socket="/run/x.sock")
    grant = store.take("r1", life.owner)
    assert isinstance(grant, Grant)
    fill(small_disk / "filler")

    assert store.release(grant)
    life.close()


def test_c7_on_a_disk_that_became_read_only_nothing_is_lost(small_disk: Path) -> None:
    store = FileClaimStore.open(small_disk / "state", service="model")
    life = LifeLock.acquire(store, nonce="first", socket="/run/x.sock")
    grant = store.take("r1", life.owner)
    life.close()
    assert isinstance(grant, Grant)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    for attempt in (lambda: store.take("r2", grant.claim.owner), lambda: store.release(grant)):
        with pytest.raises(StoreUnavailable, match="EROFS"):
            attempt()
    assert store.stands(grant)

    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert store.release(grant)


def test_c7_without_descriptors_nothing_is_lost_and_it_works_again(
    store: FileClaimStore, spawn: Spawn
) -> None:
    worker = spawn().start()
    epoch = worker.ask("take", rollout="r1")["epoch"]
    worker.ask("starve")

    for rollout in ("r1", "r2"):
        worker.tell("take", rollout=rollout)
        assert worker.hear() == {"error": "StoreUnavailable", "errno": errno.EMFILE}
    standing = store.read("r1")
    assert standing
    assert standing.claim_epoch == epoch
    assert store.read("r2") is None
    assert temporary_files(store) == []

    worker.ask("feed")
    assert worker.ask("take", rollout="r1")["epoch"] > epoch


@pytest.mark.parametrize("part", ["locks", "claims", "epochs"])
def test_c7_without_permission_nothing_is_lost_and_it_works_again(
    run_dir: Path, state_dir: Path, spawn: Spawn, part: str
) -> None:
    nobody = 65534
    if os.geteuid() == 0:  # root is refused nothing, so the worker becomes another user
        for path in (run_dir.parent, run_dir):
            os.chown(path, nobody, nobody)
    worker = spawn("nobody").start()
    epoch = worker.ask("take", rollout="r1")["epoch"]
    closed = state_dir / part if part != "claims" else state_dir / part / stripe_of("r1")
    closed.chmod(0)

    worker.tell("take", rollout="r1")
    assert worker.hear() == {"error": "StoreUnavailable", "errno": errno.EACCES}

    closed.chmod(0o700)
    assert worker.ask("take", rollout="r1")["epoch"] > epoch


def test_c7_a_short_write_goes_on_where_it_stopped(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, write = live().owner, os.write
    monkeypatch.setattr(os, "write", lambda fd, raw: write(fd, bytes(raw[:7])))

    grant = store.take("r1", owner)

    assert isinstance(grant, Grant)
    assert store.read("r1") == grant.claim


def test_c7_a_short_epoch_write_grants_nothing(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, pwrite = live().owner, os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda fd, raw, at: pwrite(fd, raw[:7], at))
        with pytest.raises(StoreUnavailable):
            store.take("r1", owner)

    assert store.read("r1") is None


def test_c7_what_cannot_be_looked_at_does_not_stand(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = store.take("r1", live().owner)
    assert isinstance(grant, Grant)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", fail)
        with pytest.raises(StoreUnavailable):
            store.stands(grant)

    assert store.stands(grant)
