# SPDX-License-Identifier: Apache-2.0
"""Alive, dead or unknown: the table, and every row of it made for real (C3)."""

import itertools
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout_router.claims import FileClaimStore, Grant, Host, LifeLock, Owner, Verdict
from rollout_router.claims.verdict import decide, probe_socket

Spawn = Callable[..., Any]
Live = Callable[[], LifeLock]

CONNECTS = ["OK", "EAGAIN", "ENOENT", "ECONNREFUSED", "EACCES", "EMFILE", "EPROTOTYPE", "not_tried"]
LIVES = ["held", "free", "missing", "replaced", "EACCES", "EMFILE", "ENOLCK", "not_tried"]


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """One store for all verdicts: each is of another worker."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as made:  # noqa: S108 - a private directory in it
        (Path(made) / "run").mkdir(mode=0o700)
        yield Path(made)


@pytest.fixture
def state_dir(directory: Path) -> Path:
    return directory / "state"


@pytest.fixture
def run_dir(directory: Path) -> Path:
    return directory / "run"


def dead_pairs() -> set[tuple[str, str]]:
    return {
        (connect, life)
        for connect, life in itertools.product(CONNECTS, LIVES)
        if decide(other_boot=False, local=True, connect=connect, life=life)[0] is Verdict.DEAD
    }


def test_c3_only_a_free_life_lock_is_death() -> None:
    assert dead_pairs() == {("ENOENT", "free"), ("ECONNREFUSED", "free"), ("not_tried", "free")}


@pytest.mark.parametrize("connect", ["EACCES", "EMFILE", "EPROTOTYPE", "ELOOP", "ENOTDIR"])
def test_c3_a_socket_that_cannot_be_asked_is_unknown(connect: str) -> None:
    for life in LIVES:
        found, _ = decide(other_boot=False, local=True, connect=connect, life=life)
        assert found is Verdict.UNKNOWN


def test_c3_another_boot_is_death_on_a_local_file_system_alone() -> None:
    for connect, life in itertools.product(CONNECTS, LIVES):
        local, _ = decide(other_boot=True, local=True, connect=connect, life=life)
        shared, _ = decide(other_boot=True, local=False, connect=connect, life=life)
        assert (local, shared) == (Verdict.DEAD, Verdict.UNKNOWN)


def judged(store: FileClaimStore, owner: Owner) -> tuple[str, str, str]:
    judgement = store.judge(owner)
    assert (judgement.proof is not None) == (judgement.verdict is Verdict.DEAD)
    if judgement.proof:
        assert judgement.proof.owner == owner
    return judgement.verdict.value, judgement.connect, judgement.life


def test_c3_a_listening_worker_is_alive(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start()

    assert judged(store, worker.owner) == ("alive", "OK", "not_tried")
    assert store.proof_of_death(worker.owner) is None


def test_c3_a_worker_that_is_bound_but_not_listening_is_alive(
    store: FileClaimStore, spawn: Spawn
) -> None:
    worker = spawn().start(listen=False)

    assert judged(store, worker.owner) == ("alive", "ECONNREFUSED", "held")


def test_c3_a_worker_that_drains_is_alive(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start()
    worker.ask("stop_listening")

    assert judged(store, worker.owner) == ("alive", "ECONNREFUSED", "held")


def test_c3_a_worker_whose_socket_was_cleaned_away_is_alive(
    store: FileClaimStore, spawn: Spawn
) -> None:
    worker = spawn().start()
    Path(worker.socket).unlink()

    assert judged(store, worker.owner) == ("alive", "ENOENT", "held")


def test_c3_a_worker_with_a_full_backlog_is_alive(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start(backlog=0)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(worker.socket)

        assert judged(store, worker.owner) == ("alive", "EAGAIN", "not_tried")


def test_c3_a_stopped_worker_is_alive(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start()
    worker.stop()

    assert judged(store, worker.owner) == ("alive", "OK", "not_tried")
    Path(worker.socket).unlink()
    assert judged(store, worker.owner) == ("alive", "ENOENT", "held")
    assert store.proof_of_death(worker.owner) is None


def test_c3_a_killed_worker_is_dead(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start()
    worker.kill()

    assert judged(store, worker.owner) == ("dead", "ECONNREFUSED", "free")
    assert store.proof_of_death(worker.owner)


def test_c3_a_worker_that_left_is_dead(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start()
    worker.ask("stop_listening")
    worker.ask("leave")

    assert judged(store, worker.owner) == ("dead", "ECONNREFUSED", "free")


def test_c3_a_forked_child_does_not_keep_its_dead_parent_alive(
    store: FileClaimStore, spawn: Spawn
) -> None:
    """The child holds the listener open, so the socket answers; the life lock knows better."""
    worker = spawn().start()
    worker.fork()
    worker.kill()

    assert judged(store, worker.owner) == ("alive", "OK", "not_tried")
    assert store.proof_of_death(worker.owner)


def test_c3_a_fork_does_not_give_the_parents_lock_back(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start(listen=False)
    worker.fork()
    os.kill(worker.children[0], 9)
    worker.children.clear()

    assert judged(store, worker.owner) == ("alive", "ECONNREFUSED", "held")


@pytest.mark.parametrize("stands", ["file", "directory"])
def test_c3_what_is_no_socket_at_the_path_makes_us_ask(
    store: FileClaimStore, live: Live, stands: str
) -> None:
    lock = live()
    path = Path(lock.identity.socket)
    path.touch() if stands == "file" else path.mkdir()

    assert judged(store, lock.owner) == ("alive", "ECONNREFUSED", "held")
    lock.close()
    assert judged(store, lock.owner) == ("dead", "ECONNREFUSED", "free")


def test_c3_a_missing_owner_file_is_unknown(store: FileClaimStore, spawn: Spawn) -> None:
    worker = spawn().start()
    worker.kill()
    (store.state_dir / "owners" / worker.owner.nonce).unlink()

    assert judged(store, worker.owner) == ("unknown", "not_tried", "missing")
    assert store.proof_of_death(worker.owner) is None


def test_c3_a_replaced_owner_file_is_unknown(store: FileClaimStore, live: Live) -> None:
    """A copy of the file is not the file: a live worker does not hold its lock."""
    lock = live()
    path = store.state_dir / "owners" / lock.owner.nonce
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)

    assert judged(store, lock.owner) == ("unknown", "ENOENT", "replaced")
    assert store.proof_of_death(lock.owner) is None


@pytest.mark.parametrize("made", ["fifo", "link", "directory"])
def test_c3_what_is_no_file_in_the_place_of_the_owner_file_is_unknown(
    store: FileClaimStore, live: Live, made: str
) -> None:
    lock = live()
    path = store.state_dir / "owners" / lock.owner.nonce
    path.rename(path.with_name("kept"))
    if made == "fifo":
        os.mkfifo(path)
    elif made == "link":
        path.symlink_to("kept")
    else:
        path.mkdir()

    assert judged(store, lock.owner) == ("unknown", "not_tried", "replaced")


def test_c3_an_owner_file_with_damaged_bytes_still_answers_by_its_lock(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    (store.state_dir / "owners" / lock.owner.nonce).write_bytes(b"\0" * 64)

    assert judged(store, lock.owner) == ("alive", "not_tried", "held")
    lock.close()
    assert judged(store, lock.owner) == ("dead", "not_tried", "free")


@pytest.mark.parametrize("local", [True, False])
def test_c3_the_workers_of_an_earlier_boot_are_dead_where_the_disk_is_local(
    store: FileClaimStore, live: Live, *, local: bool
) -> None:
    lock = live()
    mountinfo = "1 0 8:1 / / rw - {} /dev/x rw".format("ext4" if local else "nfs4")
    rebooted = FileClaimStore.open(
        store.state_dir,
        service="model",
        host=Host(boot_id="another-boot", mountinfo=mountinfo),
        allow_network_fs=True,
    )

    expected = "dead" if local else "unknown"
    assert judged(rebooted, lock.owner) == (expected, "not_tried", "not_tried")
    assert (rebooted.proof_of_death(lock.owner) is not None) == local


def test_c3_many_who_ask_at_one_time_do_not_see_each_other(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    lock.close()
    path = store.state_dir / "owners" / lock.owner.nonce
    with path.open("rb") as other:
        import fcntl  # noqa: PLC0415 - another prober, at this very moment

        fcntl.flock(other, fcntl.LOCK_SH)

        assert judged(store, lock.owner) == ("dead", "ENOENT", "free")


def test_c3_a_prober_without_descriptors_knows_nothing(store: FileClaimStore, spawn: Spawn) -> None:
    dead, prober = spawn().start(), spawn().start()
    dead.ask("take", rollout="r1")
    dead.kill()
    assert prober.ask("judge_claim", rollout="r1") == "dead"

    prober.ask("starve")
    assert prober.ask("judge_self") == ["unknown", "not_tried", "EMFILE"]
    prober.ask("feed")
    assert prober.ask("judge_self") == ["alive", "OK", "not_tried"]
    assert store.read("r1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing", "ENOENT"),
        ("missing/parent", "ENOENT"),
        ("file", "ECONNREFUSED"),
        ("file/below", "ENOTDIR"),
        ("loop", "ELOOP"),
        ("datagram", "EPROTOTYPE"),
        ("x" * 108, "ENAMETOOLONG"),
        ("nul\0", "EINVAL"),
    ],
)
def test_c3_every_answer_of_a_socket_has_its_name(run_dir: Path, path: str, expected: str) -> None:
    (run_dir / "file").touch()
    (run_dir / "loop").unlink(missing_ok=True)
    (run_dir / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
        (run_dir / "datagram").unlink(missing_ok=True)
        datagram.bind(f"{run_dir}/datagram")

        assert probe_socket(f"{run_dir}/{path}") == expected


def test_c3_a_live_owner_is_not_proven_dead_by_its_claim(store: FileClaimStore, live: Live) -> None:
    lock = live()
    grant = store.take("r2", lock.owner)
    assert isinstance(grant, Grant)

    assert judged(store, grant.claim.owner) == ("alive", "ENOENT", "held")
    other = replace(grant.claim.owner, inode=lock.owner.inode + 1)
    assert judged(store, other) == ("unknown", "ENOENT", "replaced")
