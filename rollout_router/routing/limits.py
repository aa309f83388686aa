# SPDX-License-Identifier: Apache-2.0
"""What one connection may cost a worker before the router knows what it carries. Pure.

The numbers are those of the public port of ``serve``; the private sockets take :meth:`Limits.hop`.
An application that installs the router has a public server of its own, with limits of its own, and
its private sockets take ``INSTALLED``. docs/limits.md lists every bound of the product.
"""

import math
import resource
import sys
from dataclasses import dataclass, replace
from typing import Final

__all__ = [
    "CONNECTIONS_MAX",
    "HOP_HEADERS",
    "HOP_HEAD_BYTES",
    "INSTALLED",
    "INSTALLED_HEAD_BYTES_MAX",
    "TURNED_AWAY_MAX",
    "Limits",
]

CONNECTIONS_MAX: Final = 16_384
"""Connections of one port where descriptors allow more: four for each call of ``calls_max``."""

TURNED_AWAY_MAX: Final = 256
"""Connections beyond the bound that are told so with 503; further ones are cut as they come."""

HOP_HEAD_BYTES: Final = 16 * 1024
"""Room in a hop's head for what the forwarder adds: its own headers, and a server's root path."""

HOP_HEADERS: Final = 16
"""Header lines that a forwarder may add; it adds seven."""

INSTALLED_HEAD_BYTES_MAX: Final = 1024 * 1024
"""A head over the hop, where another server let it in: as much as an answer's head may have. Few
servers take more than 64 KiB."""

_UNCOUNTED: Final = sys.maxsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one port, each a connection's unless it says otherwise. A time may be infinite.

    Raises:
        ValueError: a value makes no sense; the message names it.
    """

    head_bytes_max: int = 64 * 1024
    """Request line and headers; beyond it 431. Also what may come between two pieces of a body
    (chunk sizes and their extensions) and behind it (trailers). Harnesses send 1.4 KB; one read of
    the socket, up to 256 KiB, can come before it is seen."""

    headers_max: int = 256
    """Header lines; beyond it 431. Each costs an object, however short it is."""

    target_bytes_max: int = 16 * 1024
    """Path and query; beyond it 414. It is copied, decoded and logged."""

    head_s_max: float = 30.0
    """From the first byte of a head to its last, while no answer is under way; then 408. Also for
    what is left of a request whose answer is out; then the connection is closed."""

    body_stall_s_max: float = 60.0
    """The application waits so long for the next byte of a body; then 408, and it sees a client
    that left. A client that waits because nobody reads its body is not meant."""

    body_bytes_per_s_min: int = 256
    """Waiting beyond ``body_stall_s_max`` in all must be paid for at this rate, or a body of 64 MiB
    could take a century at one byte a minute. A modem of 1995 is faster."""

    pipelined_max: int = 64
    """Requests that wait for the answer to an earlier one; the connection is closed when those are
    answered. One read of 256 KiB holds 14,000 small requests, each a scope and a task to come."""

    answer_stall_s_max: float = 600.0
    """A client takes nothing of what was written to it for so long; then its connection is aborted
    and its call ends (R4). Long, because a sandbox that is stopped for minutes is a normal case."""

    connections_max: int | None = None
    """Connections of one worker's port; beyond it 503 ``overloaded``. None: a quarter of the
    descriptors that the process may have, because a call needs another connection for each of its
    own, here and at its owner; at most ``CONNECTIONS_MAX``."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def hop(self) -> "Limits":
        """The limits of a private socket: they let through whatever the public port let through.

        A hop takes longer than its client may, so that the public port is the one that gives up.
        Connections have no bound: only our own workers connect, several keep idle ones to the same
        owner, and its calls are bounded by ``calls_max``.
        """
        return replace(
            self,
            head_bytes_max=self.head_bytes_max + HOP_HEAD_BYTES,
            headers_max=self.headers_max + HOP_HEADERS,
            target_bytes_max=self.target_bytes_max + HOP_HEAD_BYTES,
            head_s_max=2 * self.head_s_max,
            body_stall_s_max=2 * self.body_stall_s_max,
            answer_stall_s_max=2 * self.answer_stall_s_max,
            connections_max=_UNCOUNTED,
        )

    def connections(self) -> int:
        """``connections_max``, or what follows from the descriptors of this process now."""
        if self.connections_max is not None:
            return self.connections_max
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return CONNECTIONS_MAX
        return max(1, min(soft // 4, CONNECTIONS_MAX))


INSTALLED: Final = Limits(
    head_bytes_max=INSTALLED_HEAD_BYTES_MAX,
    headers_max=_UNCOUNTED,
    target_bytes_max=INSTALLED_HEAD_BYTES_MAX,
    head_s_max=math.inf,
    body_stall_s_max=math.inf,
    answer_stall_s_max=math.inf,
    connections_max=_UNCOUNTED,
)
"""Of a private socket whose public port is another server's: that one judges heads and clients.
Else it would depend on the worker that accepted a request whether it is served."""
