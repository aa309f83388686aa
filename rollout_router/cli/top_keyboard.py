# SPDX-License-Identifier: Apache-2.0
"""Keys of a terminal, one by one, without a thread; the terminal is given back as it was."""

import os
import re
import select
import signal
import termios
import tty
from types import FrameType
from typing import Final, Self

__all__ = ["Keyboard", "keys_of"]

_SEQUENCE: Final = re.compile(r"\x1b\[[0-9;]*[ -/]*[@-~]|\x1bO.|.", re.DOTALL)
_BEGUN: Final = re.compile(rb"\x1b(?:[\[O][0-9;]*)?$")
_REST_S: Final = 0.05
"""How long the rest of a key's sequence may take, after which Escape was Escape."""

_NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b": "escape",
    "\n": "enter",
    "\r": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_READ_BYTES_MAX: Final = 4096


def keys_of(read: bytes) -> list[str]:
    """The keys in what a terminal sent: names, or characters. Sequences of others are left out."""
    found = _SEQUENCE.findall(read.decode("utf-8", "ignore"))
    named = (_NAMES.get(sequence, sequence) for sequence in found)
    return [key for key in named if not key.startswith("\x1b")]


class Keyboard:
    """Keys as they are pressed, and nothing of them on the screen, for as long as the block lasts.

    Suspending and SIGQUIT from the keyboard are off meanwhile: they would leave the terminal so.

    Args:
        descriptor: a terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._terminal = descriptor

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._terminal)
        self._resized, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._handler = signal.signal(signal.SIGWINCH, self._on_resize)
        try:
            tty.setcbreak(self._terminal, termios.TCSADRAIN)
            mode = termios.tcgetattr(self._terminal)
            for key in (termios.VSUSP, termios.VQUIT):
                mode[6][key] = b"\0"
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, mode)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGWINCH, self._handler)
        os.close(self._resized)
        os.close(self._tell)

    def wait(self, timeout_s: float) -> list[str]:
        """The next keys; none where the time is over or the terminal has another size.

        ``q`` where the terminal is gone.
        """
        ready, _, _ = select.select([self._terminal, self._resized], [], [], max(0.0, timeout_s))
        if self._resized in ready:
            os.read(self._resized, _READ_BYTES_MAX)
        if self._terminal not in ready:
            return []
        try:
            read = os.read(self._terminal, _READ_BYTES_MAX)
            if _BEGUN.search(read) and select.select([self._terminal], [], [], _REST_S)[0]:
                read += os.read(self._terminal, _READ_BYTES_MAX)
        except OSError:  # EIO: its other side is closed
            read = b""
        return keys_of(read) if read else ["q"]

    def _on_resize(self, _: int, __: FrameType | None) -> None:
        try:
            os.write(self._tell, b"\0")
        except BlockingIOError:  # nobody looked yet: one word is enough
            return
