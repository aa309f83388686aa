# SPDX-License-Identifier: Apache-2.0
"""``rollout-router top``: frames from documents, what keys do, and where it asks."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from support.gateway import invoked
from support.page_server import World

from rollout_router.cli.top_frame import Documents, frame, rows_that_fit
from rollout_router.cli.top_keyboard import keys_of
from rollout_router.cli.top_source import NoAddress, Source
from rollout_router.cli.top_view import FOOTER, SORTS, View, asked, step, worker_named

A, B = "0" * 20, "1" * 20
VIEW = View(sort="turns", order="desc", offset=10)


def shown(world: World, view: View = VIEW, *, width: int = 220, height: int = 30) -> list[str]:
    """The lines of a frame, without colours."""
    rows = rows_that_fit(height, len(world.workers))
    window = world.window({"sort": "rollout_id", "limit": str(rows)})
    screen = Console(file=io.StringIO(), width=width, height=height, markup=False)
    screen.print(frame(Documents(overview=world.overview(), rollouts=window), view, height=height))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def test_a_frame_has_head_workers_rollouts_and_keys() -> None:
    lines = shown(World(rollouts=3))
    assert lines[0].startswith("rollout-router top   model   store 5f3c0a   http://127.0.0.1:9000")
    assert lines[1].rstrip() == "gate open"
    assert lines[2].split("  ")[:2] == ["rollouts 3", "in flight 1"]
    assert lines[2].rstrip().endswith("90.0% saved")
    heads = "worker pid verdict in flight claims lag ms bases held started"
    assert lines[3].split() == heads.split()
    assert lines[5].split() == [B, "1001", "alive", "1", "1", "1.25", "3", "2.5", "MB", "1", "h"]
    first = f"r-00001 owned {B} 4294967298 1 1 1.0 kB 100"
    assert lines[8].split()[:9] == first.split()
    assert lines[10].startswith("1 to 3 of 3 of 3 rollouts, by turns desc")
    assert lines[11].rstrip() == FOOTER


@pytest.mark.parametrize("workers", [1, 4, 40])
@pytest.mark.parametrize("height", [12, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_frame_fills_its_screen(width: int, height: int, workers: int) -> None:
    lines = shown(World(rollouts=200, workers=workers), width=width, height=height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_what_a_document_says_does_nothing_to_a_terminal() -> None:
    world = World()
    evil = "r\x1b]0;owned\x07\n[red]x[/red]"
    world.add(evil)["last_outcome"] = evil
    world.workers[0]["verdict"] = evil
    world.gate.update(open=False, by=evil, why=evil)
    printed = "".join(shown(world, View(q=evil, prompt="q", typed=evil)))
    assert "\x1b]" not in printed
    assert "\x07" not in printed
    assert printed.count("r\\x1b]0;owned\\x07\\n[red]x[/red]") >= 6


def test_a_closed_gate_and_old_documents_are_said() -> None:
    world = World()
    world.gate.update(open=False, by="operator", why="a new model")
    assert shown(world)[1].rstrip() == "gate CLOSED by operator: a new model"
    old = Documents(
        overview=world.overview(), rollouts=world.window({}), old="the address gave no answer"
    )
    screen = Console(file=io.StringIO(), width=100)
    screen.print(frame(old, VIEW, height=20))
    assert isinstance(screen.file, io.StringIO)
    assert "OLD: the address gave no answer" in screen.file.getvalue()


def test_rows_and_fields_may_be_null_or_missing() -> None:
    world = World(rollouts=1, workers=1)
    row = world.rollouts["r-00000"]
    for name in set(row) - {"rollout_id"}:
        row[name] = None
    world.workers[0] = {"id": "w", "verdict": "unknown", "answers": False}
    lines = shown(world)
    assert lines[4].split() == ["w", "-", "unknown,", "silent", *6 * ["-"]]
    assert lines[6].split() == ["r-00000", *11 * ["-"]]


def test_the_worker_that_is_dead_comes_last() -> None:
    world = World()
    world.kill(A)
    world.worker(B)["leaving"] = True
    lines = shown(world)
    assert lines[4].startswith(B)
    assert "alive, leaving" in lines[4]
    assert lines[5].startswith(A)


@pytest.mark.parametrize("key", SORTS)
def test_a_key_sorts_from_the_first_row_on(key: str) -> None:
    _, sort, order = SORTS[key]
    assert step(VIEW, key, rows=5, matching=100) == View(sort=sort, order=order)


@pytest.mark.parametrize(
    ("key", "offset"),
    [
        *(("up", 9), ("down", 11), ("pageup", 5), ("pagedown", 15), ("home", 0), ("end", 95)),
        *(("x", 10), ("left", 10), ("escape", 10)),
    ],
)
def test_keys_scroll_within_what_there_is(key: str, offset: int) -> None:
    after = step(VIEW, key, rows=5, matching=100)
    assert after == View(sort="turns", order="desc", offset=offset)
    for _ in range(200):
        assert after is not None
        assert 0 <= after.offset <= 95
        after = step(after, key, rows=5, matching=100)


def test_r_turns_the_order_round_and_q_ends() -> None:
    assert step(VIEW, "r", rows=5, matching=100) == View(sort="turns", order="asc")
    assert step(VIEW, "q", rows=5, matching=100) is None


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["/", *"rq", "backspace", "1", "enter"], View(q="r1")),
        (["w", *"1", "enter"], View(worker="1", q="before")),
        (["/", *"x", "escape"], View(q="before", offset=10)),
        (["/", "enter"], View()),
        (["/", *"q", "up", "pagedown"], View(q="before", offset=10, prompt="q", typed="q")),
    ],
)
def test_a_filter_is_typed_and_used_or_left(keys: list[str], expected: View) -> None:
    view: View | None = View(q="before", offset=10)
    for key in keys:
        assert view is not None
        view = step(view, key, rows=5, matching=100)
    assert view == expected


@pytest.mark.parametrize(("start", "found"), [("1", B), ("2", "2"), ("", ""), (A, A)])
def test_a_worker_is_named_by_how_its_id_begins(start: str, found: str) -> None:
    assert worker_named(start, [{"id": A}, {"id": B}]) == found


def test_a_view_is_asked_for_without_empty_filters() -> None:
    plain: dict[str, Any] = {"sort": "turns", "order": "desc", "offset": 10, "limit": 7}
    assert asked(VIEW, [], rows=7) == plain
    filtered = View(q="r1", worker="1", offset=10)
    assert asked(filtered, [{"id": B}], rows=7) == {**plain, "q": "r1", "worker": B}


@pytest.mark.parametrize(
    ("read", "keys"),
    [
        (b"tq", ["t", "q"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~", ["up", "down", "pageup", "pagedown"]),
        (b"\x1b[1;5A\x1b[15~x", ["x"]),
        (b"\x1b", ["escape"]),
        (b"\r\x7f\x08", ["enter", "backspace", "backspace"]),
        (b"\xff\xc3\xa9", ["é"]),
    ],
)
def test_keys_are_told_apart(read: bytes, keys: list[str]) -> None:
    assert keys_of(read) == keys


def test_without_an_address_it_says_how_to_start_one(folder: Path) -> None:
    done = invoked("top", "--state-dir", str(folder))
    assert done.exit_code == 1
    assert f"rollout-router admin --state-dir {folder} --admin-port N" in done.stderr


@pytest.mark.parametrize(
    "written", ["", "[]", "{}", '{"v":2,"url":"http://h:1"}', '{"v":1,"url":"x"}']
)
def test_a_file_that_names_no_address_is_named(folder: Path, written: str) -> None:
    (folder / "admin").write_text(written)
    with pytest.raises(NoAddress, match=r"admin|URL"):
        Source(folder)


@pytest.mark.parametrize("url", ["localhost:1", "ftp://h:1", "http://", "http://h:x", "http://h:0"])
def test_what_is_no_url_is_refused(folder: Path, url: str) -> None:
    done = invoked("top", "--state-dir", str(folder), "--admin-url", url)
    assert done.exit_code == 1
    assert json.dumps(url)[1:-1] in done.stderr
