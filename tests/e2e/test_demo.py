# SPDX-License-Identifier: Apache-2.0
"""``rollout-router demo`` end to end: real processes, real kills (C3, H1, F2, S1)."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.gateway import COMMAND, PATIENCE_S

RECORDED = Path(__file__).parents[2].parent / "shared" / "rollouts"


def _demo(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [COMMAND, "demo", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def _check(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    assert shown["schema"] == 1
    assert shown["differences"] == []
    assert shown["failures"] == []
    assert shown["totals"]["finished"] == shown["totals"]["rollouts"] == len(shown["rollouts"])
    for rollout in shown["rollouts"]:
        assert rollout["answered"] == rollout["calls"]
        assert rollout["after"]["worker_id"] != rollout["before"]["worker_id"]
        assert rollout["after"]["claim_epoch"] > rollout["before"]["claim_epoch"]
        assert rollout["resyncs"] >= 1
    assert shown["totals"]["saved_percent"] >= 80
    return shown


def test_c3_rollouts_finish_though_their_owners_are_killed(folder: Path) -> None:
    shown = _check(_demo(folder, "--json", "--count", "3"))
    assert {rollout["dialect"] for rollout in shown["rollouts"]} == {"responses", "chat"}
    assert len(shown["kills"]) >= 2
    assert list(folder.iterdir()) == []  # nothing is left behind


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded rollouts are not beside the tree")
def test_c3_recorded_rollouts_finish_though_their_owners_are_killed(folder: Path) -> None:
    shown = _check(_demo(folder, "--json", "--rollouts", str(RECORDED)))
    assert shown["totals"]["rollouts"] == 30


@pytest.mark.long
def test_a_kept_folder_holds_the_captures(folder: Path) -> None:
    (folder / "in").mkdir()
    items = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (folder / "in" / "one.jsonl").write_text(
        json.dumps({"rollout_id": "only-one-call", "items": items})
    )
    done = _demo(folder, "--json", "--keep", "--rollouts", str(folder / "in"))
    assert done.returncode == 0, done.stderr
    kept = Path(json.loads(done.stdout)["folder"])
    assert kept.parent == folder / ".demo"
    lines = (kept / "capture" / "only-one-call.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["completed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rollouts", "nowhere"], "does not exist"),
        (["--rollouts", "bad"], "some.jsonl, line 1: this is not JSON"),
        (["--rollouts", "bad", "--count", "2"], "exclude each other"),
        (["--count", "0"], "0 is not in the range"),
    ],
)
def test_bad_input_ends_before_anything_starts(
    folder: Path, arguments: Sequence[str], said: str
) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / "some.jsonl").write_text("{")
    done = _demo(folder, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (folder / ".demo").exists()


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_everything_that_was_started(
    folder: Path, number: signal.Signals, code: int
) -> None:
    with (
        _not_ignored(number),
        subprocess.Popen(
            [COMMAND, "demo", "--count", "6"], cwd=folder, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        if process.stderr is None:
            raise RuntimeError("stderr is a pipe")
        for line in process.stderr:
            if " calls" in line:
                break
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(PATIENCE_S) == code
    assert len(started) >= 4  # the supervisor, two workers, and a shim
    assert [child for child in started if _runs(child)] == []
    assert list(folder.iterdir()) == []


@contextmanager
def _not_ignored(number: signal.Signals) -> Iterator[None]:
    """What is started meanwhile does not ignore the signal, though we may have been told to.

    A program keeps what its caller ignores, and so does the demonstration, as it should. In a job
    that a shell started with ``&`` that is SIGINT, for us and for all that we start. A signal that
    has a function here has its default in a program that is started (execve), so it gets one.
    """
    before = signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_the_environment_of_the_caller_changes_nothing(folder: Path) -> None:
    environment = {**os.environ, "ROLLOUT_ROUTER_UPSTREAM": "http://127.0.0.1:9"}
    (folder / "in").mkdir()
    items = [{"role": "assistant", "content": "ho"}]
    (folder / "in" / "one.jsonl").write_text(json.dumps({"rollout_id": "r1", "items": items}))
    done = subprocess.run(
        [COMMAND, "demo", "--rollouts", str(folder / "in")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "No difference." in done.stdout
