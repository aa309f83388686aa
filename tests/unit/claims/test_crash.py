# SPDX-License-Identifier: Apache-2.0
"""A worker that is killed before any one of its calls leaves a legal store (C1, C2, C3, C5).

Two ways to kill: at a named fault point, which is everywhere and cheap; and by strace, where that
may be used, before the system call itself. What a legal store is, :func:`support.steps.settle`
asserts. Errors that the kernel itself gives are here too, for strace injects them (C7).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.steps import NEIGHBOUR, OPERATIONS, READS, Scene, new_worker, settle, swept

from rollout_router.claims import (
    FileClaimStore,
    Grant,
    Host,
    LifeLock,
    Owner,
    new_nonce,
    repair,
    stripe_of,
)
from rollout_router.claims.epochs import generation_of
from rollout_router.claims.layout import read_format

PROGRAM = Path(__file__).with_name("step_process.py")
KILLED = {"ended": -signal.SIGKILL}
RENAME, UNLINK = "?rename,?renameat,?renameat2", "?unlink,?unlinkat"
TRACED_READS = "?stat,?lstat,?fstat,?newfstatat,?getdents64,read,lseek"
TRACED_WRITES = "?open,openat,write,pwrite64,close,fsync,?mkdir,?mkdirat,flock"
TRACED = f"{TRACED_READS},{TRACED_WRITES},{RENAME},{UNLINK}"
NEXT_BOOT = "the next boot"
Mortals = Callable[..., Iterator[dict[str, Any]]]
Traced = Callable[..., tuple[dict[str, Any], ...]]
Examine = Callable[[str, dict[str, Any]], None]


@pytest.fixture
def mortals(state_dir: Path, run_dir: Path) -> Iterator[Mortals]:
    """Starts one worker a call in ``step_process.py``; yields what it says, to its end."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdin
        assert process.stdout
        requests, answers = process.stdin, process.stdout

        def run(
            operation: str, state_dir: Path = state_dir, **how: Any
        ) -> Iterator[dict[str, Any]]:
            how |= {"operation": operation, "state_dir": str(state_dir), "run_dir": str(run_dir)}
            requests.write(json.dumps(how) + "\n")
            requests.flush()
            answer: dict[str, Any] = {}
            while "ended" not in answer:
                answer = json.loads(answers.readline())
                yield answer

        yield run
        process.stdin.close()


@pytest.fixture
def neighbour(store: FileClaimStore, run_dir: Path) -> Iterator[Grant]:
    life = new_worker(store, run_dir)
    grant = store.take(NEIGHBOUR, life.owner)
    assert isinstance(grant, Grant)
    yield grant
    life.close()


@pytest.fixture
def survivor(store: FileClaimStore, run_dir: Path, neighbour: Grant) -> Iterator[LifeLock]:
    del neighbour  # there before the first kill
    life = new_worker(store, run_dir)
    yield life
    life.close()


def points(names: list[str], *, every: bool, reads: Collection[str] = READS) -> list[int]:
    """The numbers of the calls to die before: all, or all that find another disk or lock."""
    before = ["", *names[:-1]]
    return [n for n, name in enumerate(before, start=1) if every or name not in reads]


def some(names: list[str], *, step: int) -> list[int]:
    """Both ends, and between them every *step*-th call: a prime, to meet each kind of them."""
    last = len(names)
    return sorted({*range(1, 9), *range(9, last, step), *range(last - 15, last + 1)})


def usable(store: FileClaimStore, *, above: int) -> int:
    """A worker comes, takes a rollout, leaves; the sweep leaves nothing. The epoch it was given."""
    life = LifeLock.acquire(store, nonce=new_nonce(), socket="/run/x.sock")
    grant = store.take("r1", life.owner)
    assert isinstance(grant, Grant)
    assert grant.claim.claim_epoch > above
    assert store.release(grant)
    life.close()
    assert swept(store).owners == (life.owner.nonce,)
    assert list(store.state_dir.rglob(".tmp.*")) == []
    return grant.claim.claim_epoch


@pytest.fixture
def examine(state_dir: Path, run_dir: Path, survivor: LifeLock, neighbour: Grant) -> Examine:
    """The store after a kill: as before or as after, and fit to go on."""
    highest = 0

    def of(operation: str, victim: dict[str, Any]) -> None:
        nonlocal highest
        store = FileClaimStore.open(state_dir, service="model")
        left = Scene(store=store, run_dir=run_dir, owner=Owner(**victim["owner"]))
        legal = [OPERATIONS[operation].standing(done=done) for done in (False, True)]
        for rollout_id in legal[0]:
            assert left.standing(rollout_id) in {each[rollout_id] for each in legal}
        highest = max(highest, victim["highest"])
        scene = Scene(store=store, run_dir=run_dir, owner=survivor.owner, highest=highest)
        settle(scene)
        assert store.stands(neighbour)
        highest = scene.highest

    return of


LONG = [pytest.mark.long, pytest.mark.timeout(1200)]
EVERYDAY_AND_LONG = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=LONG)], ids=["some", "every"]
)


@EVERYDAY_AND_LONG
@pytest.mark.parametrize("operation", OPERATIONS)
def test_c1_c2_c5_a_worker_killed_before_any_call_leaves_a_legal_store(
    mortals: Mortals, examine: Examine, operation: str, *, every: bool
) -> None:
    victim, whole, ended = mortals(operation, at=0)
    assert ended == {"ended": 0}
    examine(operation, victim)
    for at in points(whole["done"], every=every):
        victim, ended = mortals(operation, at=at)
        assert ended == KILLED
        examine(operation, victim)


@EVERYDAY_AND_LONG
def test_c2_a_store_whose_making_was_killed_is_made_by_the_next(
    mortals: Mortals, directory: Path, *, every: bool
) -> None:
    _, whole, _ = mortals("open", directory / "whole", at=0)
    for at in some(whole["done"], step=7 if every else 907):
        _, ended = mortals("open", directory / "killed", at=at)
        assert ended == KILLED
        usable(FileClaimStore.open(directory / "killed", service="model"), above=0)
        shutil.rmtree(directory / "killed")


@EVERYDAY_AND_LONG
def test_c2_a_generation_is_raised_by_the_next_when_who_raised_it_was_killed(
    mortals: Mortals, state_dir: Path, store: FileClaimStore, *, every: bool
) -> None:
    boot = Host(boot_id=NEXT_BOOT, mountinfo=Host.here().mountinfo)
    highest = usable(store, above=0)
    first = (state_dir / "FORMAT").read_bytes()
    _, whole, _ = mortals("boot", at=0)
    names = whole["done"]  # most of them read one of the 256 epoch files
    for at in points(names, every=True) if every else some(names, step=293):
        (state_dir / "FORMAT").write_bytes(first)
        _, ended = mortals("boot", at=at)
        assert ended == KILLED
        after = FileClaimStore.open(state_dir, service="model", host=boot)
        # The older FORMAT lies beside epochs of later generations from the second round on.
        assert read_format(state_dir).generation == max(1, generation_of(highest)) + 1
        highest = usable(after, above=max(highest, 2 << 32))


@EVERYDAY_AND_LONG
def test_c2_a_repair_that_was_killed_is_finished_by_the_next(
    mortals: Mortals, state_dir: Path, store: FileClaimStore, *, every: bool
) -> None:
    def damage() -> None:
        (state_dir / "epochs" / stripe_of("r1")).write_bytes(b"damaged")
        (state_dir / "claims" / "00").rmdir()

    highest = usable(store, above=0)
    damage()
    _, whole, _ = mortals("repair", at=0)
    for at in some(whole["done"], step=7 if every else 907):
        highest = usable(store, above=highest)
        damage()
        _, ended = mortals("repair", at=at)
        assert ended == KILLED
        repair(store)


@pytest.fixture(scope="module")
def trace() -> Callable[..., subprocess.Popen[str]]:
    """Attaches strace to a process."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    probe = ["strace", "-o", "/dev/null", "-e", "inject=getpid:signal=SIGKILL", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")

    def attach(pid: int, log: Path, *inject: str) -> subprocess.Popen[str]:
        options = [option for each in inject for option in ("-e", f"inject={each}")]
        tracer = subprocess.Popen(
            ["strace", "-p", str(pid), "-o", str(log), "-e", f"trace={TRACED}", *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tracer.stderr
        assert "attached" in tracer.stderr.readline()
        return tracer

    return attach


@pytest.fixture
def traced(mortals: Mortals, trace: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Traced:
    """Does an operation under strace; what its process said."""

    def run(operation: str, *inject: str) -> tuple[dict[str, Any], ...]:
        said = mortals(operation, at=0, wait=True)
        victim = next(said)
        with trace(victim["ready"], tmp_path / "log", *inject) as tracer:
            os.kill(victim["ready"], signal.SIGUSR1)
            answers = (victim, *said)
            tracer.communicate()
        return answers

    return run


def few(operation: str) -> Any:
    marks = [] if operation in {"take", "take_over", "release"} else LONG
    return pytest.param(operation, marks=marks)


@pytest.mark.parametrize("operation", [few(operation) for operation in OPERATIONS])
def test_c1_c2_c5_a_worker_killed_before_any_system_call_leaves_a_legal_store(
    traced: Traced, examine: Examine, tmp_path: Path, operation: str
) -> None:
    victim, refused, ended = traced(operation)
    assert (refused, ended) == ({"refused": ""}, {"ended": 0})
    examine(operation, victim)
    names = re.findall(r"^([a-z0-9]+)\(", (tmp_path / "log").read_text(), re.MULTILINE)
    reads = {name.removeprefix("?") for name in TRACED_READS.split(",")}
    for at in points(names, every=False, reads=reads):
        name, nth = names[at - 1], names[:at].count(names[at - 1])  # strace counts each apart
        victim, ended = traced(operation, f"{name}:signal=SIGKILL:when={nth}")
        assert ended == KILLED
        examine(operation, victim)


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("take", ("openat", "EMFILE", "StoreUnavailable")),
        ("take", ("openat", "EINTR", "")),  # Python asks again
        ("take", ("flock", "EINTR", "")),
        ("take", ("flock", "ENOLCK", "StoreUnavailable")),
        ("take", ("pwrite64", "EIO", "StoreUnavailable")),
        ("take_over", ("write", "ENOSPC", "StoreUnavailable")),
        ("take_over", (RENAME, "EDQUOT", "StoreUnavailable")),
        ("come_and_go", ("fsync", "EIO", "StoreUnavailable")),
        ("release", (UNLINK, "EACCES", "StoreUnavailable")),
    ],
)
def test_c7_an_error_of_the_kernel_is_refused_and_loses_nothing(
    traced: Traced, examine: Examine, operation: str, fault: tuple[str, str, str]
) -> None:
    call, code, refused = fault
    victim, answer, ended = traced(operation, f"{call}:error={code}:when=1")
    assert (answer, ended) == ({"refused": refused}, {"ended": 0})
    examine(operation, victim)
