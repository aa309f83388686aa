# SPDX-License-Identifier: Apache-2.0
"""A process of a cell, forked, and the way to it."""

import ctypes
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, ClassVar, Final

from support.faults.points import Points

__all__ = ["Child"]

_PR_SET_PDEATHSIG: Final = 1


class Child:
    """One forked process, and the way to it."""

    _all: ClassVar["set[Child]"] = set()

    def __init__(
        self, main: Callable[..., None], planned: list[tuple[str, str]], *told: Any
    ) -> None:
        self.kind = main.__name__
        self.channel, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            code = 1
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                for other in (self, *self._all):
                    other.channel.close()
                main(Points(theirs, planned), *told)
                code = 0
            except BaseException:  # noqa: BLE001 - its last word
                traceback.print_exc()
            finally:
                os._exit(code)
        theirs.close()
        self._stream = self.channel.makefile("rwb")
        self._all.add(self)

    def fileno(self) -> int:
        return self.channel.fileno()

    def hear(self) -> list[Any] | None:
        """What it says; None at its end."""
        try:
            line = self._stream.readline()
        except ConnectionError:
            line = b""
        return json.loads(line) if line else None

    def answer(self, order: str) -> None:
        """Let it go on."""
        self._stream.write(order.encode() + b"\n")
        self._stream.flush()

    def end(self, number: int | None = signal.SIGKILL) -> int:
        """Wait for its end, which a signal may bring."""
        if number is not None:
            os.kill(self.pid, number)
        self._all.discard(self)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._stream.close()
        self.channel.close()
        return code
