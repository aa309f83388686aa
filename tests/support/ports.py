# SPDX-License-Identifier: Apache-2.0
"""Ports for programs that have to be told theirs before they start."""

import os
import socket
from collections.abc import Iterator

__all__ = ["quiet_port"]

FIRST, LAST = 10_000, 32_000


def _candidates() -> Iterator[int]:
    """Each process begins elsewhere, and gives no port twice before all were given."""
    while True:
        span = LAST - FIRST
        yield from (FIRST + (os.getpid() * 37 + step) % span for step in range(span))


_ports = _candidates()


def quiet_port() -> int:
    """A free port of loopback, below those that the kernel picks: nobody is given it meanwhile."""
    while True:
        port = next(_ports)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
