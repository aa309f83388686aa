# SPDX-License-Identifier: Apache-2.0
"""Private directories whose paths are short enough for sockets below them."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["MEMORY", "private_folder"]

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a private directory in it
DISK = Path("/var/tmp")  # noqa: S108 - as above; shorter than what pytest makes


@contextmanager
def private_folder() -> Iterator[Path]:
    """A directory of mode 0700, removed afterwards; in memory, where a sync costs nothing."""
    where = MEMORY if MEMORY.is_dir() else DISK
    with tempfile.TemporaryDirectory(prefix="rr-", dir=where) as path:
        try:
            yield Path(path)
        finally:
            with suppress(OSError):  # what is closed to us is left to tempfile, which opens it
                _empty(path)


def _empty(path: str) -> None:
    """Remove what is in a directory, those in it that are empty without opening them.

    A store has 256 of them: this takes half the time of ``shutil.rmtree``.
    """
    with os.scandir(path) as entries:
        for entry in list(entries):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry)  # noqa: PTH108 - Path costs as much again
                continue
            try:
                os.rmdir(entry)  # noqa: PTH106 - as above
            except OSError:
                _empty(entry.path)
                os.rmdir(entry)  # noqa: PTH106 - as above
