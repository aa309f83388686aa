# SPDX-License-Identifier: Apache-2.0
"""Whichever call fails, with whichever error: refused clearly, nothing lost, works again (C7)."""

import contextlib
import errno
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.steps import (
    NEIGHBOUR,
    OPERATIONS,
    Scene,
    new_worker,
    nothing_is_locked,
    regain,
    settle,
    stepping,
    temporary_files,
)

from rollout_router.claims import (
    ClaimsError,
    FileClaimStore,
    ForceRefused,
    Grant,
    LifeLock,
    StoreUnavailable,
)

CODES = ("EIO", "ENOSPC", "EDQUOT", "EMFILE", "EACCES", "ENOLCK", "EINTR")
CHIEF = ("take", "take_over", "release", "come_and_go")  # the others do nothing that is not here
TREATED_APART = ("EIO", "EACCES")  # the other errors are all one to the code


@pytest.fixture
def scene(state_dir: Path, run_dir: Path) -> Iterator[Scene]:
    # To wait for a lock is of no use where asking for it fails: EACCES means "held" there.
    store = FileClaimStore.open(state_dir, service="model", lock_timeout_s=0.02)
    neighbour, life = new_worker(store, run_dir), new_worker(store, run_dir)
    grant = store.take(NEIGHBOUR, neighbour.owner)
    assert isinstance(grant, Grant)
    yield Scene(store=store, run_dir=run_dir, owner=life.owner)
    assert store.stands(grant)
    neighbour.close()
    life.close()


def cases() -> Iterator[Any]:
    for operation in OPERATIONS:
        for code in CODES:
            for lasting in (False, True):
                slow = code not in TREATED_APART and (lasting or operation not in CHIEF)
                slow |= operation == "sweep"  # hundreds of calls; it passes by what fails
                name = f"{operation}-{code}-{'lasting' if lasting else 'once'}"
                marks = [pytest.mark.long] if slow else []
                yield pytest.param(operation, code, lasting, id=name, marks=marks)


def calls_of(operation: str, scene: Scene) -> list[int]:
    """The numbers of its calls; of a run of listings only the first and the last."""
    act = OPERATIONS[operation].prepare(scene)
    with stepping(lambda *_: None) as names:
        act()
    regain(scene)
    around = zip(["", *names], names, [*names[1:], ""], strict=False)
    return [n for n, each in enumerate(around, start=1) if each != ("listdir",) * 3]


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize(("operation", "code", "lasting"), list(cases()))
def test_c7_an_error_at_any_call_loses_nothing_and_it_works_again(
    scene: Scene, operation: str, code: str, *, lasting: bool
) -> None:
    before, after = (OPERATIONS[operation].standing(done=done) for done in (False, True))
    for at in calls_of(operation, scene):
        act = OPERATIONS[operation].prepare(scene)
        opened = descriptors()
        failing = ""

        def fault(number: int, name: str, at: int = at) -> OSError | None:
            nonlocal failing
            failing = name if number == at else failing
            broken = number == at or (lasting and number > at and name == failing)
            return OSError(getattr(errno, code), "injected") if broken else None

        done = False
        with stepping(fault), contextlib.suppress(ClaimsError):
            act()
            done = operation != "sweep"  # which passes by what it cannot clear

        for rollout_id in before:
            legal = {after[rollout_id]} if done else {before[rollout_id], after[rollout_id]}
            assert scene.standing(rollout_id) in legal, (at, failing)
        if operation != "sweep" and not (lasting and failing == "unlink"):
            assert temporary_files(scene.store) == [], (at, failing)
        nothing_is_locked(scene.store)
        if not (lasting and failing == "flock"):  # then not even /dev/null can be unlocked
            assert descriptors() <= opened, (at, failing)

        with contextlib.suppress(ForceRefused):  # where what it named went already
            act()
        assert {each: scene.standing(each) for each in before} == after, (at, failing)
        nothing_is_locked(scene.store)
        regain(scene)
    settle(scene)


def failing(call: str, *, at: int = 1) -> contextlib.AbstractContextManager[object]:
    """The calls of that name from the one with the number *at* fail."""
    numbers = itertools.count(1)

    def fault(_: int, name: str) -> OSError | None:
        broken = name == call and next(numbers) >= at
        return OSError(errno.EIO, "injected") if broken else None

    return stepping(fault)


def test_c7_a_grant_that_was_not_answered_is_in_the_takers_own_name(scene: Scene) -> None:
    """The rename happened, looking at the new file failed: the next take is higher (C2)."""
    act = OPERATIONS["take"].prepare(scene)
    with stepping(lambda *_: None) as names:
        act()
    regain(scene)
    with failing("fstat", at=names.count("fstat")), pytest.raises(StoreUnavailable):
        scene.store.take("r1", scene.owner)

    unanswered = scene.store.read("r1")
    assert unanswered
    assert unanswered.owner == scene.owner
    again = scene.store.take("r1", scene.owner)
    assert isinstance(again, Grant)
    assert again.claim.claim_epoch > unanswered.claim_epoch


def test_c7_a_temporary_file_that_cannot_be_removed_is_the_sweepers(scene: Scene) -> None:
    def fault(_: int, name: str) -> OSError | None:
        codes = {"rename": errno.EDQUOT, "unlink": errno.EROFS}
        return OSError(codes[name], "injected") if name in codes else None

    with stepping(fault), pytest.raises(StoreUnavailable) as raised:
        scene.store.take("r1", scene.owner)

    assert raised.value.errno == errno.EDQUOT  # what went wrong first
    assert len(temporary_files(scene.store)) == 1
    settle(scene)


def test_c7_a_lock_that_cannot_be_unlocked_is_given_back_by_closing_it(scene: Scene) -> None:
    grant = scene.granted("r1", scene.owner)
    opened, number = descriptors(), itertools.count(1)

    def fault(_: int, name: str) -> OSError | None:
        unlocking = name == "flock" and next(number) == 2
        return OSError(errno.EIO, "injected") if unlocking else None

    with stepping(fault):
        assert scene.store.release(grant)

    nothing_is_locked(scene.store)
    assert descriptors() == opened


@pytest.mark.parametrize("call", ["unlink", "close"])
def test_c7_a_worker_leaves_whatever_its_disk_says(scene: Scene, call: str) -> None:
    life = LifeLock.acquire(scene.store, nonce="leaving", socket="/run/x.sock")
    with failing(call):
        life.close(remove=True)

    nothing_is_locked(scene.store)
    assert scene.store.owner(life.owner.nonce) is None or scene.store.proof_of_death(life.owner)
    settle(scene)
