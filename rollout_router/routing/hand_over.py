# SPDX-License-Identifier: Apache-2.0
"""A worker's connections on their way to another worker: the socket that they come by (R1, R2).

A connection is one message with its descriptor (SCM_RIGHTS). The kernel takes the whole message or
nothing, so a connection belongs to one worker at any time; what its client sends meanwhile waits in
the connection itself, unread. Nothing here waits for a peer: where the message is not taken at
once, the connection stays where it is.

The socket lies beside the private one, in the directory that nobody else can enter, so nobody else
can hand anything in. One whose file was removed is not bound anew: requests go over hops then.
"""

import array
import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rollout_router.claims import StoreRefused
from rollout_router.forked import close_in_children

__all__ = ["HOPS_IN_A_ROW", "NO_DESCRIPTOR_S", "TRIES_MAX", "HandOver", "Row", "hand_over_path"]

HOPS_IN_A_ROW: Final = 3
"""So many hops in a row for one rollout cost as much as handing its connection over once."""

TRIES_MAX: Final = 16
"""Each try doubles the hops before the next one, up to here: 196,608 hops."""

NO_DESCRIPTOR_S: Final = 0.25
"""What is handed over waits so long in its socket where this worker has no descriptor for it."""

_TAKEN_AT_ONCE: Final = 16  # more than the kernel queues (net.unix.max_dgram_qlen, 10 by default)
_MESSAGE_BYTES_MAX: Final = 16  # one is said; a later version may say more

_logger = logging.getLogger(__name__)


class Row:
    """The hops in a row of one connection that were for one rollout of one owner. Pure.

    Each try at handing it over doubles the row that the next one needs, and the number of tries
    travels with the connection: one that carries several rollouts stops moving, and one that no
    worker takes is seldom offered.
    """

    __slots__ = ("_hops", "_of", "tries")

    def __init__(self, tries: int = 0) -> None:
        self.tries = min(tries, TRIES_MAX)
        self._of = ("", "")
        self._hops = 0

    def hop(self, owner: str, rollout_id: str) -> None:
        """Another hop began."""
        same = self._of == (owner, rollout_id)
        self._of, self._hops = (owner, rollout_id), self._hops + 1 if same else 1

    def clear(self) -> None:
        """Something else than a hop began."""
        self._of, self._hops = ("", ""), 0

    @property
    def due(self) -> bool:
        """Whether the connection should be with that owner."""
        return self._hops >= HOPS_IN_A_ROW << self.tries

    def tried(self) -> None:
        """It was offered to its owner, who took it or not."""
        self.tries = min(self.tries + 1, TRIES_MAX)
        self.clear()


def hand_over_path(private: str) -> str:
    """Where the worker whose private socket lies at *private* takes connections."""
    return private.removesuffix(".sock") + ".conn"  # as long: it can be bound too


class HandOver:
    """Gives connections of one worker away, and takes what others give. For one event loop."""

    def __init__(self, private: Path, take: Callable[[socket.socket, int], None]) -> None:
        """Bind; *take* is given what comes, and how often it was offered, from :meth:`start` on.

        Raises:
            StoreRefused: the path cannot be bound; nothing is left behind.
        """
        self._path = Path(hand_over_path(str(private)))
        self._take = take
        self._waiting: asyncio.TimerHandle | None = None
        self._stopped = False
        try:
            with ExitStack() as undo:
                self._outbox = undo.enter_context(_datagrams())
                self._inbox = undo.enter_context(_datagrams())
                self._inbox.bind(str(self._path))
                self._path.chmod(0o600)
                undo.pop_all()
        except OSError as error:
            raise StoreRefused(f"cannot take connections at {self._path}: {error}") from error

    def start(self) -> None:
        """Take what comes."""
        self._waiting = None
        asyncio.get_running_loop().add_reader(self._inbox.fileno(), self._take_what_waits)

    def give(self, descriptor: int, private: str, tries: int) -> bool:
        """Hand a connection to the worker whose private socket lies at *private*.

        Returns:
            True: it is that worker's, and this one only closes its own descriptor. False: nothing
            has changed: no such socket (ENOENT), nobody there (ECONNREFUSED), leaving (EPIPE), too
            many wait already (EAGAIN), or too many descriptors are on their way (ETOOMANYREFS).
        """
        if self._stopped:
            return False
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
        try:
            self._outbox.sendmsg([bytes([tries])], [rights], 0, hand_over_path(private))
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Give and take no more; what was given until now is taken first.

        From the shutdown on the kernel refuses what others give, so nothing comes in between.
        """
        if self._stopped:
            return
        self._stopped = True
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())
        if self._waiting is not None:
            self._waiting.cancel()
        self._inbox.shutdown(socket.SHUT_RD)
        try:
            while (taken := self._receive()) is not None:
                self._take(*taken)
        except OSError as error:
            _logger.warning("connections handed over to this worker are closed: %s", error)
        self._inbox.close()
        self._outbox.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("the socket %s is left behind: %s", self._path, error)

    def _take_what_waits(self) -> None:
        try:
            for _ in range(_TAKEN_AT_ONCE):
                if (taken := self._receive()) is None:
                    return
                self._take(*taken)
        except OSError as error:  # no descriptor is left; what waits, waits on
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._inbox.fileno())
            self._waiting = loop.call_later(NO_DESCRIPTOR_S, self.start)
            _logger.warning("no connection can be taken over now: %s", error)

    def _receive(self) -> tuple[socket.socket, int] | None:
        """The next connection and its tries; None: no more wait.

        Raises:
            OSError: none can be taken; it waits on.
        """
        while True:
            # A message whose descriptor finds no place is lost, and the connection with it.
            os.close(os.dup(self._inbox.fileno()))
            try:
                said, descriptors, _, _ = socket.recv_fds(
                    self._inbox, _MESSAGE_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return None
            if descriptors:
                connection = socket.socket(fileno=descriptors[0])
                close_in_children(connection)
                connection.settimeout(0)
                return connection, said[0] if said else TRIES_MAX
            if not said:  # the end, after the shutdown
                return None


def _datagrams() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(0)
    close_in_children(made)
    return made
