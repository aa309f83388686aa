# SPDX-License-Identifier: Apache-2.0
"""The directory of the private sockets: short, and nobody else's (R1)."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollout_router.claims import SOCKET_PATH_BYTES_MAX, StoreRefused

__all__ = ["check_private_directory", "private_directory", "private_socket_path"]


def private_directory(path: Path) -> None:
    """Make *path* a directory that only we can enter.

    Raises:
        StoreRefused: it is somebody else's, open to others, or no directory.
    """
    with _refusing(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private_directory(path)


def check_private_directory(path: Path) -> None:
    """Refuse *path* as a start would; it is there.

    Raises:
        StoreRefused: as :func:`private_directory`.
    """
    with _refusing(path):
        status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise StoreRefused(f"the run directory {path} is not a directory of this user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreRefused(
            f"the run directory {path} is open to other users: chmod 700 it or name another"
        )


def private_socket_path(directory: Path, nonce: str) -> Path:
    """Where the worker named *nonce* listens.

    Raises:
        StoreRefused: the path is too long for a socket.
    """
    path = directory / f"{nonce}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise StoreRefused(
            f"the socket path {path} is longer than {SOCKET_PATH_BYTES_MAX} bytes:"
            " name a shorter run directory"
        )
    return path


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreRefused(f"the run directory {path} cannot be used: {error.strerror}") from error
