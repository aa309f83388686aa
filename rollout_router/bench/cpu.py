# SPDX-License-Identifier: Apache-2.0
"""Processor time of other processes, in nanoseconds' resolution (Linux)."""

import time
from collections.abc import Callable

__all__ = ["cpu_clock_s"]

_WHOLE_PROCESS: int = 2  # CPUCLOCK_SCHED without CPUCLOCK_PERTHREAD, in the low bits of the clock


def cpu_clock_s(*pids: int) -> Callable[[], float]:
    """A clock that gives what these processes have used up together, with all their threads.

    Source of the number of a process's clock: clock_getcpuclockid(3), as glibc makes it.

    Raises:
        OSError: from the clock, once one of them has ended.
    """
    clocks = [(~pid << 3) | _WHOLE_PROCESS for pid in pids]
    return lambda: sum(map(time.clock_gettime, clocks))
