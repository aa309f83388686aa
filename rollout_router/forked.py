# SPDX-License-Identifier: Apache-2.0
"""What a forked child of a worker must not keep open: its listeners and its connections (C3).

A listener that lives on in a child takes connections that nobody answers, and a connection in one
hides from its peer that the worker died: both would hold rollouts until the child ends.
"""

import asyncio
import os
import socket
from weakref import WeakSet

__all__ = ["close_in_children"]

_sockets: "WeakSet[socket.socket]" = WeakSet()
_transports: "WeakSet[asyncio.BaseTransport]" = WeakSet()


def close_in_children(held: socket.socket | asyncio.BaseTransport) -> None:
    """From now on no child that Python starts keeps *held*: a socket, or a connection's transport.

    Costs less than a microsecond; a forked child closes each in some microseconds.
    """
    if isinstance(held, socket.socket):
        held.set_inheritable(False)
        _sockets.add(held)
    else:
        _transports.add(held)


def _close_in_child() -> None:
    fds = [held.fileno() for held in list(_sockets)]
    for transport in list(_transports):
        connection = transport.get_extra_info("socket")
        # Of a connection that is closing the number may be another file's already.
        if connection is not None and not transport.is_closing():
            fds.append(connection.fileno())
    try:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # no descriptor is left
        nothing = -1
    for fd in fds:
        if fd < 0:
            continue
        if nothing < 0:
            os.close(fd)
        else:
            # Not close(): an event loop counts as a user of its sockets, which defers that; and a
            # number that is free again could be closed once more, when it is another file's.
            os.dup2(nothing, fd, inheritable=False)
    if nothing >= 0:
        os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
