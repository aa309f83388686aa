# SPDX-License-Identifier: Apache-2.0
"""What keeps a harness to itself: a network of loopback alone, and the end of its orphans (Linux).

Both hold for this process and all that it starts.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["NotIsolated", "adopting", "isolate"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


class NotIsolated(Exception):  # noqa: N818 - names what did not happen
    """This process may not have a network of its own; nothing changed."""


def isolate() -> None:
    """Leave the network of the machine for good. Threads that run already stay in it.

    Raises:
        NotIsolated: that takes a privilege which is missing.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise NotIsolated(os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # struct ifreq: a name of 16 bytes, then the flags; the rest of its 40 bytes is not read.
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


@contextmanager
def adopting() -> Iterator[None]:
    """Whoever is left behind by what runs below becomes a child of this process meanwhile."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
