# SPDX-License-Identifier: Apache-2.0
"""``rollout-router checkpoint``: what it prints, how it ends, and what it leaves alone."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.deployment import Deployment, asked
from support.folders import private_folder

from rollout_router.claims import Gate, read_gate, write_gate
from rollout_router.cli.main import main
from rollout_router.operate import Blocker

HOLDING = "rollout_router.checkpoint.holding"


class Place:
    """A journal with a session that goes on, a result that waits, and one that is set aside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal, self.archives = folder / "d" / "journal", folder / "d" / "archives"
        with closing(Deployment(folder / "d")) as one:
            self.state = one.state
            self.store_id = one.journal.store_id
            one.act(asked, "open")
            one.play("waiting", 1, ends=True)
            one.act(lambda run: one.journal.quarantine(run.rollout, "gap"), "aside")

    def run(self, *arguments: str, journal: Path | None = None, code: int = 0) -> Result:
        where = ["--journal", str(journal or self.journal), "--state-dir", str(self.state)]
        if arguments[0] in ("commit", "restore", "inspect"):
            where += ["--archive", str(self.archives)]
        if arguments[0] == "inspect":
            where = where[4:]
        done = CliRunner().invoke(main, ["checkpoint", *arguments, *where])
        assert done.exit_code == code, done.output
        return done

    def json(self, *arguments: str, code: int = 0, journal: Path | None = None) -> Any:
        document = json.loads(self.run(*arguments, "--json", code=code, journal=journal).stdout)
        assert document.pop("schema") == 1
        return document


@pytest.fixture(scope="module")
def original() -> Iterator[Place]:
    with private_folder() as folder:
        yield Place(folder)


@pytest.fixture
def place(original: Place) -> Iterator[Place]:
    """The same for each test."""
    kept = original.journal.read_bytes()
    yield original
    original.journal.write_bytes(kept)
    shutil.rmtree(original.archives, ignore_errors=True)
    (original.state / "gate").unlink(missing_ok=True)


def test_a_checkpoint_is_taken_and_looked_at(place: Place) -> None:
    prepared = place.json("prepare", "c1", "--budget-seconds", "3600", "--wait-seconds", "0")
    assert 0 < prepared.pop("seconds_left") <= 3600
    assert prepared.pop("changed_at")
    assert prepared == {"checkpoint_id": "c1", "phase": "prepared", "blockers": []}

    manifest = place.json("commit", "c1")["manifest"]
    assert (manifest["records_count"], manifest["run"]) == (3, "run-1")
    assert [one["rollout_id"] for one in manifest["deliverable"]] == ["waiting"]
    assert place.json("commit", "c1")["manifest"] == manifest

    resumed = place.json("resume", "c1")
    assert (resumed["phase"], resumed["seconds_left"]) == ("resumed", None)
    looked = place.json("inspect", "c1", "--run", "run-1")
    assert looked["manifest"] == manifest
    assert looked["rollouts"][1] == {
        "rollout_id": "open",
        "kind": "open",
        "boundary": None,
        "operations": 1,
        "attempt": 1,
        "environments": 0,
        "receipt": None,
        "reason": "",
    }


def test_people_are_told_the_same(place: Place) -> None:
    waits = ("--wait-seconds", "0")
    assert place.run("prepare", "c1", *waits).stdout == "checkpoint c1 is prepared\n"
    status = place.run("status").stdout
    assert "run run-1: the gate is closed by checkpoint c1 of agent, run run-1: check" in status
    assert "quarantined" in status
    assert place.run("commit", "c1").stdout.startswith(
        "checkpoint c1 is committed; rollouts: 3, bytes: "
    )
    assert place.run("resume", "c1").stdout == "checkpoint c1 is resumed\n"
    assert "the gate is open" in place.run("status").stdout
    assert (
        "rollouts: 3, as they were published" in place.run("inspect", "c1", "--run", "run-1").stdout
    )
    new = ("restore", "c1", "--run", "run-1", "--service", "agent", *waits)
    said = place.run(*new, journal=place.folder / "n1").stdout
    assert said == "checkpoint c1 is restored: 1 quarantined, 1 open, 1 completed\n"


def test_status_says_all_and_changes_nothing(place: Place) -> None:
    place.run("prepare", "c1", "--wait-seconds", "0")
    before, gate = place.journal.read_bytes(), read_gate(place.state)
    document = place.json("status")
    assert document["checkpoints"][0]["phase"] == "prepared"
    assert document["sessions"] == {"open": 1, "completed": 1, "quarantined": 1}
    names = ("instance", "run", "store_id")
    assert [document[name] for name in names] == ["agent", "run-1", place.store_id]
    assert document["gate"] == {"open": False, "by": gate.by, "why": gate.why}
    assert (place.journal.read_bytes(), read_gate(place.state)) == (before, gate)


def test_blockers_are_named_and_the_gate_stays_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    blockers = (
        Blocker(worker_id="w1", rollout_id="r1", claim_epoch=3, why="a call is in flight"),
        Blocker(worker_id="w\x1b[2J", rollout_id=None, claim_epoch=None, why="silent"),
    )
    monkeypatch.setattr(f"{HOLDING}.hold_admission", lambda *_, **__: blockers)
    done = place.run("prepare", "c1", "--wait-seconds", "0", "--json", code=1)
    document = json.loads(done.stdout)
    assert document["phase"] == "preparing"
    assert document["blockers"][0]["claim_epoch"] == 3
    assert "worker w1, rollout r1: a call is in flight\n" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "../c1"],
        ["resume", ".c1"],
        ["prepare", "c1", "--wait-seconds", "10", "--budget-seconds", "5"],
        ["prepare", "c1", "--budget-seconds", "0"],
        ["prepare", "c1", "--budget-seconds", "nan"],
        ["commit", "c1", "--environment", "https://there"],
        ["commit", "c1", "--rollout", "a/b"],
        ["restore", "c1"],
        ["restore", "c1", "--run", "a b"],
        ["restore", "c1", "--run", "r", "--wait-seconds", "301"],
        ["inspect", "c1", "--run", "r", "--instance", ".."],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_wrong_usage(place: Place, arguments: list[str]) -> None:
    before = place.journal.read_bytes()
    place.run(*arguments, code=2)
    assert place.journal.read_bytes() == before
    assert read_gate(place.state).open


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resume", "c1"], "[checkpoint_phase]"),
        (["commit", "c1"], "[checkpoint_phase]"),
        (["inspect", "c1", "--run", "run-1"], "[manifest_missing]"),
        (["restore", "c1", "--run", "run-1"], "[manifest_missing]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_refusal_has_its_code_and_makes_nothing(
    place: Place, arguments: list[str], said: str
) -> None:
    new = place.folder / "none"
    where = new if arguments[0] == "restore" else None
    done = place.run(*arguments, code=4, journal=where)
    assert said in done.stderr
    assert done.stdout == ""
    assert not new.exists()
    assert not place.archives.exists()


def test_an_operators_gate_is_refused(place: Place) -> None:
    write_gate(place.state, Gate(open=False, by="operator", why="a look"))
    assert "[checkpoint_busy]" in place.run("prepare", "c1", "--wait-seconds", "0", code=4).stderr


def test_a_run_of_another_name_binds_no_journal(place: Place) -> None:
    place.run("prepare", "c1", "--wait-seconds", "0")
    place.run("commit", "c1")
    place.run("resume", "c1")
    new = place.folder / "n2"
    waits = ("--wait-seconds", "0")
    done = place.run("restore", "c1", "--run", "typo", *waits, code=4, journal=new)
    assert "[manifest_of_another]" in done.stderr
    document = place.json("restore", "c1", "--run", "run-1", *waits, journal=new)
    assert document["phase"] == "restored"
    assert document["rollouts"] == {"open": 1, "completed": 1, "quarantined": 1}


def test_a_restore_makes_the_store_of_a_server_that_was_never_there(place: Place) -> None:
    for step in (["prepare", "c1", "--wait-seconds", "0"], ["commit", "c1"], ["resume", "c1"]):
        place.run(*step)
    state = place.folder / "new state"
    arguments = ["restore", "c1", "--run", "run-1", "--wait-seconds", "0", "--json"]
    where = ["--archive", place.archives, "--journal", place.folder / "n3", "--state-dir", state]
    done = CliRunner().invoke(main, ["checkpoint", *arguments, *map(str, where)])
    assert done.exit_code == 0, done.output
    assert not read_gate(state).open


def test_damage_is_told_from_refusal(place: Place) -> None:
    place.run("prepare", "c1", "--wait-seconds", "0")
    place.run("commit", "c1")
    records = next((place.archives / "agent" / "c1").glob("records-*"))
    records.write_bytes(records.read_bytes()[:-1])
    assert "[manifest_damaged]" in place.run("inspect", "c1", "--run", "run-1", code=3).stderr


@pytest.mark.parametrize("content", [None, b"", b"no journal"])
def test_what_is_no_journal_is_refused_and_left(place: Place, content: bytes | None) -> None:
    path = place.folder / "other"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    assert "[journal_of_another]" in place.run("status", journal=path, code=4).stderr
    assert (path.read_bytes() if path.exists() else None) == content


def test_without_a_store_it_is_refused(place: Place) -> None:
    away = place.state.with_name("away")
    place.state.rename(away)
    try:
        place.run("prepare", "c1", "--wait-seconds", "0", code=4)
    finally:
        away.rename(place.state)
