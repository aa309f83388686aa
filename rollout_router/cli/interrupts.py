# SPDX-License-Identifier: Apache-2.0
"""Commands that start processes end by an exception, so that these are ended on the way out."""

import signal
import sys
from typing import NoReturn

__all__ = ["unwind_on_signals"]


def unwind_on_signals() -> None:
    """Raise SystemExit, with the code that a shell would give, at SIGTERM and SIGHUP.

    One that is ignored, as nohup has it, stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _unwind)


def _unwind(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
