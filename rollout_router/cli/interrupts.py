# SPDX-License-Identifier: Apache-2.0
"""Commands that start processes end by an exception, so that these are ended on the way out."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

__all__ = ["unwound_by_signals"]

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Meanwhile SIGINT, SIGTERM and SIGHUP raise SystemExit, with the code that a shell would give.

    One that is ignored, as nohup has it, stays ignored.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in ours:
        signal.signal(number, _unwind)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _unwind(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
