# SPDX-License-Identifier: Apache-2.0
"""Tables, and when a bar reaches a terminal."""

import io
import itertools
import os
import pty
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest

from rollout_router.cli.claims_view import SHOWN_AFTER_S, print_table, progress


def test_a_table_shows_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("rollout", "why"), [("a" * 200, "[red]:smile:[/red]")])
    out = capsys.readouterr().out
    assert "a" * 200 in out
    assert "[red]:smile:[/red]" in out


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal to write to, and the descriptor at which its user reads."""
    reading, writing = pty.openpty()
    with os.fdopen(writing, "w") as stream:
        yield stream, reading
    os.close(reading)


def shown(terminal: tuple[TextIO, int]) -> str:
    """Everything that was written, and nothing more can be."""
    stream, reading = terminal
    stream.close()
    parts = []
    with suppress(OSError):  # EIO: how a terminal ends whose other side is closed
        while part := os.read(reading, 1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def test_what_takes_longer_than_a_second_has_a_bar(terminal: tuple[TextIO, int]) -> None:
    stream, _ = terminal
    clock = itertools.count(0.0, SHOWN_AFTER_S)
    with progress("reading claims", lambda: 1000, stream=stream, clock=lambda: next(clock)) as step:
        assert all(step() for _ in range(512))
    assert "reading claims" in shown(terminal)


def test_what_ends_sooner_has_none(terminal: tuple[TextIO, int]) -> None:
    stream, _ = terminal
    with progress("reading claims", lambda: 1000, stream=stream, clock=lambda: 0.0) as step:
        assert all(step() for _ in range(512))
    assert shown(terminal) == ""


def test_a_bar_is_for_terminals_alone() -> None:
    stream = io.StringIO()
    clock = itertools.count(0.0, SHOWN_AFTER_S)
    with progress("reading claims", lambda: 1000, stream=stream, clock=lambda: next(clock)) as step:
        assert all(step() for _ in range(512))
    assert stream.getvalue() == ""


def test_a_bar_ends_with_what_it_was_for(terminal: tuple[TextIO, int]) -> None:
    stream, _ = terminal
    clock = itertools.count(0.0, SHOWN_AFTER_S)

    def fail() -> None:
        with progress("reading", lambda: 9, stream=stream, clock=lambda: next(clock)) as step:
            for _ in range(512):
                step()
            raise LookupError

    with pytest.raises(LookupError):
        fail()
