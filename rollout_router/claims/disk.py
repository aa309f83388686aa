# SPDX-License-Identifier: Apache-2.0
"""How the store touches files: whole reads, whole writes, names that appear at once (C5, C7).

The only module of this room that opens, writes or renames. It knows nothing of claims. Every open
refuses symbolic links, does not wait for a FIFO's other end, and is closed on exec. All functions
raise plain ``OSError``; a write that fails leaves neither a temporary file nor a changed target.
"""

import contextlib
import errno
import os
import stat
from typing import Final

from rollout_router.claims.envelope import RECORD_BYTES_MAX, Malformed

__all__ = [
    "TEMPORARY",
    "close_unwritten",
    "open_for_reading",
    "peek",
    "publish",
    "read_capped",
    "read_fd",
    "read_signed",
    "sync_directory",
    "write_all",
    "write_in_place",
]

TEMPORARY: Final = ".tmp."
"""How the names of temporary files begin. Nothing reads them; the sweeper clears them."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_for_reading(path: str) -> int:
    """A descriptor of the regular file at *path*; the caller closes it.

    Raises:
        Malformed: ``not_a_file``: a link, directory, FIFO, socket or device stands there.
        OSError: ``FileNotFoundError`` and everything else that ``open`` may say.
    """
    try:
        fd = os.open(path, _READ)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a symbolic link, a socket
            raise Malformed("not_a_file") from error
        raise
    regular = False
    try:
        regular = stat.S_ISREG(os.fstat(fd).st_mode)
    finally:
        if not regular:
            close_unwritten(fd)
    if not regular:
        raise Malformed("not_a_file")
    return fd


def close_unwritten(fd: int) -> None:
    """Close what nothing was written through: whatever the kernel answers, it is closed."""
    with contextlib.suppress(OSError):
        os.close(fd)


def read_fd(fd: int) -> bytes:
    """The bytes behind *fd*, at most one more than a record may have."""
    chunks, missing = [], RECORD_BYTES_MAX + 1
    while missing and (chunk := os.read(fd, missing)):
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


def read_capped(path: str) -> bytes:
    """The bytes of the regular file at *path*, at most one more than a record may have.

    Raises:
        Malformed: ``not_a_file``.
        OSError: as ``open`` and ``read``.
    """
    return read_signed(path)[1]


def read_signed(path: str) -> tuple[os.stat_result, bytes]:
    """As :func:`read_capped`, and what ``fstat`` showed of that very file before it was read."""
    fd = open_for_reading(path)
    try:
        return os.fstat(fd), read_fd(fd)
    finally:
        close_unwritten(fd)


def peek(path: str) -> bytes:
    """What one read of a record's size shows of *path*; nothing where it cannot be read.

    For a caller that knows what to do with certain bytes, and asks again, at more cost, about any
    others.
    """
    try:
        fd = os.open(path, _READ)
    except OSError:
        return b""
    try:
        return os.read(fd, RECORD_BYTES_MAX + 1)
    except OSError:
        return b""
    finally:
        close_unwritten(fd)


def write_all(fd: int, raw: bytes) -> None:
    """Write all of *raw*: a short write goes on where it stopped."""
    view = memoryview(raw)
    while view:
        view = view[os.write(fd, view) :]


def write_in_place(path: str, raw: bytes) -> None:
    """Replace the first bytes of an existing file with one ``pwrite``.

    Raises:
        OSError: also for a short write; the file may then be damaged, and says so when it is read.
    """
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.pwrite(fd, raw, 0) != len(raw):
            raise OSError(errno.EIO, "short write", path)
    finally:
        os.close(fd)


def publish(path: str, raw: bytes, *, durable: bool) -> os.stat_result:
    """Make *path* a file with exactly *raw*, at once: its readers see the old bytes or the new.

    Args:
        path: the target, in a directory that exists.
        raw: all of its bytes.
        durable: also survive a power cut: the file and its directory are synced.

    Returns:
        The status of the new file, taken after the rename.

    Raises:
        OSError: the target is unchanged and no temporary file is left, except when the error came
            from syncing the directory.
    """
    directory, _ = os.path.split(path)
    temporary = f"{directory}/{TEMPORARY}{os.urandom(8).hex()}"
    fd = os.open(temporary, _CREATE, 0o600)
    try:
        try:
            write_all(fd, raw)
            if durable:
                os.fsync(fd)
            os.rename(temporary, path)  # noqa: PTH104 - strings on the path of every grant
        except BaseException:
            # What went wrong is what the caller hears; a leftover is the sweeper's.
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108 - as above
            raise
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if durable:
        sync_directory(directory)
    return status


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
