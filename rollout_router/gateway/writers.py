# SPDX-License-Identifier: Apache-2.0
"""The threads in which a sink works: of each rollout one job at a time (F1, F2).

A job may wait for a lock that another process holds. One thread a rollout waits for it at most, so
the jobs of other rollouts find threads free. The others of that rollout stand in line on the event
loop, in the order in which they came.

The time of a job counts from its submission: it is told its deadline, and when that has passed
before a thread began with it, it is refused and never runs. Once begun it is finished, whoever
stops waiting.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from rollout_router.gateway.sink import SinkUnavailable

__all__ = ["Writers"]

_THREADS: Final = 16

_Work = Callable[[float], None]


@dataclass(slots=True, eq=False, kw_only=True)
class _Job:
    work: _Work
    deadline_s: float
    answer: asyncio.Future[None]
    expiry: asyncio.TimerHandle | None = None
    running: Future[None] | None = None  # with the threads, begun or not


class Writers:
    """Runs jobs in threads; used on one event loop.

    Args:
        timeout_s: how long a job may wait for everything that it waits for.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="capture")
        self._lines: dict[str, deque[_Job]] = {}  # the first of each is with the threads

    def submit(self, rollout_id: str, work: _Work) -> asyncio.Future[None]:
        """Put *work* in the line of *rollout_id*; it is given its deadline, in monotonic seconds.

        The future has what *work* raised, or ``SinkUnavailable`` where its time was over before
        it began. Cancelling the future takes a job that has not begun out of the line.
        """
        loop = asyncio.get_running_loop()
        deadline_s = time.monotonic() + self._timeout_s
        job = _Job(work=work, deadline_s=deadline_s, answer=loop.create_future())
        job.expiry = loop.call_later(self._timeout_s, self._expire, rollout_id, job)
        line = self._lines.setdefault(rollout_id, deque())
        line.append(job)
        if len(line) == 1:
            self._begin_next(rollout_id)
        return job.answer

    def _begin_next(self, rollout_id: str) -> None:
        line = self._lines[rollout_id]
        while line and line[0].answer.done():  # its time was over, or nobody wants it any more
            _forget(line.popleft())
        if not line:
            del self._lines[rollout_id]
            return
        job = line[0]
        job.running = self._threads.submit(job.work, job.deadline_s)
        ended = partial(self._ended, rollout_id)
        asyncio.wrap_future(job.running).add_done_callback(ended)

    def _ended(self, rollout_id: str, running: asyncio.Future[None]) -> None:
        job = self._lines[rollout_id].popleft()
        _forget(job)
        error = None if running.cancelled() else running.exception()
        if not job.answer.done():
            if error is None:
                job.answer.set_result(None)
            else:
                job.answer.set_exception(error)
        self._begin_next(rollout_id)

    def _expire(self, rollout_id: str, job: _Job) -> None:
        begun = job.running is not None and not job.running.cancel()
        if begun or job.answer.done():
            return
        job.answer.set_exception(
            SinkUnavailable(
                f"rollout {rollout_id}: the calls before it held its sink for {self._timeout_s:g} "
                "s; it works again when the cause is gone"
            )
        )


def _forget(job: _Job) -> None:
    if job.expiry is not None:
        job.expiry.cancel()
