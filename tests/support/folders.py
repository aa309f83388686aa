# SPDX-License-Identifier: Apache-2.0
"""Private directories whose paths are short enough for sockets below them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MEMORY", "private_folder"]

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a private directory in it
DISK = Path("/var/tmp")  # noqa: S108 - as above; shorter than what pytest makes


@contextmanager
def private_folder() -> Iterator[Path]:
    """A directory of mode 0700, removed afterwards; in memory, where a sync costs nothing."""
    path = Path(tempfile.mkdtemp(prefix="rr-", dir=MEMORY if MEMORY.is_dir() else DISK))
    try:
        yield path
    finally:
        shutil.rmtree(path)
