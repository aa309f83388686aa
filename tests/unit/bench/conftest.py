# SPDX-License-Identifier: Apache-2.0
"""A directory in memory, so that making a store, which syncs every part of it, costs nothing."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")  # noqa: S108 - each test makes a private directory in it


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Private, in memory where there is one, with a short path."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as made:
        yield Path(made)
