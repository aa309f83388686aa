# SPDX-License-Identifier: Apache-2.0
"""The command around the performance: what it needs, what it shows, how it ends."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rollout_router.cli.demo import demo
from rollout_router.demo import play
from rollout_router.demo.attempt import Holder
from rollout_router.demo.conversation import Dialect
from rollout_router.demo.processes import Tally
from rollout_router.processes import ServiceFailed

PLAYED = play.Played(
    rollout_id="r1",
    dialect=Dialect.CHAT,
    calls=4,
    answered=4,
    again=0,
    tally=Tally(calls=4, bytes_sent=100, bytes_full=1000, resyncs=1),
    before=Holder(worker_id="aaaaaaaa", claim_epoch=1),
    after=Holder(worker_id="bbbbbbbb", claim_epoch=2),
    failures=[],
    differences=[],
)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)


def _give(monkeypatch: pytest.MonkeyPatch, *rollouts: play.Played) -> None:
    performance = play.Performance(rollouts=rollouts, kills=[], wall_s=1.0)
    monkeypatch.setattr(play, "perform", lambda *_, **__: performance)


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = CliRunner().invoke(demo, [])
    assert done.exit_code == 2
    assert "rollout-router[demo]" in done.stderr


def test_success_is_shown_as_a_table_and_a_proof(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _give(monkeypatch, PLAYED)
    done = CliRunner().invoke(demo, [])
    assert done.exit_code == 0
    for shown in ("r1", "90.0 %", "aaaaaa @ 1", "bbbbbb @ 2", "1 of 1 rollouts finished"):
        assert shown in done.stdout
    assert "No difference." in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["failures", "differences"])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_every_failure_and_difference_is_named_and_the_end_is_1(
    monkeypatch: pytest.MonkeyPatch, what: str, arguments: list[str]
) -> None:
    wrong: dict[str, Any] = {what: ["rollout r1: one", "rollout r1: two"]}
    _give(monkeypatch, replace(PLAYED, **wrong))
    done = CliRunner().invoke(demo, arguments)
    assert done.exit_code == 1
    assert "rollout r1: one\n" in done.stderr
    assert "rollout r1: two\n" in done.stderr
    assert "No difference." not in done.stdout
    if arguments:
        assert json.loads(done.stdout)[what] == wrong[what]


def test_what_did_not_start_is_told_and_the_folder_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ServiceFailed("gateway did not get ready")

    monkeypatch.setattr(play, "perform", fail)
    done = CliRunner().invoke(demo, [])
    assert done.exit_code == 1
    assert "gateway did not get ready" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_keep_leaves_the_folder_and_says_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _give(monkeypatch, PLAYED)
    done = CliRunner().invoke(demo, ["--keep", "--json"])
    kept = Path(json.loads(done.stdout)["folder"])
    assert kept.is_dir()
    assert kept.parent == tmp_path / ".demo"
    assert str(kept) in done.stderr
