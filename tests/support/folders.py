# SPDX-License-Identifier: Apache-2.0
"""Private directories whose paths are short enough for sockets below them."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["private_folder"]


@contextmanager
def private_folder() -> Iterator[Path]:
    """A directory of mode 0700 on a real disk, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="rr-", dir="/var/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path)
