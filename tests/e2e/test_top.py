# SPDX-License-Identifier: Apache-2.0
"""``rollout-router top`` in a real terminal, in front of an admin address that a test makes."""

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from support.gateway import COMMAND, PATIENCE_S, invoked
from support.page_server import PageServer

A, B = "0" * 20, "1" * 20
ENTERED, LEFT = "\x1b[?1049h", "\x1b[?1049l"
NO_CURSOR, CURSOR = "\x1b[?25l", "\x1b[?25h"
SEQUENCE: Final = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


@pytest.fixture(scope="module")
def address() -> Iterator[PageServer]:
    """One address for all; each test makes its own world."""
    with PageServer() as address:
        yield address


class Terminal:
    """``top`` in a terminal: what it shows can be waited for, and keys be pressed."""

    def __init__(self, *arguments: str, lines: int = 24, columns: int = 200) -> None:
        self._screen, inner = pty.openpty()
        self._size(lines, columns)
        self.before = termios.tcgetattr(inner)
        self._inner = inner
        self.process = subprocess.Popen(
            [COMMAND, "top", *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            # What a shell once exported is not the size of this window.
            env={**os.environ, "TERM": "xterm", "COLUMNS": "70", "LINES": "10"},
        )
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def resize(self, lines: int, columns: int) -> None:
        """Make the window as large, and say so as the kernel does to who controls a terminal."""
        self._size(lines, columns)
        self.process.send_signal(signal.SIGWINCH)

    def _size(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait(self, text: str) -> str:
        """Wait until *text* is shown; what was shown up to it, and forget that."""
        ends_at = time.monotonic() + PATIENCE_S
        while text not in (plain := SEQUENCE.sub("", self.shown)):
            if time.monotonic() > ends_at:
                raise TimeoutError(f"{text!r} is not in {plain[-10_000:]!r}")
            self._read()
        self.shown = plain.partition(text)[2]
        return plain.partition(text)[0]

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._screen, keys.encode())

    def end(self) -> tuple[int, str]:
        """Wait for its end; its exit code, and all that it wrote since the last wait."""
        while self.process.poll() is None:
            if select.select([self._screen], [], [], 0.05)[0]:
                self._read()
        while select.select([self._screen], [], [], 0)[0]:
            self._read()
        return self.process.wait(), self.shown

    def is_as_before(self) -> bool:
        """Whether lines and echo are what they were."""
        return termios.tcgetattr(self._inner) == self.before

    def close(self) -> None:
        """End it where it runs."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._screen)
        os.close(self._inner)

    def _read(self) -> None:
        if not select.select([self._screen], [], [], PATIENCE_S)[0]:
            raise TimeoutError(f"shows nothing more after {self.shown!r}")
        self.shown += self._decoder.decode(os.read(self._screen, 1 << 16))


@contextmanager
def terminal(*arguments: str, **size: int) -> Iterator[Terminal]:
    """A terminal for as long as the block lasts."""
    one = Terminal(*arguments, **size)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def top(address: PageServer) -> Iterator[Terminal]:
    """``top`` of 60 rollouts, with nothing left to show but what keys and changes do."""
    address.remake(rollouts=60)
    with terminal("--admin-url", address.url, "--interval", "0.2") as one:
        one.wait("rollout-router top   model")
        yield one


def test_it_refreshes_and_follows_its_window_until_it_is_told_to_end(
    top: Terminal, address: PageServer
) -> None:
    assert not top.is_as_before()
    top.wait("1 to 15 of 60")
    top.resize(40, 120)
    top.wait("1 to 31 of 60")
    address.change(lambda world: world.kill(A))
    address.change(lambda world: world.take_over("r-00058", B))
    top.wait("takeovers 1")
    top.press("q")
    code, said = top.end()
    assert code == 0
    assert LEFT in said
    assert said.rindex(CURSOR) > said.find(NO_CURSOR)
    assert top.is_as_before()


def test_keys_sort_scroll_and_filter(top: Terminal) -> None:
    top.press("o")
    top.wait("by worker_id asc")
    top.press("r")
    top.wait("by worker_id desc")
    top.press("\x1b[6~")
    top.wait("16 to 30 of 60")
    top.press("\x1b[F")
    top.wait("46 to 60 of 60")
    top.press("/r-0000")
    top.wait("id contains: r-0000_")
    top.press("\r")
    top.wait("1 to 10 of 10 of 60 rollouts, by worker_id desc, id contains r-0000")
    top.press("w1\r")
    top.wait(
        "1 to 5 of 5 of 60 rollouts, by worker_id desc, id contains r-0000, owner begins with 1"
    )


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(one, marks=pytest.mark.long) for one in (signal.SIGINT, signal.SIGHUP)),
    ],
)
def test_the_terminal_is_given_back_at_a_signal(top: Terminal, number: int) -> None:
    top.process.send_signal(number)
    code, said = top.end()
    assert code == 128 + number
    assert LEFT in said
    assert top.is_as_before()


def test_the_terminal_is_given_back_after_an_exception(top: Terminal, address: PageServer) -> None:
    address.change(lambda world: setattr(world, "overview", lambda: {"schema": 1}))
    code, said = top.end()
    assert code == 1
    assert "KeyError" in said
    assert LEFT in said
    assert top.is_as_before()


def once(*arguments: str) -> str:
    """What it prints where there is no terminal."""
    done = invoked("top", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_a_terminal_it_prints_one_frame(address: PageServer, folder: Path) -> None:
    address.remake(rollouts=60)
    address.write_address(folder)
    printed = once("--state-dir", str(folder), "--sort", "owner", "--filter", "r-0000")
    assert "\x1b" not in printed
    assert "1 to 10 of 10 of 60 rollouts, by worker_id asc, id contains r-0000" in printed
    assert len([line for line in printed.splitlines() if line.startswith("r-0000")]) == 10
    assert "50 of 60" in once("--once", "--admin-url", address.url)


def test_one_document_for_programs(address: PageServer) -> None:
    address.remake(rollouts=60)
    arguments = ("--json", "--rows", "2", "--sort", "turns", "--worker", "1")
    document: dict[str, Any] = json.loads(once("--admin-url", address.url, *arguments))
    assert document["schema"] == 1
    assert document["overview"]["service"] == "model"
    rows = document["rollouts"]["rollouts"]
    assert [(row["rollout_id"], row["worker_id"]) for row in rows] == [
        ("r-00059", B),
        ("r-00057", B),
    ]


def test_an_address_that_does_not_answer_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    (folder / "admin").write_text(json.dumps({"v": 1, "url": url}))
    done = invoked("top", "--once", "--state-dir", str(folder))
    assert done.exit_code == 1
    assert f"the admin address {url} gave no answer" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("refusing", True, "answered 503: the store is away"),
        ("overview", lambda: {"schema": 2}, "answers in schema 2, and this command knows 1"),
        ("overview", list, "answered []"),
    ],
)
def test_what_it_cannot_use_is_said(
    address: PageServer, name: str, value: object, said: str
) -> None:
    address.remake()
    address.change(lambda world: setattr(world, name, value))
    done = invoked("top", "--once", "--admin-url", address.url)
    assert done.exit_code == 1
    assert said in done.stderr


def test_old_figures_say_so_until_an_address_that_moved_is_found(
    address: PageServer, folder: Path
) -> None:
    address.remake(rollouts=60)
    with PageServer() as first:
        first.write_address(folder)
        with terminal("--state-dir", str(folder), "--interval", "0.2") as one:
            one.wait("rollouts 3 ")
            first.stop()
            one.wait("OLD: the admin address")
            one.wait("r-00002")
            address.write_address(folder)
            one.wait("rollouts 60 ")
