# SPDX-License-Identifier: Apache-2.0
"""How people write lengths of time."""

from datetime import timedelta

import click
import pytest

from rollout_router.cli.flags import DURATION


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("0", timedelta(0)),
        ("90", timedelta(seconds=90)),
        ("90s", timedelta(seconds=90)),
        ("30m", timedelta(minutes=30)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("999999999d", timedelta(days=999_999_999)),
    ],
)
def test_a_duration_is_a_number_and_its_unit(text: str, length: timedelta) -> None:
    assert DURATION.convert(text, None, None) == length


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5h", "1 h", "1w", "1H", "9999999999", "\u0661"])
def test_what_is_no_duration_says_how_to_write_one(text: str) -> None:
    with pytest.raises(click.BadParameter, match="as in 30m"):
        DURATION.convert(text, None, None)
