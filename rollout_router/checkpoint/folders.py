# SPDX-License-Identifier: Apache-2.0
"""The folder of one checkpoint in a directory of archives, held by descriptor.

What lies below the directory is its user's alone to write, and no link in it is followed. All that
may be new is synced upwards: who made which parent cannot be known after a crash.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.wire import IDENTIFIER

__all__ = ["created", "disk", "locked", "missing", "open_regular", "opened", "sync_upwards"]

_LOCK: Final = ".lock"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(folder: int, name: str) -> int:
    """A descriptor of the file *name* in *folder*; of nothing else, and no pipe blocks it."""
    opened = os.open(name, _READ, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return opened


@contextmanager
def created(folder: int, name: str) -> Iterator[BinaryIO]:
    """A new file, which is on the disk when the context ends."""
    with os.fdopen(os.open(name, _CREATE, 0o600, dir_fd=folder), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def opened(directory: Path, *names: str, make: bool = False) -> Iterator[int]:
    """The folder below *directory* that *names* name; links are followed above them alone."""
    for name in names:
        if IDENTIFIER.fullmatch(name) is None:
            raise ValueError(f"not an id: {name!r}")
    path = directory.joinpath(*names)
    with disk(path):
        if make:
            _make(Path(os.path.realpath(directory)))
        try:
            folder = os.open(os.path.realpath(directory), _FOLDER)
            for name in names:
                folder = _opened_below(folder, name, make=make)
        except FileNotFoundError as error:
            raise missing(path) from error
    try:
        yield folder
    finally:
        os.close(folder)


def _opened_below(parent: int, name: str, *, make: bool) -> int:
    """The folder *name* in *parent*, which is closed. Its content is this user's alone to write."""
    try:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
        folder = os.open(name, _FOLDER, dir_fd=parent)
    finally:
        os.close(parent)
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(folder)
        raise PermissionError(errno.EPERM, "others may write here: chown or chmod 700", name)
    return folder


def _make(path: Path) -> None:
    try:
        path.mkdir(0o700, exist_ok=True)
    except FileNotFoundError:
        _make(path.parent)
        path.mkdir(0o700, exist_ok=True)


def sync_upwards(folder: int) -> None:
    """Sync *folder* and those above it, through the first in which this user can make nothing."""
    current = os.dup(folder)
    try:
        while True:
            os.fsync(current)
            here, above = os.fstat(current), os.stat("..", dir_fd=current)
            # The root of a file system was there before; the root of all is above itself.
            if here.st_dev != above.st_dev or here.st_ino == above.st_ino:
                return
            if not os.access("..", os.W_OK, dir_fd=current, effective_ids=True):
                return
            parent = os.open("..", _FOLDER, dir_fd=current)
            os.close(current)
            current = parent
    finally:
        os.close(current)


@contextmanager
def locked(folder: int, path: Path) -> Iterator[None]:
    """Be the one publisher in *folder*: ``checkpoint_busy`` where another is."""
    with disk(path):
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(_LOCK, flags, 0o600, dir_fd=folder)
    try:
        with disk(path):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CheckpointRefusal(
                    "checkpoint_busy",
                    f"{path} is being published by another: ask again when it is done",
                ) from error
        yield
    finally:
        os.close(lock)


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """What the disk says in this context is ``archive_unavailable``."""
    try:
        yield
    except OSError as error:
        raise CheckpointRefusal("archive_unavailable", f"the archive at {path}: {error}") from error


def missing(path: Path) -> CheckpointRefusal:
    """Nothing was published at *path*."""
    return CheckpointRefusal("manifest_missing", f"no checkpoint was published at {path}")
