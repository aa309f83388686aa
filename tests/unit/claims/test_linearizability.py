# SPDX-License-Identifier: Apache-2.0
"""The checker of histories on stories written by hand, and the race of real workers that it judges.

The mutants in ``test_mutants.py`` are the other half of the proof that it sees what is wrong.
"""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.linearizability import Call, Grant, What, first_unexplained
from support.race import Race, run_race

from rollout_router.claims import FileClaimStore, LifeLock, new_nonce, sweep
from rollout_router.claims import Grant as Granted

A1, A2, B2 = Grant(1, "a"), Grant(2, "a"), Grant(2, "b")


def call(what: What, by: str, start: int, end: float, **fields: Any) -> Call:
    """A call that did what it says, unless *fields* say that it did not."""
    fields = {"happened": what != "read", **fields}
    return Call(what=what, by=by, rollout="r", invoked_ns=start, returned_ns=end, **fields)


def cut(what: What, by: str, start: int, end: float = math.inf, **fields: Any) -> Call:
    return call(what, by, start, end, cut=True, **fields)


A_TAKES = call("take", "a", 0, 1, epoch=1)
A_RELEASES = call("release", "a", 2, 3, names=A1)
B_TAKES = call("take", "b", 4, 5, epoch=2)
B_TAKES_OVER = call("take_over", "b", 10, 12, names=A1, epoch=2)
FORCED = call("force", "operator", 2, 9, names=A1, epoch=2)
A_DIED = {"a": 5}
NOBODY_DIED: dict[str, int] = {}

RIGHT: dict[str, tuple[list[Call], dict[str, int]]] = {
    "nothing": ([], NOBODY_DIED),
    "released and taken by another": ([A_TAKES, A_RELEASES, B_TAKES], NOBODY_DIED),
    "epochs of the other rollouts of a stripe are left out": (
        [A_TAKES, A_RELEASES, replace(B_TAKES, epoch=9)],
        NOBODY_DIED,
    ),
    "taken again by its owner": ([A_TAKES, call("take", "a", 2, 3, epoch=2)], NOBODY_DIED),
    "one of two takers wins": (
        [call("take", "a", 0, 9, epoch=1), call("take", "b", 1, 8, happened=False, found=A1)],
        NOBODY_DIED,
    ),
    "taken over from the dead": ([A_TAKES, B_TAKES_OVER], A_DIED),
    "it died during the call": ([A_TAKES, B_TAKES_OVER], {"a": 11}),
    "reaped and free": (
        [A_TAKES, call("reap", "b", 6, 7, names=A1), call("read", "b", 8, 9)],
        A_DIED,
    ),
    "forced from the living": (
        [
            A_TAKES,
            FORCED,
            call("use", "a", 10, 11, names=A1, happened=False),
            call("take", "b", 12, 13, epoch=3),
        ],
        NOBODY_DIED,
    ),
    "used while it is forced": (
        [A_TAKES, FORCED, call("read", "b", 3, 5), call("use", "a", 2, 7, names=A1)],
        NOBODY_DIED,
    ),
    "two readers of one change, in either order": (
        [A_TAKES, FORCED, call("read", "b", 2, 8), call("read", "c", 2, 8, found=A1)],
        NOBODY_DIED,
    ),
    "a cut take did not happen": (
        [cut("take", "a", 0), call("take", "b", 2, 3, epoch=1)],
        NOBODY_DIED,
    ),
    "a cut take happened late": (
        [cut("take", "a", 0, epoch=2), call("read", "b", 2, 3), call("read", "b", 4, 5, found=A2)],
        NOBODY_DIED,
    ),
    "a cut take-over of unknown epoch stood in the way": (
        [
            A_TAKES,
            cut("take_over", "c", 6, names=A1),
            call("reap", "b", 8, 9, names=A1, happened=False),
        ],
        A_DIED,
    ),
    "a cut release happened": (
        [A_TAKES, cut("release", "a", 2, 3, names=A1), B_TAKES],
        NOBODY_DIED,
    ),
    "a cut release did not happen": (
        [A_TAKES, cut("release", "a", 2, 3, names=A1), call("read", "b", 5, 6, found=A1)],
        NOBODY_DIED,
    ),
    "rollouts have nothing to do with each other": (
        [A_TAKES, replace(A_TAKES, by="b", rollout="other")],
        NOBODY_DIED,
    ),
}

# Each with the position of the first call that cannot be right.
WRONG: dict[str, tuple[list[Call], dict[str, int], int]] = {
    "c1 one epoch twice": ([A_TAKES, A_RELEASES, replace(B_TAKES, epoch=1)], NOBODY_DIED, 2),
    "c1 taken while another had it": ([A_TAKES, B_TAKES], NOBODY_DIED, 1),
    "c1 used after it was released": (
        [A_TAKES, A_RELEASES, call("use", "a", 4, 5, names=A1)],
        NOBODY_DIED,
        2,
    ),
    "c1 used after another took it over": (
        [A_TAKES, B_TAKES_OVER, call("use", "a", 13, 14, names=A1)],
        A_DIED,
        2,
    ),
    "c1 two uses at one time that need both owners": (
        [
            A_TAKES,
            FORCED,
            call("take", "b", 3, 4, epoch=3),
            call("use", "b", 5, 6, names=Grant(3, "b")),
            call("use", "a", 5, 6, names=A1),
        ],
        NOBODY_DIED,
        4,
    ),
    "c2 a lower epoch": (
        [replace(A_TAKES, epoch=7), replace(A_RELEASES, names=Grant(7, "a")), B_TAKES],
        NOBODY_DIED,
        2,
    ),
    "c2 not above the fence": (
        [A_TAKES, FORCED, call("take", "b", 10, 11, epoch=2)],
        NOBODY_DIED,
        2,
    ),
    "c3 taken over from the living": ([A_TAKES, B_TAKES_OVER], NOBODY_DIED, 1),
    "c3 it died after it was taken over": ([A_TAKES, B_TAKES_OVER], {"a": 12}, 1),
    "c3 reaped from the living": ([A_TAKES, call("reap", "b", 6, 7, names=A1)], NOBODY_DIED, 1),
    "c4 two win one claim of the dead": (
        [A_TAKES, B_TAKES_OVER, call("take_over", "c", 10, 14, names=A1, epoch=3)],
        A_DIED,
        2,
    ),
    "c4 nobody wins": (
        [A_TAKES, call("take_over", "b", 6, 7, names=A1, happened=False, found=B2)],
        A_DIED,
        1,
    ),
    "c5 neither a record nor none": (
        [A_TAKES, call("read", "b", 2, 3, unreadable=True)],
        NOBODY_DIED,
        1,
    ),
    "c5 a record that nobody was given": ([call("read", "b", 0, 1, found=A1)], NOBODY_DIED, 0),
    "c5 an old record": (
        [A_TAKES, A_RELEASES, B_TAKES, call("read", "c", 6, 7, found=A1)],
        NOBODY_DIED,
        3,
    ),
    "c5 readers see a change and then its undoing": (
        [A_TAKES, FORCED, call("read", "b", 3, 4), call("read", "b", 5, 6, found=A1)],
        NOBODY_DIED,
        3,
    ),
    "released, but it still stood": (
        [A_TAKES, replace(A_RELEASES, happened=False)],
        NOBODY_DIED,
        1,
    ),
    "a cut take that happened after its worker was gone": (
        [
            cut("take", "a", 0, 1, epoch=1),
            call("read", "b", 2, 3),
            call("read", "b", 4, 5, found=A1),
        ],
        NOBODY_DIED,
        2,
    ),
}


@pytest.mark.parametrize(("calls", "doomed_ns"), RIGHT.values(), ids=RIGHT)
def test_c1_a_history_that_a_right_store_can_have_is_explained(
    calls: list[Call], doomed_ns: dict[str, int]
) -> None:
    assert first_unexplained(calls, doomed_ns=doomed_ns) is None
    assert first_unexplained(reversed(calls), doomed_ns=doomed_ns) is None


@pytest.mark.parametrize(("calls", "doomed_ns", "wrong"), WRONG.values(), ids=WRONG)
def test_c1_a_history_that_no_right_store_can_have_is_not_explained(
    calls: list[Call], doomed_ns: dict[str, int], wrong: int
) -> None:
    unexplained = first_unexplained(calls, doomed_ns=doomed_ns)

    assert unexplained
    assert unexplained.call == calls[wrong]
    assert unexplained.states
    assert first_unexplained(calls[:wrong], doomed_ns=doomed_ns) is None


@pytest.mark.parametrize(
    "size", [(6, 12.0), pytest.param((8, 180.0), marks=pytest.mark.long)], ids=["short", "long"]
)
@pytest.mark.timeout(900)
def test_c1_c2_c3_c4_c5_a_race_of_real_workers_is_one_story(
    state_dir: Path, run_dir: Path, tmp_path: Path, size: tuple[int, float]
) -> None:
    workers, bound_s = size
    race = run_race(
        state_dir, run_dir, tmp_path / "history", store="real", workers=workers, bound_s=bound_s
    )

    assert race.unexplained is None, race.story
    assert not race.failures, race.story
    happened = {call.what for call in race.calls if call.happened and not call.cut}
    assert happened == {"take", "use", "release", "take_over", "reap", "force"}, race.story
    everybody_is_dead_and_everything_can_be_had(state_dir, run_dir, race)


def everybody_is_dead_and_everything_can_be_had(state_dir: Path, run_dir: Path, race: Race) -> None:
    store = FileClaimStore.open(state_dir, service="model")
    nonce = new_nonce()
    life = LifeLock.acquire(store, nonce=nonce, socket=f"{run_dir}/{nonce}.sock")
    for rollout in sorted({call.rollout for call in race.calls}):
        seen = store.read(rollout)
        proof = seen and store.judge(seen.owner).proof
        taken = (
            store.take_over(seen, life.owner, proof)
            if seen and proof
            else store.take(rollout, life.owner)
        )
        assert isinstance(taken, Granted), race.story
        epochs = [call.epoch or 0 for call in race.calls if call.rollout == rollout]
        assert taken.claim.claim_epoch > max(epochs), race.story
        assert store.release(taken)
    life.close()
    sweep(store, now=datetime.now(UTC), tombstone_age_max=timedelta(days=1))
    files = [path for path in state_dir.rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} == {"state", "locks", "epochs"}
    assert list(run_dir.iterdir()) == []
