# SPDX-License-Identifier: Apache-2.0
"""A network that has loopback and nothing else, for this process and all that it starts (Linux)."""

import ctypes
import fcntl
import os
import socket
import struct
from typing import Final

__all__ = ["NotIsolated", "isolate"]

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
