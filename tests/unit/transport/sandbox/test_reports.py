# SPDX-License-Identifier: Apache-2.0
import queue
import threading
from collections.abc import Iterator

import pytest

from rollout_router.transport.sandbox.reports import REPORTS_MAX, Reports

WAIT_S = 30.0


class Place:
    """What is written to: it can be full, and it can be closed."""

    def __init__(self) -> None:
        self.written: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.reached = threading.Semaphore(0)
        self.room = threading.Semaphore(0)
        self.error: Exception | None = None

    def write(self, message: str) -> None:
        self.reached.release()
        assert self.room.acquire(timeout=WAIT_S)
        if self.error is not None:
            raise self.error
        self.written.put(message)

    def make_room(self, writes: int = 2 * REPORTS_MAX) -> None:
        self.room.release(writes)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.make_room()  # no writer outlives its test


def read(place: Place) -> list[str]:
    return [place.written.get_nowait() for _ in range(place.written.qsize())]


def test_what_is_left_is_written_at_the_end(place: Place) -> None:
    reports = Reports(place.write, close_s=WAIT_S)
    reports.say("one")
    reports.start()
    reports.say("two")
    place.make_room()

    reports.close()

    assert read(place) == ["one", "two"]


def test_s5_a_place_that_is_full_holds_nobody_up_and_what_was_dropped_is_counted(
    place: Place,
) -> None:
    reports = Reports(place.write, close_s=WAIT_S)
    reports.start()
    reports.say("first")
    assert place.reached.acquire(timeout=WAIT_S)  # the writer stands there with it

    for number in range(REPORTS_MAX + 5):
        reports.say(str(number))
    place.make_room()
    reports.close()

    dropped = "5 reports were dropped: nobody read them"
    assert read(place) == ["first", *map(str, range(REPORTS_MAX)), dropped]


def test_s5_a_place_that_never_has_room_holds_up_no_end(place: Place) -> None:
    reports = Reports(place.write, close_s=0.0)
    reports.start()
    reports.say("one")
    assert place.reached.acquire(timeout=WAIT_S)

    reports.close()

    assert read(place) == []


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("I/O on closed file")])
def test_s5_a_place_that_is_closed_is_nobodys_failure(place: Place, error: Exception) -> None:
    reports = Reports(place.write, close_s=WAIT_S)
    reports.start()
    place.error = error
    place.make_room(1)
    reports.say("lost")
    assert place.reached.acquire(timeout=WAIT_S)
    reports.say("kept")
    assert place.reached.acquire(timeout=WAIT_S)  # the writer is past the first one
    place.error = None
    place.make_room()

    reports.close()

    assert read(place) == ["kept"]
