# SPDX-License-Identifier: Apache-2.0
"""Fixtures that unit and end-to-end tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.folders import private_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private directory with a path short enough for sockets, unlike pytest's own."""
    with private_folder() as path:
        yield path
