# SPDX-License-Identifier: Apache-2.0
"""docs/checkpoint.md says what the tables of the code say."""

from pathlib import Path

import pytest
from support.checkpoint_page import drawn

PAGE = (Path(__file__).parents[3] / "docs" / "checkpoint.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("part", drawn(), ids=["codes", "session", "phases"])
def test_the_page_is_drawn_from_the_tables(part: str) -> None:
    assert part in PAGE
