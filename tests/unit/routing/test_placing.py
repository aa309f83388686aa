# SPDX-License-Identifier: Apache-2.0
"""Load files: written, read, silent, removed, and none of it a law."""

import stat
from pathlib import Path

import pytest
from support.metrics import counted

from rollout_router.routing.placement import LOAD_BYTES
from rollout_router.routing.placing import SILENT_S_MAX, Placing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Workers:
    """Workers by name, in one directory."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def __call__(self, name: str, *, calls: int | None = None, store: str = "store") -> Placing:
        path = self._folder / f"{name}.load"
        worker = Placing(path, store_id=store, draw=min, clock=self._clock)
        if calls is not None:
            worker.publish(calls=calls, rollouts=0)
        return worker


@pytest.fixture
def worker(folder: Path, clock: Clock) -> Workers:
    return Workers(folder, clock)


def test_a_load_file_is_private_of_one_length_and_goes_with_its_worker(
    worker: Workers, folder: Path
) -> None:
    one = worker("a", calls=10**9)
    one.publish(calls=1, rollouts=2)
    status = (folder / "a.load").stat()

    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == LOAD_BYTES
    one.withdraw()
    one.withdraw()
    assert list(folder.iterdir()) == []


def test_a_load_file_that_was_removed_is_there_again_with_the_next_that_is_published_anew(
    worker: Workers, folder: Path
) -> None:
    one = worker("a", calls=1)
    (folder / "a.load").unlink()
    one.publish(calls=0, rollouts=0)
    assert list(folder.iterdir()) == []  # nobody looked
    one.publish(calls=0, rollouts=0, anew=True)

    assert worker("b", calls=1).choose().worker == "a"


def test_the_least_busy_gets_the_next_and_what_was_placed_counts_until_it_is_counted(
    worker: Workers,
) -> None:
    me, _ = worker("m", calls=1), worker("a", calls=0)
    before = counted("rollout_router_placements_total", to="peer")

    first = me.choose()
    second = me.choose()
    first.counted()
    first.counted()
    third = me.choose()

    assert [placed.worker for placed in (first, second, third)] == ["a", "m", "a"]
    assert counted("rollout_router_placements_total", to="peer") == before + 2


@pytest.mark.parametrize("how", ["silent", "of another store", "unreadable", "withdrawn"])
def test_who_says_nothing_that_counts_gets_nothing(
    worker: Workers, clock: Clock, folder: Path, how: str
) -> None:
    other = worker("a", calls=0, store="other" if how == "of another store" else "store")
    if how == "silent":
        clock.now += SILENT_S_MAX + 0.1
    if how == "unreadable":
        (folder / "a.load").unlink()
        (folder / "a.load").mkdir()
    if how == "withdrawn":
        other.withdraw()

    assert worker("m", calls=9).choose().worker == "m"


def test_of_many_workers_that_place_one_rollout_each_at_one_time_not_all_choose_the_same(
    worker: Workers, folder: Path, clock: Clock
) -> None:
    for name in "abcd":
        worker(name, calls=0)
    forwarders = [Placing(folder / f"f{n}.load", store_id="store", clock=clock) for n in range(64)]

    # By chance all would choose one worker once in 4**63 runs.
    assert len({forwarder.choose().worker for forwarder in forwarders}) > 1


def test_where_nobody_says_anything_a_rollout_stays_where_it_is(worker: Workers) -> None:
    assert worker("m").choose().worker == "m"


def test_a_worker_that_was_chosen_in_vain_is_passed_by_until_it_says_something_new(
    worker: Workers, clock: Clock
) -> None:
    me, other = worker("m", calls=9), worker("a", calls=0)
    placed = me.choose()
    placed.counted()
    me.pass_by(placed)

    assert me.choose().worker == "m"
    clock.now += 0.25
    other.publish(calls=0, rollouts=0)
    assert me.choose().worker == "a"


def test_a_load_that_cannot_be_written_is_said_once_and_a_run_directory_that_is_gone_is_empty(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Placing(folder / "gone" / "a.load", store_id="store")
    one.publish(calls=0, rollouts=0)
    one.publish(calls=0, rollouts=0)

    assert one.choose().worker == "a"
    assert caplog.text.count("no new rollouts are placed here") == 1


def test_a_load_file_that_cannot_be_removed_is_left_behind_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a.load").mkdir()
    Placing(folder / "a.load", store_id="store").withdraw()

    assert "is left behind" in caplog.text
