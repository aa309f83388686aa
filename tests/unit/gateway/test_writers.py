# SPDX-License-Identifier: Apache-2.0
import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from rollout_router.gateway.sink import SinkUnavailable
from rollout_router.gateway.writers import Writers

THREADS = 16


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What holds threads up; set at the end, so that a test that fails ends too."""
    event = threading.Event()
    yield event
    event.set()


class Holding:
    """A job that waits in its thread, and notes who was there."""

    def __init__(self, release: threading.Event) -> None:
        self.release = release
        self.begun = threading.Event()
        self.order: list[int] = []
        self.inside = 0
        self.inside_max = 0

    def job(self, number: int) -> "Holding._Job":
        return self._Job(self, number)

    class _Job:
        def __init__(self, holding: "Holding", number: int) -> None:
            self.holding = holding
            self.number = number

        def __call__(self, _: float) -> None:
            holding = self.holding
            holding.inside += 1
            holding.inside_max = max(holding.inside_max, holding.inside)
            holding.order.append(self.number)
            holding.begun.set()
            assert holding.release.wait(60)
            holding.inside -= 1


def nothing(_: float) -> None:
    pass


def test_f1_a_rollout_that_waits_holds_up_no_other(release: threading.Event) -> None:
    holding = Holding(release)

    async def scenario() -> None:
        writers = Writers(timeout_s=60)
        stuck = [writers.submit("r1", holding.job(number)) for number in range(64)]
        async with asyncio.timeout(30):
            await writers.submit("r2", nothing)
        assert not any(answer.done() for answer in stuck)
        release.set()
        await asyncio.gather(*stuck)
        assert holding.order == list(range(64))
        assert holding.inside_max == 1
        assert writers._lines == {}

    asyncio.run(scenario())


def test_f1_the_time_of_a_job_counts_from_its_submission(release: threading.Event) -> None:
    deadlines: list[float] = []

    async def scenario() -> None:
        writers = Writers(timeout_s=60)
        first = writers.submit("r1", Holding(release).job(0))
        rest = [writers.submit("r1", deadlines.append) for _ in range(63)]
        submitted_s = time.monotonic()
        release.set()
        await asyncio.gather(first, *rest)
        assert len(deadlines) == 63
        assert deadlines == sorted(deadlines)
        assert deadlines[-1] <= submitted_s + 60

    asyncio.run(scenario())


def test_f1_a_job_whose_time_is_over_in_the_line_is_refused_and_never_runs(
    release: threading.Event,
) -> None:
    holding = Holding(release)
    ran: list[float] = []

    async def scenario() -> None:
        writers = Writers(timeout_s=0.5)
        begun = writers.submit("r1", holding.job(0))
        late = [writers.submit("r1", ran.append) for _ in range(63)]
        for answer in late:
            with pytest.raises(SinkUnavailable, match="rollout r1"):
                await answer
        assert not begun.done()  # what has begun is finished, and its answer is true
        release.set()
        await begun
        await writers.submit("r1", nothing)
        assert (ran, writers._lines) == ([], {})

    asyncio.run(scenario())


def test_f1_a_job_that_finds_no_thread_in_its_time_is_refused_and_never_runs(
    release: threading.Event,
) -> None:
    holding = Holding(release)
    ran: list[float] = []

    async def scenario() -> None:
        writers = Writers(timeout_s=0.5)
        busy = [writers.submit(f"r{n}", holding.job(n)) for n in range(THREADS)]
        with pytest.raises(SinkUnavailable, match="rollout late"):
            await writers.submit("late", ran.append)
        release.set()
        await asyncio.gather(*busy)
        await writers.submit("late", nothing)
        assert (ran, writers._lines) == ([], {})

    asyncio.run(scenario())


def test_a_job_that_nobody_wants_any_more_leaves_the_line(release: threading.Event) -> None:
    ran: list[float] = []

    async def scenario() -> None:
        writers = Writers(timeout_s=60)
        first = writers.submit("r1", Holding(release).job(0))
        second = writers.submit("r1", ran.append)
        last = writers.submit("r1", nothing)
        second.cancel()
        release.set()
        await asyncio.gather(first, last)
        assert (ran, writers._lines) == ([], {})

    asyncio.run(scenario())


def test_a_job_that_has_begun_is_finished_also_when_nobody_waits(release: threading.Event) -> None:
    holding = Holding(release)

    async def scenario() -> None:
        writers = Writers(timeout_s=60)
        first = writers.submit("r1", holding.job(0))
        assert await asyncio.to_thread(holding.begun.wait, 30)
        first.cancel()
        last = writers.submit("r1", nothing)
        release.set()
        await last
        assert (holding.order, holding.inside, writers._lines) == ([0], 0, {})

    asyncio.run(scenario())


def test_what_a_job_raises_is_its_answer_and_the_next_one_runs() -> None:
    def broken(_: float) -> None:
        raise ValueError("broken")

    async def scenario() -> None:
        writers = Writers(timeout_s=60)
        first = writers.submit("r1", broken)
        second = writers.submit("r1", nothing)
        with pytest.raises(ValueError, match="broken"):
            await first
        await second

    asyncio.run(scenario())
