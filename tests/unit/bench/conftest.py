# SPDX-License-Identifier: Apache-2.0
"""A directory in memory, so that making a store, which syncs every part of it, costs nothing."""

from pathlib import Path

import pytest


@pytest.fixture
def directory(folder: Path) -> Path:
    """Private, in memory where there is one, with a short path."""
    return folder
