# SPDX-License-Identifier: Apache-2.0
"""Recorded rollouts are read whole, or the file and the line are named."""

import json
from pathlib import Path

import pytest

from rollout_router.demo.conversation import Unplayable
from rollout_router.demo.recorded import read_rollouts

ITEMS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def _line(rollout_id: str) -> str:
    return json.dumps({"rollout_id": rollout_id, "items": ITEMS})


def test_rollouts_come_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(f"{_line('b1')}\n\n{_line('b2')}\n")
    (tmp_path / "a.jsonl").write_text(_line("a1"))
    (tmp_path / "README.md").write_text("not a rollout")
    rollouts = read_rollouts(tmp_path)
    assert [rollout.rollout_id for rollout in rollouts] == ["a1", "b1", "b2"]
    assert rollouts[0].items == ITEMS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ("[]", "this is no JSON object"),
        ('{"items": []}', "it has no string 'rollout_id'"),
        ('{"rollout_id": "r1"}', "it has no list 'items'"),
        ('{"rollout_id": "r1", "items": [{"type": "x"}]}', "item 0 has the type 'x'"),
        (_line("good"), "rollout good is in"),
    ],
)
def test_bad_input_is_named_with_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text(f"{_line('good')}\n{line}\n")
    with pytest.raises(Unplayable) as caught:
        read_rollouts(tmp_path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert said in str(caught.value)


def test_bytes_that_are_no_text_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "some.jsonl").write_bytes(b'{"rollout_id": "\xff"}\n')
    with pytest.raises(Unplayable, match="line 1: this is not JSON"):
        read_rollouts(tmp_path)


@pytest.mark.parametrize("content", [None, "", "\n \n"])
def test_a_folder_without_rollouts_is_bad_input(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "empty.jsonl").write_text(content)
    with pytest.raises(Unplayable, match="no rollouts to play"):
        read_rollouts(tmp_path)
