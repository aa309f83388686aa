# SPDX-License-Identifier: Apache-2.0
"""The lock that a worker holds for life: what its death is proven by (law C3).

The owner file is made under a temporary name, locked, written, and only then given its name: a file
that can be found is locked, or its worker is dead. The kernel gives the lock back at the end of the
process, through SIGKILL too. A forked child would keep it, so children close their copy at fork.

Order of a worker's life: life lock, then socket, then claims; and the lock goes last.
"""

import contextlib
import errno
import fcntl
import logging
import os
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from rollout_router.claims.disk import TEMPORARY, close_unwritten, sync_directory, write_all
from rollout_router.claims.errors import StoreUnavailable
from rollout_router.claims.names import SOCKET_PATH_BYTES_MAX, valid_nonce
from rollout_router.claims.record import OwnerIdentity, encode_identity

if TYPE_CHECKING:
    from rollout_router.claims.files import FileClaimStore

__all__ = ["LifeLock"]

_log = logging.getLogger(__name__)


class LifeLock:
    """One worker's proof of life. Made by :meth:`acquire`; keep it for as long as the worker is."""

    def __init__(self, *, fd: int, path: str, identity: OwnerIdentity) -> None:
        self._fd = fd
        self._path = path
        self.identity: Final = identity
        self.owner: Final = identity.owner
        _living.add(self)

    @classmethod
    def acquire(cls, store: "FileClaimStore", *, nonce: str, socket: str) -> "LifeLock":
        """Make the owner file of a new worker, durably, and hold it locked.

        Args:
            store: where its claims will be.
            nonce: of this worker; never used before.
            socket: the path that it will listen at.

        Raises:
            ValueError: *nonce* is no nonce, or *socket* is longer than 107 bytes.
            StoreUnavailable: nothing is held; ``EEXIST`` when the nonce was used before.
        """
        if not valid_nonce(nonce):
            raise ValueError(f"not a worker's nonce: {nonce!r}")
        if not 0 < len(os.fsencode(socket)) <= SOCKET_PATH_BYTES_MAX or "\0" in socket:
            raise ValueError(f"a socket path has 1 to {SOCKET_PATH_BYTES_MAX} bytes: {socket!r}")
        directory = store.state_dir / "owners"
        path = str(directory / nonce)
        with contextlib.ExitStack() as undo:
            with store.holding_format():  # so that no sweep takes the temporary file for a leftover
                try:
                    fd, identity = _make(
                        directory,
                        nonce=nonce,
                        socket=socket,
                        service=store.service,
                        boot=store.boot_id,
                    )
                except (OSError, psutil.Error) as error:  # psutil has a tree of its own
                    number = getattr(error, "errno", errno.EACCES)
                    raise StoreUnavailable(f"making the owner file {path}", number) from error
                made = cls(fd=fd, path=path, identity=identity)
                undo.callback(made.close, remove=True)  # giving the lock back may fail
            undo.pop_all()
        return made

    def intact(self) -> bool:
        """Whether the lock is held, and others find it: the very file still has its name.

        What cannot be looked at counts as found; so does a file of a store that is gone itself,
        because one that is away for a moment says nothing of its files (C7).
        """
        if self._fd < 0:
            return False
        try:
            return os.stat(self._path, follow_symlinks=False).st_ino == self.owner.inode  # noqa: PTH116 - beside os.open
        except FileNotFoundError:
            return not (Path(self._path).parents[1] / "FORMAT").exists()
        except OSError:
            return True

    def close(self, *, remove: bool = False) -> None:
        """Give the lock back: from now on this worker is dead. Again is harmless. Never raises.

        Args:
            remove: unlink the owner file first. Only when no claim names it: a claim whose owner
                file is missing can be moved by an operator alone. Otherwise, and where it cannot
                be unlinked, the sweeper does it.
        """
        if remove and self.intact():
            try:
                Path(self._path).unlink(missing_ok=True)
            except OSError as error:
                _log.warning("the owner file %s is left to the sweeper: %s", self._path, error)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            close_unwritten(fd)  # what was written was synced


def _make(
    directory: Path, *, nonce: str, socket: str, service: str, boot: str
) -> tuple[int, OwnerIdentity]:
    path, temporary = directory / nonce, directory / f"{TEMPORARY}{nonce}"
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "a nonce is used once", str(path))
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        identity = OwnerIdentity(
            nonce=nonce,
            inode=os.fstat(fd).st_ino,
            pid=os.getpid(),
            started_at=psutil.Process().create_time(),
            boot_id=boot,
            socket=socket,
            service=service,
            at=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        )
        write_all(fd, encode_identity(identity))
        os.fsync(fd)
        temporary.rename(path)
        # A claim that outlives a power cut must find its owner file, or nobody could prove death.
        sync_directory(str(directory))
    except BaseException:
        for leftover in (temporary, path):
            with contextlib.suppress(OSError):  # what went wrong is what the caller hears
                leftover.unlink(missing_ok=True)
        os.close(fd)
        raise
    return fd, identity


_living: "weakref.WeakSet[LifeLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_living):
        lock._close()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_close_in_child)
