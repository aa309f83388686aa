# SPDX-License-Identifier: Apache-2.0
"""The lock for life (C3)."""

import errno
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from rollout_router.claims import FileClaimStore, LifeLock, StoreUnavailable, Verdict, new_nonce
from rollout_router.claims.disk import read_capped
from rollout_router.claims.record import decode_identity

Live = Callable[[], LifeLock]
Spawn = Callable[..., Any]


def test_c3_a_worker_writes_down_who_it_is(store: FileClaimStore, live: Live) -> None:
    lock = live()
    path = store.state_dir / "owners" / lock.owner.nonce

    assert decode_identity(read_capped(str(path))) == lock.identity
    assert path.stat().st_ino == lock.owner.inode
    assert path.stat().st_mode & 0o777 == 0o600
    assert (lock.identity.pid, lock.identity.service) == (os.getpid(), "model")
    assert lock.identity.boot_id == store.boot_id
    assert lock.intact()


def test_c3_the_file_is_locked_before_it_has_its_name(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    rename = Path.rename

    def look(path: Path, target: Path) -> Path:
        with pytest.raises(BlockingIOError):
            lock_shared(path)
        seen.append(decode_identity(path.read_bytes()).nonce)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", look)
    nonce = new_nonce()
    LifeLock.acquire(store, nonce=nonce, socket="/run/x.sock").close()

    assert seen == [nonce]


def lock_shared(path: Path) -> None:
    import fcntl  # noqa: PLC0415 - the test's own view of the kernel

    with path.open("rb") as probe:
        fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_c3_a_closed_lock_is_death_and_leaves_the_file(store: FileClaimStore, live: Live) -> None:
    lock = live()
    lock.close()
    lock.close()

    assert not lock.intact()
    assert store.owner(lock.owner.nonce) == lock.identity
    assert store.proof_of_death(lock.owner)


def test_c3_a_lock_that_is_told_to_takes_its_file_with_it(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    lock.close(remove=True)

    assert store.owner(lock.owner.nonce) is None


def test_c3_a_lock_never_removes_another_file(store: FileClaimStore, live: Live) -> None:
    lock = live()
    path = store.state_dir / "owners" / lock.owner.nonce
    path.unlink()
    path.write_bytes(b"another")

    assert not lock.intact()
    lock.close(remove=True)
    assert path.read_bytes() == b"another"


def test_c3_a_worker_notices_that_its_file_is_gone(store: FileClaimStore, live: Live) -> None:
    lock = live()
    (store.state_dir / "owners" / lock.owner.nonce).unlink()

    assert not lock.intact()


def test_c3_a_nonce_is_used_once(store: FileClaimStore, live: Live) -> None:
    lock = live()

    with pytest.raises(StoreUnavailable) as raised:
        LifeLock.acquire(store, nonce=lock.owner.nonce, socket="/run/x.sock")

    assert raised.value.errno == errno.EEXIST
    assert lock.intact()
    owners = store.state_dir / "owners"
    assert list(owners.iterdir()) == [owners / lock.owner.nonce]


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_c7_an_owner_file_that_cannot_be_written_leaves_nothing(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fail)
        with pytest.raises(StoreUnavailable, match="ENOSPC; free space"):
            LifeLock.acquire(store, nonce=new_nonce(), socket="/run/x.sock")

    assert list((store.state_dir / "owners").iterdir()) == []
    LifeLock.acquire(store, nonce=new_nonce(), socket="/run/x.sock").close()


@pytest.mark.parametrize(
    ("nonce", "socket"),
    [
        pytest.param("../x", "/run/x", id="a path as nonce"),
        pytest.param("a" * 33, "/run/x", id="a long nonce"),
        pytest.param("a", "/" + "x" * 107, id="108 bytes"),
        pytest.param("a", "/" + "é" * 54, id="109 bytes of 55 characters"),
        pytest.param("a", "", id="no path"),
        pytest.param("a", "/run/\0", id="a NUL"),
    ],
)
def test_c3_names_that_no_prober_could_use_are_refused(
    store: FileClaimStore, nonce: str, socket: str
) -> None:
    with pytest.raises(ValueError, match=r"nonce|socket path"):
        LifeLock.acquire(store, nonce=nonce, socket=socket)


@pytest.mark.parametrize(
    "how",
    [
        "os.fork",
        "multiprocessing fork",
        "multiprocessing spawn",
        "multiprocessing forkserver",
        "subprocess",
        "os.system",
        "os.posix_spawn",
    ],
)
def test_c3_no_child_that_outlives_a_worker_keeps_it_alive(
    store: FileClaimStore, spawn: Spawn, how: str
) -> None:
    worker = spawn().start(listen=False)
    child = worker.give_birth(how)
    assert store.judge(worker.owner).life == "held"

    worker.kill()

    judgement = store.judge(worker.owner)
    assert (judgement.verdict, judgement.life) == (Verdict.DEAD, "free")
    assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("how", ["fork in C", "given the lock"])
def test_c3_a_child_that_no_hook_of_python_saw_keeps_the_lock_as_long_as_it_lives(
    store: FileClaimStore, spawn: Spawn, how: str
) -> None:
    """The safe side: such a child may still do the worker's work. Its claims wait for its end."""
    worker = spawn().start(listen=False)
    child = worker.give_birth(how)
    worker.kill()

    assert store.judge(worker.owner).verdict is Verdict.ALIVE
    assert store.proof_of_death(worker.owner) is None

    end = os.pidfd_open(child)
    os.kill(worker.children.pop(), signal.SIGKILL)
    assert select.select([end], [], [], 60)[0]
    os.close(end)
    assert store.judge(worker.owner).verdict is Verdict.DEAD


def test_c3_the_end_of_a_child_does_not_give_the_lock_of_its_parent_back(
    store: FileClaimStore, spawn: Spawn
) -> None:
    worker = spawn().start(listen=False)
    child = worker.give_birth("os.fork")
    end = os.pidfd_open(child)
    os.kill(worker.children.pop(), signal.SIGKILL)
    assert select.select([end], [], [], 60)[0]
    os.close(end)

    assert store.judge(worker.owner).life == "held"


def test_c3_a_forked_child_holds_no_lock_and_the_parent_still_does(live: Live) -> None:
    lock = live()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing here may raise into pytest
        os.write(writer, b"1" if lock.intact() else b"0")
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reader, 1) == b"0"
    assert lock.intact()
    os.close(reader)
    os.close(writer)
