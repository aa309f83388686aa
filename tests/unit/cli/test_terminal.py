# SPDX-License-Identifier: Apache-2.0
"""What reaches a terminal."""

import os

import pytest

from rollout_router.cli.terminal import printable, printable_lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (7, "7"),
        ("r1", "r1"),
        ("[bold]", "[bold]"),
        ("\x1b[2J\n", "\\x1b[2J\\n"),
        (os.fsdecode(b"\xff"), "\\udcff"),
        ("é", "é"),
        ("\u202e", "\\u202e"),
    ],
)
def test_nothing_reaches_a_terminal_that_acts_on_it(value: object, text: str) -> None:
    assert printable(value) == text


def test_lines_stay_lines() -> None:
    assert printable_lines("it said:\n\x1b[2Jbye\n") == "it said:\n\\x1b[2Jbye"
