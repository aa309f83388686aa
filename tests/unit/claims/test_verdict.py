# SPDX-License-Identifier: Apache-2.0
"""Alive, dead or unknown: the table, and every row of it made for real (C3)."""

import errno
import fcntl
import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
from support.folders import private_folder

from rollout_router.claims import (
    FileClaimStore,
    Host,
    LifeLock,
    Owner,
    Verdict,
    new_nonce,
)
from rollout_router.claims.record import encode_identity
from rollout_router.claims.verdict import decide

CONNECTS = ["OK", "EAGAIN", "ENOENT", "ECONNREFUSED", "EACCES", "EMFILE", "EPROTOTYPE", "not_tried"]
LIVES = ["held", "free", "missing", "replaced", "EACCES", "EMFILE", "ENOLCK", "not_tried"]
NOBODY = 65534
IN_A_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """One store for all verdicts: each is of another worker."""
    with private_folder() as made:
        (made / "run").mkdir(mode=0o700)
        yield made


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


class Worker(Protocol):
    """A process of ``conftest.py``."""

    owner: Owner
    socket: str
    process: subprocess.Popen[str]

    def start(self, **arguments: Any) -> "Worker": ...
    def ask(self, do: str, **arguments: Any) -> Any: ...
    def give_birth(self, how: str) -> int: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class Scene:
    """Where a situation is made; what it changes for the prober is undone by the stack."""

    store: FileClaimStore
    run_dir: Path
    spawn: Callable[..., Worker]
    stack: ExitStack

    def lock(self, socket_path: str | Path | None = None) -> LifeLock:
        """A worker in this process: a life lock, and nothing at its socket's path."""
        nonce = new_nonce()
        path = str(socket_path or self.run_dir / f"{nonce}.sock")
        lock = LifeLock.acquire(self.store, nonce=nonce, socket=path)
        self.stack.callback(lock.close)
        return lock

    def listen(self, path: str | Path, kind: int = socket.SOCK_STREAM) -> None:
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        listener.bind(str(path))
        if kind == socket.SOCK_STREAM:
            listener.listen()

    def connect(self, path: str) -> None:
        self.stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)

    def file(self, owner: Owner) -> Path:
        return self.store.state_dir / "owners" / owner.nonce

    def rewrite(self, lock: LifeLock, **fields: Any) -> Owner:
        """Other words in the owner file, which stays the same file with the same lock."""
        self.file(lock.owner).write_bytes(encode_identity(replace(lock.identity, **fields)))
        return lock.owner

    def ask_as_nobody(self, *readable: Path) -> None:
        """The prober is another user, who may look into the store and read what is named."""
        if os.geteuid() != 0:
            pytest.skip("becoming another user needs root")
        root = self.store.state_dir
        for path in (root.parent, root, root / "owners", *readable):
            self.stack.callback(path.chmod, path.stat().st_mode & 0o777)
            path.chmod(0o711 if path.is_dir() else 0o644)
        self.stack.callback(os.seteuid, 0)
        os.seteuid(NOBODY)


@pytest.fixture
def scene(store: FileClaimStore, run_dir: Path, spawn: Callable[..., Worker]) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(store=store, run_dir=run_dir, spawn=spawn, stack=stack)


ROWS: list[Any] = []


def row(
    verdict: str, connect: str, life: str, proven: str = "", *, name: str = ""
) -> Callable[[Callable[[Scene], Owner]], Callable[[Scene], Owner]]:
    """One row: what the prober says; *proven*: the life lock alone proves death."""

    def add(make: Callable[[Scene], Owner]) -> Callable[[Scene], Owner]:
        expected = (verdict, connect, life, verdict == "dead" or bool(proven))
        ROWS.append(pytest.param(make, expected, id=name or make.__name__.replace("_", " ")))
        return make

    return add


def become_a_zombie(worker: Worker) -> None:
    worker.process.kill()
    os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(worker.process.pid).status() == psutil.STATUS_ZOMBIE


STARTS: dict[str, dict[str, Any]] = {
    "listen": {"listen": True},
    "bind": {"listen": False},
    "listen to one": {"backlog": 0},
}
STEPS: dict[str, Callable[[Scene, Worker], object]] = {
    "drain": lambda _, worker: worker.ask("stop_listening"),
    "leave": lambda _, worker: worker.ask("leave"),
    "unlink": lambda _, worker: Path(worker.socket).unlink(),
    "fill": lambda scene, worker: scene.connect(worker.socket),
    "bind anew": lambda scene, worker: scene.listen(worker.socket),
    "stop": lambda _, worker: worker.stop(),
    "kill": lambda _, worker: worker.kill(),
    "kill, do not reap": lambda _, worker: become_a_zombie(worker),
    "fork": lambda _, worker: worker.give_birth("os.fork"),
    "fork in C": lambda _, worker: worker.give_birth("fork in C"),
}


def worker_that(scene: Scene, *, did: str) -> Owner:
    start, *steps = did.split("; ")
    worker = scene.spawn().start(**STARTS[start])
    for step in steps:
        STEPS[step](scene, worker)
    return worker.owner


for name, expected, did in (
    ("listens", "alive OK not_tried", "listen"),
    ("is bound but does not listen", "alive ECONNREFUSED held", "bind"),
    ("drains", "alive ECONNREFUSED held", "listen; drain"),
    ("lost its socket file", "alive ENOENT held", "listen; unlink"),
    ("has a full backlog", "alive EAGAIN not_tried", "listen to one; fill"),
    ("is stopped, its backlog full", "alive EAGAIN not_tried", "listen to one; fill; stop"),
    ("was killed, its backlog full", "dead ECONNREFUSED free", "listen to one; fill; kill"),
    ("is stopped", "alive OK not_tried", "listen; stop"),
    ("is stopped without its socket", "alive ENOENT held", "listen; stop; unlink"),
    ("was killed", "dead ECONNREFUSED free", "listen; kill"),
    ("was killed while it was stopped", "dead ECONNREFUSED free", "listen; stop; kill"),
    ("is a zombie", "dead ECONNREFUSED free", "listen; kill, do not reap"),
    ("left", "dead ECONNREFUSED free", "listen; drain; leave"),
    ("has a child", "alive ECONNREFUSED held", "bind; fork"),
    ("was killed, and a child lives", "dead ECONNREFUSED free", "bind; fork; kill"),
    ("was killed, and a child listens", "alive OK not_tried proven", "listen; fork; kill"),
    ("was killed, and a child of C lives", "alive ECONNREFUSED held", "bind; fork in C; kill"),
    ("lost its path to another process", "alive OK not_tried", "bind; unlink; bind anew"),
    ("died after that", "alive OK not_tried proven", "bind; unlink; bind anew; kill"),
):
    row(*expected.split(), name=f"a worker that {name}")(partial(worker_that, did=did))


def in_a_pid_namespace(scene: Scene, *, killed: bool) -> Owner:
    """Its pid there is 1, which in the prober's namespace is another process, and always alive."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root and unshare")
    worker = scene.spawn(prefix=IN_A_PID_NAMESPACE).start(listen=False)
    identity = scene.store.owner(worker.owner.nonce)
    assert identity
    assert identity.pid == 1
    if killed:
        psutil.Process(worker.process.pid).children()[0].kill()
        worker.process.wait()  # unshare has reaped it
    return worker.owner


row("alive", "ECONNREFUSED", "held", name="in another PID namespace")(
    partial(in_a_pid_namespace, killed=False)
)
row("dead", "ECONNREFUSED", "free", name="killed in another PID namespace")(
    partial(in_a_pid_namespace, killed=True)
)


@row("dead", "ENOENT", "free")
def dead_and_its_pid_and_start_time_are_those_of_another_process(scene: Scene) -> Owner:
    lock, now = scene.lock(), psutil.Process(os.getppid())
    owner = scene.rewrite(lock, pid=now.pid, started_at=now.create_time())
    lock.close()
    return owner


@row("alive", "ENOENT", "held")
def alive_though_nobody_has_the_pid_that_it_wrote(scene: Scene) -> Owner:
    return scene.rewrite(scene.lock(), pid=2**22 + 1)


AT_THE_PATH: dict[str, tuple[str, Callable[[Scene, Path], object]]] = {
    "nothing": ("ENOENT", lambda _, __: None),
    "a regular file": ("ECONNREFUSED", lambda _, path: path.touch()),
    "a directory": ("ECONNREFUSED", lambda _, path: path.mkdir()),
    "a FIFO": ("ECONNREFUSED", lambda _, path: os.mkfifo(path)),
    "a dangling link": ("ENOENT", lambda _, path: path.symlink_to("nowhere")),
    "a loop of links": ("ELOOP", lambda _, path: path.symlink_to(path)),
    "a datagram socket": ("EPROTOTYPE", lambda s, path: s.listen(path, socket.SOCK_DGRAM)),
    "a file for a parent": ("ENOTDIR", lambda _, path: path.parent.touch()),
    "no parent": ("ENOENT", lambda _, __: None),
}


def standing_at_the_path(scene: Scene, *, what: str, dead: bool) -> Owner:
    own = scene.run_dir / new_nonce()
    lock = scene.lock(own / "x" if "parent" in what else own)
    AT_THE_PATH[what][1](scene, Path(lock.identity.socket))
    if dead:
        lock.close()
    return lock.owner


for what, (connect, _) in AT_THE_PATH.items():
    for dead in (False, True):
        suspicious = connect in ("ENOENT", "ECONNREFUSED")
        decided = ("dead", connect, "free") if dead else ("alive", connect, "held")
        row(
            *(decided if suspicious else ("unknown", connect, "not_tried")),
            "proven" if dead else "",
            name=f"{'dead' if dead else 'alive'}, {what} at the path",
        )(partial(standing_at_the_path, what=what, dead=dead))


@row("unknown", "EACCES", "not_tried")
def a_socket_that_another_user_may_not_open(scene: Scene) -> Owner:
    lock = scene.lock()
    scene.listen(lock.identity.socket)
    Path(lock.identity.socket).chmod(0o600)
    scene.ask_as_nobody(scene.run_dir, scene.file(lock.owner))
    return lock.owner


@row("unknown", "EACCES", "not_tried", "proven")
def dead_with_a_socket_in_a_directory_of_mode_0700(scene: Scene) -> Owner:
    lock = scene.lock()
    lock.close()
    scene.ask_as_nobody(scene.file(lock.owner))
    return lock.owner


@row("unknown", "not_tried", "EACCES")
def an_owner_file_that_another_user_may_not_read(scene: Scene) -> Owner:
    lock = scene.lock()
    lock.close()
    scene.ask_as_nobody()
    return lock.owner


def of_another_boot(scene: Scene, *, file_system: str) -> Owner:
    """Its life lock is held, but not by anybody whom that kernel knows."""
    lock = scene.lock()
    mountinfo = f"1 0 8:1 / / rw - {file_system} /dev/x rw"
    other = Host(boot_id="another-boot", mountinfo=mountinfo)
    scene.store = FileClaimStore.inspect(scene.store.state_dir, host=other)
    return lock.owner


for file_system, verdict in [("ext4", "dead"), ("nfs4", "unknown"), ("newfs", "unknown")]:
    row(verdict, "not_tried", "not_tried", name=f"of another boot, on {file_system}")(
        partial(of_another_boot, file_system=file_system)
    )


@row("unknown", "ENOENT", "replaced")
def named_by_a_claim_with_another_inode(scene: Scene) -> Owner:
    lock = scene.lock()
    lock.close()
    return replace(lock.owner, inode=lock.owner.inode + 1)


@pytest.mark.parametrize(("situation", "expected"), ROWS)
def test_c3_every_situation_has_its_verdict(
    scene: Scene, situation: Callable[[Scene], Owner], expected: tuple[str, str, str, bool]
) -> None:
    """Its verdict, what socket and life lock said, and whether the lock alone proves death."""
    owner = situation(scene)

    judgement, proof = scene.store.judge(owner), scene.store.proof_of_death(owner)

    found = (judgement.verdict.value, judgement.connect, judgement.life, proof is not None)
    assert found == expected
    assert (judgement.proof is not None) == (judgement.verdict is Verdict.DEAD)
    assert {made.owner for made in (judgement.proof, proof) if made} <= {owner}


def test_c3_many_who_ask_at_one_time_do_not_see_each_other(scene: Scene) -> None:
    lock = scene.lock()
    lock.close()
    with scene.file(lock.owner).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)

        assert scene.store.judge(lock.owner).verdict is Verdict.DEAD


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        pytest.param(0, ["unknown", "not_tried", "EMFILE"], id="none for the owner file"),
        pytest.param(1, ["unknown", "EMFILE", "not_tried"], id="none for the socket"),
    ],
)
def test_c3_a_prober_without_descriptors_knows_nothing(
    store: FileClaimStore, spawn: Callable[..., Worker], left: int, expected: list[str]
) -> None:
    dead, prober = spawn().start(), spawn().start()
    rollout = f"r-{left}"
    dead.ask("take", rollout=rollout)
    dead.kill()
    assert prober.ask("judge_claim", rollout=rollout) == "dead"

    prober.ask("starve", leave=left)
    assert prober.ask("judge_self") == expected
    prober.ask("feed")
    assert prober.ask("judge_self") == ["alive", "OK", "not_tried"]
    assert store.read(rollout)


def test_c3_what_was_found_stands_though_closing_fails(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, close = scene.lock(), os.close

    def fail(fd: int) -> None:
        close(fd)
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fail)
        judgement, proof = scene.store.judge(lock.owner), scene.store.proof_of_death(lock.owner)

    assert (judgement.verdict, proof) == (Verdict.ALIVE, None)
