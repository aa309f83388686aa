# SPDX-License-Identifier: Apache-2.0
"""What a forked child of a worker must not keep open: listeners and accepted connections (C3).

A listener that lives on in a child takes connections that nobody answers, and a connection in one
hides from its peer that the worker died: both would hold a rollout until the child ends.
"""

import os
import socket
from typing import Any
from weakref import WeakSet

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["WorkersProtocol", "close_in_children"]

_sockets: "WeakSet[socket.socket]" = WeakSet()
_protocols: "WeakSet[WorkersProtocol]" = WeakSet()


def close_in_children(listener: socket.socket) -> None:
    """From now on no child that Python starts keeps *listener*."""
    listener.set_inheritable(False)
    _sockets.add(listener)


class WorkersProtocol(HttpToolsProtocol):
    """uvicorn's protocol, whose connection no forked child keeps."""

    def connection_made(self, transport: Any) -> None:
        """From now on a forked child closes it."""
        super().connection_made(transport)
        _protocols.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Its number may be another file's from now on."""
        super().connection_lost(exc)
        _protocols.discard(self)


def _close_in_child() -> None:
    fds = [listener.fileno() for listener in list(_sockets)]
    connected = [protocol.transport.get_extra_info("socket") for protocol in list(_protocols)]
    fds += [connection.fileno() for connection in connected if connection is not None]
    # Not close(): an event loop counts as a user of its sockets, which defers that; and a number
    # that is free again could be closed a second time, when it is another file's.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        if fd >= 0:
            os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_close_in_child)
