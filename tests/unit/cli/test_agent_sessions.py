# SPDX-License-Identifier: Apache-2.0
"""``rollout-router sessions --journal``: what the sessions of an agent server did."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.deployment import DIGESTS, Deployment, asked
from support.folders import private_folder

from rollout_router.checkpoint.journal import Journal
from rollout_router.cli.main import main

TASK = {"scenario": "s", "seed": 1}


class Place:
    def __init__(self, folder: Path) -> None:
        self.journal = folder / "d" / "journal"
        with closing(Deployment(folder / "d")) as one:
            one.act(asked, "open")
            one.act(lambda run: run.complete({"reward": 1}), "waiting")
            one.act(lambda run: run.complete({"reward": 1}), "taken")
            one.acknowledge("taken")
            one.act(asked, "aside")
            one.act(lambda run: one.journal.quarantine(run.rollout, "gap"), "aside")

            async def begin(_: object) -> None:
                await one.journal.open_rollout("tool", 1, task=TASK, **DIGESTS)

            one.act(begin, "open")

    def run(self, *arguments: str, code: int = 0) -> Result:
        where = ("--journal", str(self.journal))
        done = CliRunner().invoke(main, ["sessions", *arguments, *where])
        assert done.exit_code == code, done.output
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def change(self, statement: str) -> None:
        with closing(Journal.existing(self.journal)) as journal:
            journal.database.write_now(lambda db: db.execute(statement))


@pytest.fixture(scope="module")
def original() -> Iterator[Place]:
    with private_folder() as folder:
        yield Place(folder)


@pytest.fixture
def place(original: Place) -> Iterator[Place]:
    kept = original.journal.read_bytes()
    yield original
    original.journal.write_bytes(kept)


def test_every_session_is_listed_with_what_became_of_it(place: Place) -> None:
    before = place.journal.read_bytes()
    document = place.json("list")
    assert (document["schema"], document["run"]) == (1, "run-1")
    rows = {row["rollout_id"]: row for row in document["sessions"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "aside": "quarantined",
        "open": "open",
        "taken": "acknowledged",
        "tool": "open",
        "waiting": "completed",
    }
    names = {"rollout_id", "status", "operations", "attempt", "restarts", "claim_epoch"}
    assert rows["open"].keys() == names | {"reason", "changed_at"}
    assert (rows["open"]["operations"], rows["aside"]["reason"]) == (1, "gap")
    assert "quarantined" in place.run("list").stdout
    assert place.journal.read_bytes() == before


def test_one_is_shown_with_its_operations(place: Place) -> None:
    before = place.journal.read_bytes()
    document = place.json("show", "open")
    assert document["session"]["rollout_id"] == "open"
    assert [row["kind"] for row in document["operations"]] == ["model"]
    assert (document["boundary"], document["receipt"], document["damage"]) == (None, None, None)
    assert place.json("show", "tool")["boundary"]["kind"] == "pending_model"
    assert "stands at pending_model" in place.run("show", "tool").stdout
    assert "model" in place.run("show", "open").stdout
    for name in ("waiting", "taken"):
        assert place.json("show", name)["receipt"]
    assert place.journal.read_bytes() == before


@pytest.mark.parametrize(("name", "status"), [("open", "open"), ("aside", "quarantined")])
def test_damage_is_named_whoever_set_it_aside(place: Place, name: str, status: str) -> None:
    place.change(f"UPDATE operation SET kind='step' WHERE rollout_id='{name}'")  # noqa: S608 - ours
    done = place.run("show", name, "--json", code=3)
    document = json.loads(done.stdout)
    assert (document["damage"]["code"], document["session"]["status"]) == ("chain_broken", status)
    assert "operation 1 is not what was recorded" in done.stderr


def test_one_that_is_not_there_is_no_damage(place: Place) -> None:
    done = place.run("show", "none\x1b[2J", code=1)
    assert done.stdout == ""
    assert "knows no rollout none" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("name", ["open", "aside"])
def test_a_restart_is_a_dry_run_until_it_is_meant(place: Place, name: str) -> None:
    before = place.journal.read_bytes()
    said = place.run("restart", name).stdout
    assert f"would give up 1 operations of rollout {name}" in said
    assert place.journal.read_bytes() == before
    assert "begins anew" in place.run("restart", name, "--yes").stdout
    session = place.json("show", name)["session"]
    assert (session["status"], session["reason"], session["first"]) == ("open", "operator", 3)


@pytest.mark.parametrize("yes", [[], ["--yes"]])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("none", "rollout_unknown"),
        ("waiting", "rollout_completed"),
        ("taken", "rollout_completed"),
    ],
)
def test_what_cannot_begin_anew_is_refused_in_a_dry_run_too(
    place: Place, name: str, code: str, yes: list[str]
) -> None:
    before = place.journal.read_bytes()
    assert f"[{code}]" in place.run("restart", name, *yes, code=4).stderr
    assert place.journal.read_bytes() == before


def test_an_empty_journal_has_no_sessions(place: Place) -> None:
    for table in ("operation", "outbox", "rollout"):
        place.change(f"DELETE FROM {table}")  # noqa: S608 - ours
    assert place.run("list").stdout == "no sessions\n"
    assert place.json("list")["sessions"] == []
