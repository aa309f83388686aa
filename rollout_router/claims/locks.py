# SPDX-License-Identifier: Apache-2.0
"""One writer a stripe, on this host (laws C1, C4, C7).

A lock file is made with the store and never unlinked or renamed. Within a process one thread waits
for the file; the others wait for that thread, so a slow stripe costs one polling thread. Both waits
share one bound, and its end is an error: never a reason to move a claim (C3).

A cleaner that removes lock files would let two writers in on two inodes. So a lock file that is
missing is refused, and one that was replaced while we waited is tried once more, then refused.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import Timeout, UnixFileLock

from rollout_router.claims.errors import StoreUnavailable

__all__ = ["LOCK_TIMEOUT_S", "StripeLocks"]

_log = logging.getLogger(__name__)

LOCK_TIMEOUT_S: Final = 5.0
"""A transaction holds its stripe for some 0.2 ms; five seconds mean a stopped process or disk."""

_POLL_INTERVAL_S: Final = 0.005


class StripeLocks:
    """The lock files of one store.

    Args:
        directory: ``<state>/locks``.
        timeout_s: the bound on each wait.
    """

    def __init__(self, directory: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self._directory = directory
        self._timeout_s = timeout_s
        self._turns: dict[str, threading.Lock] = {}

    @contextmanager
    def hold(
        self, name: str, *, create: bool = False, timeout_s: float | None = None
    ) -> Iterator[None]:
        """Hold one lock: a stripe as two hexadecimal digits, ``format``, ``gate`` or ``sweep``.

        Args:
            name: of the lock file.
            create: the file may be made now: never that of a stripe, which orders grants.
            timeout_s: another bound than the store's.

        Raises:
            StoreUnavailable: nothing is held: time-out (``ETIMEDOUT``), a lock file that is
                missing or was replaced (``ESTALE``), or what the file system said.
        """
        path = str(self._directory / name)
        turn = self._turns.setdefault(name, threading.Lock())  # atomic under the interpreter
        bound_s = self._timeout_s if timeout_s is None else timeout_s
        ends_at = time.monotonic() + bound_s
        if not turn.acquire(timeout=bound_s):
            raise StoreUnavailable(f"waiting for the lock {path}", errno.ETIMEDOUT)
        try:
            lock, fd = self._acquire(path, ends_at=ends_at, create=create)
            try:
                yield
            finally:
                _give_back(lock, fd)
        finally:
            turn.release()

    def _acquire(self, path: str, *, ends_at: float, create: bool) -> tuple[UnixFileLock, int]:
        for _ in range(2):
            held: list[int] = []
            try:
                if not create:
                    os.stat(path)  # noqa: PTH116 - strings on the path of every grant
                lock = UnixFileLock(
                    path,
                    timeout=max(0.0, ends_at - time.monotonic()),
                    mode=0o600,
                    fallback_to_soft=False,
                    preserve_lock_file=True,
                    close_error_policy="suppress",  # the lock is given up either way
                    poll_interval=_POLL_INTERVAL_S,
                    on_acquired=held.append,
                )
                lock.acquire()
            except Timeout as error:
                raise StoreUnavailable(f"waiting for the lock {path}", errno.ETIMEDOUT) from error
            except FileNotFoundError as error:
                raise StoreUnavailable(f"the lock file {path} is gone", errno.ESTALE) from error
            except OSError as error:
                raise StoreUnavailable(f"taking the lock {path}", error.errno) from error
            (fd,) = held
            if _is_still(path, fd):
                return lock, fd
            _give_back(lock, fd)
        raise StoreUnavailable(f"the lock file {path} keeps being replaced", errno.ESTALE)


def _is_still(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))  # noqa: PTH116 - as above
    except OSError:
        return False


def _give_back(lock: UnixFileLock, fd: int) -> None:
    """Unlock; where the kernel refuses that, close the file, which gives the lock back too.

    Otherwise it would be held, by nobody, to the end of the process.
    """
    try:
        lock.release()
    except OSError as error:
        _log.warning("%s could not be unlocked and is closed: %s", lock.lock_file, error)
        with contextlib.suppress(OSError):
            # The number stays the lock's own, for another file, until it closes that.
            with Path(os.devnull).open() as nothing:
                os.dup2(nothing.fileno(), fd, inheritable=False)
            lock.release()
