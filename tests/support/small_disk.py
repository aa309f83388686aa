# SPDX-License-Identifier: Apache-2.0
"""A file system of a few megabytes, and how to fill it."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["fill", "mounted"]


@contextmanager
def mounted(mount: Path, options: str) -> Iterator[Path]:
    """A tmpfs at *mount*, which is made; the test is skipped where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"{options},mode=0700", "none", str(mount)]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield mount
    subprocess.run(["umount", "--lazy", str(mount)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte; the file that takes them all."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        sum(file.write(b"x" * 4096) for _ in itertools.count())
    return filler
