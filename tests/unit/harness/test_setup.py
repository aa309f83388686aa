# SPDX-License-Identifier: Apache-2.0
"""Pointing a harness at a shim: what is refused, and how files are written."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from rollout_router.harness import HARNESSES
from rollout_router.harness.port import Dialect, Target
from rollout_router.harness.setup import different, shim_command, target, write

FILES = {PurePosixPath("a/b"): "text é\n", PurePosixPath("c"): ""}


def aim(**changed: Any) -> Target:
    asked: dict[str, Any] = {
        "rollout_id": "r1",
        "shim_url": "http://127.0.0.1:9/",
        "model": "m",
        "dialect": None,
        "api_key": "k",
        **changed,
    }
    return target(HARNESSES["pi"], **asked)


def test_a_target_is_the_rollout_behind_the_shim() -> None:
    assert aim() == Target(
        base_url="http://127.0.0.1:9/ng-rollout/r1/v1", model="m", dialect=Dialect.CHAT, api_key="k"
    )
    assert aim(dialect=Dialect.MESSAGES).dialect is Dialect.MESSAGES


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rollout_id": "%61"}, "'%61' is no rollout id"),
        ({"rollout_id": ""}, "is no rollout id"),
        ({"shim_url": "127.0.0.1:9"}, "not a gateway URL"),
        ({"shim_url": "http://127.0.0.1:9/${HOME}"}, "not a gateway URL"),
        ({"shim_url": "http://127.0.0.1:9/é"}, "not a gateway URL"),
        ({"shim_url": "http://127.0.0.1:9/v1/"}, "leave /v1 out"),
        ({"model": ""}, "is no model name"),
        ({"model": "a\nb"}, "is no model name"),
        ({"model": "\ud83d"}, "is no model name"),
        ({"api_key": ""}, "the key is empty"),
        ({"api_key": "se\ncret"}, "no HTTP header"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        aim(**changed)
    assert "cret" not in str(refused.value)


def test_a_dialect_that_a_harness_does_not_speak_is_refused() -> None:
    with pytest.raises(ValueError, match="codex does not speak chat, but responses"):
        target(
            HARNESSES["codex"],
            rollout_id="r1",
            shim_url="http://127.0.0.1:9",
            model="m",
            dialect=Dialect.CHAT,
            api_key="k",
        )


def test_a_shim_is_started_before_a_gateway() -> None:
    assert shim_command("http://g:8/x/", 9)[-4:] == ["--gateway", "http://g:8/x", "--port", "9"]
    with pytest.raises(ValueError, match="not a gateway URL"):
        shim_command("ftp://g", 9)


def test_files_are_written_whole_and_for_their_owner_alone(tmp_path: Path) -> None:
    written = write(tmp_path, FILES)
    assert [path.read_text(encoding="utf-8") for path in written] == list(FILES.values())
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert different(tmp_path, FILES) == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c"]


def test_other_content_is_seen_and_written_over(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, PurePosixPath("c"): "mine"})
    assert different(tmp_path, FILES) == [tmp_path / "c"]
    write(tmp_path, FILES)
    assert different(tmp_path, FILES) == []


def test_a_link_is_other_content_and_its_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    (tmp_path / "c").symlink_to(tmp_path / "mine")
    assert different(tmp_path, FILES) == [tmp_path / "c"]
    write(tmp_path, {PurePosixPath("c"): "new"})
    assert ((tmp_path / "mine").read_text(), (tmp_path / "c").read_text()) == ("", "new")


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    assert different(tmp_path, FILES) == [tmp_path / "c"]
    with pytest.raises(OSError, match="directory"):
        write(tmp_path, FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]
