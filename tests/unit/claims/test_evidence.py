# SPDX-License-Identifier: Apache-2.0
"""What people see beside a verdict (C3, C5)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rollout_router.claims import (
    FileClaimStore,
    FileFacts,
    LifeLock,
    LockUse,
    command_of,
    file_facts,
    lock_at,
    process_of,
)
from rollout_router.claims import evidence as evidence_module
from rollout_router.claims.evidence import UNSEEN, is_held

Live = Callable[[], LifeLock]
NOBODY = LockUse()


def test_c3_an_owner_that_runs_is_running(live: Live) -> None:
    found = process_of(live().identity, life=NOBODY)
    assert (found.state, found.command) == ("running", command_of(os.getpid()))
    assert found.started_at is not None


def test_c3_a_pid_that_another_process_has_now_is_recycled(live: Live) -> None:
    before = replace(live().identity, started_at=1000.0)
    assert process_of(before, life=NOBODY).state == "recycled"


def test_c3_who_holds_the_life_lock_is_the_owner_whatever_clocks_say(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    life = lock_at(str(store.state_dir / "owners" / lock.owner.nonce))
    assert life == LockUse(holders=(os.getpid(),))
    assert process_of(replace(lock.identity, started_at=1000.0), life=life).state == "running"


def test_c3_a_pid_that_nobody_has_is_gone(live: Live) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    found = process_of(replace(live().identity, pid=ended.pid), life="missing")
    assert (found.state, found.started_at, found.command) == ("gone", None, None)


def test_c3_a_process_that_ended_and_is_not_waited_for_is_gone(live: Live) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    started_at = psutil.Process(ended.pid).create_time()
    identity = replace(live().identity, pid=ended.pid, started_at=started_at)
    assert process_of(identity, life=NOBODY).state == "gone"
    ended.wait()


def test_c3_a_stopped_process_is_said_to_be_stopped(live: Live) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started_at = psutil.Process(child.pid).create_time()
        identity = replace(live().identity, pid=child.pid, started_at=started_at)
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert process_of(identity, life=NOBODY).state == "stopped"
        child.kill()


@pytest.fixture
def unseen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list names nobody, as in another PID namespace."""
    (directory / "locks").touch()
    monkeypatch.setattr(evidence_module, "LOCK_TABLE", str(directory / "locks"))


@pytest.mark.usefixtures("unseen")
def test_c3_a_lock_that_is_held_by_nobody_in_sight_is_said_to_be_held(
    store: FileClaimStore, live: Live
) -> None:
    lock = live()
    path = str(store.state_dir / "owners" / lock.owner.nonce)
    assert lock_at(path) == UNSEEN
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    elsewhere = replace(lock.identity, pid=ended.pid)
    assert process_of(elsewhere, life=UNSEEN).state == "unseen"
    assert process_of(replace(lock.identity, started_at=1000.0), life=UNSEEN).state == "unseen"
    assert process_of(lock.identity, life=UNSEEN).state == "running"
    lock.close()
    assert lock_at(path) == NOBODY


def test_c3_a_lock_is_asked_for_and_given_back(store: FileClaimStore) -> None:
    path = f"{store.state_dir}/locks/07"
    with store.holding_stripe("07"):
        assert is_held(path)
    assert not is_held(path)
    with store.holding_stripe("07"):  # had at once: nothing of the question is left
        assert is_held(path)


def test_c3_a_process_of_another_namespace_has_no_command() -> None:
    assert command_of(0) is None
    assert command_of(-1) is None


def test_c5_bytes_of_a_file_cannot_reach_a_terminal(directory: Path) -> None:
    path = directory / "r.x"
    path.write_bytes(b"\x1b[2J\xff{}  \n")
    facts = file_facts(str(path))
    assert isinstance(facts, FileFacts)
    assert (facts.kind, facts.size_bytes) == ("file", 10)
    assert facts.begins is not None
    assert facts.begins.endswith("\\xff{}")


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize(
    ("make", "kind"),
    [(Path.mkdir, "directory"), (make_link, "symbolic link"), (os.mkfifo, "FIFO")],
)
def test_c5_what_is_no_file_is_seen_and_not_read(
    directory: Path, make: Callable[[Path], None], kind: str
) -> None:
    make(directory / "r.x")
    facts = file_facts(str(directory / "r.x"))
    assert isinstance(facts, FileFacts)
    assert (facts.kind, facts.begins) == (kind, None)


@pytest.mark.parametrize("make", [Path.mkdir, make_link, os.mkfifo, lambda _: None])
def test_c5_what_is_no_file_holds_no_lock(directory: Path, make: Callable[[Path], object]) -> None:
    make(directory / "lock")
    assert not is_held(str(directory / "lock"))


def test_c5_a_file_that_is_not_there_is_missing(directory: Path) -> None:
    assert file_facts(str(directory / "r.x")) == "missing"
