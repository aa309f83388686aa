# SPDX-License-Identifier: Apache-2.0
"""``rollout-router sessions``: who owns which, and which are lost, since when and why (R3)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.folders import private_folder

from rollout_router.claims import FileClaimStore, Grant, LifeLock, new_nonce
from rollout_router.cli.main import main
from rollout_router.cli.setting_flags import SettingsCommand, told_by
from rollout_router.routing import SessionSettings

KEYS = {
    *("name", "claim_epoch", "state", "worker_id", "pid", "socket", "verdict"),
    *("claimed_at", "lost_at", "lost_because"),
}
DIGEST = f"session..{hashlib.sha256(b'a b').hexdigest()}"


class Place:
    """A store with a living owner of everything: a rollout, an owned session and a lost one."""

    def __init__(self, folder: Path) -> None:
        self.store = FileClaimStore.open(folder / "state", service="model")
        self.life = LifeLock.acquire(self.store, nonce=new_nonce(), socket="/nowhere")
        self.store.take("r1", self.life.owner)
        for name in ("session.owned", "session.lost", DIGEST):
            grant = self.store.take(name, self.life.owner, kind="session")
            assert isinstance(grant, Grant)
            if name == "session.lost":
                assert self.store.lose(grant, reason="the worker that owned it left\x1b[2J")

    def run(self, *arguments: str) -> Result:
        where = ("--state-dir", str(self.store.state_dir))
        return CliRunner().invoke(main, ["sessions", *arguments, *where])

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        assert done.exit_code == code, done.output
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@pytest.fixture
def place() -> Iterator[Place]:
    with private_folder() as folder:
        one = Place(folder)
        yield one
        one.life.close()


def test_r3_sessions_are_listed_by_name_the_lost_ones_with_reason_and_time(place: Place) -> None:
    document = place.json("list")

    assert (document["schema"], document["store_id"]) == (1, place.store.store_id)
    assert document["unreadable"] == []
    by_name = {row["name"]: row for row in document["sessions"]}
    assert list(by_name) == [DIGEST, "session.lost", "session.owned"]
    assert {frozenset(row) for row in by_name.values()} == {frozenset(KEYS)}
    owned, lost = by_name["session.owned"], by_name["session.lost"]
    assert (owned["state"], owned["verdict"], owned["pid"] is None) == ("owned", "alive", False)
    assert (owned["lost_at"], owned["lost_because"]) == (None, None)
    assert (lost["state"], lost["verdict"], lost["claimed_at"]) == ("lost", None, None)
    assert lost["worker_id"] == place.life.owner.nonce
    assert lost["lost_because"] == "the worker that owned it left\x1b[2J"
    tombstone = place.store.read("session.lost")
    assert tombstone is not None
    assert lost["lost_at"] == tombstone.at


def test_r3_the_table_says_the_same_to_people(place: Place) -> None:
    done = place.run("list")

    assert done.exit_code == 0
    assert "the worker that owned it left\\x1b[2J" in done.stdout
    assert "session.owned" in done.stdout
    assert "r1" not in done.stdout.split()


def test_c5_a_record_that_cannot_be_read_is_named_and_the_rest_is_shown(place: Place) -> None:
    path = Path(place.store.path_of("session.owned"))
    path.write_bytes(b"?")

    document = place.json("list", code=3)

    assert [bad["path"] for bad in document["unreadable"]] == [str(path)]
    assert {row["name"] for row in document["sessions"]} == {DIGEST, "session.lost"}
    shown = place.json("show", "owned", code=3)
    assert (shown["session"], shown["unreadable"]["path"]) == (None, str(path))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("session.owned", "session.owned"),
        ("owned", "session.owned"),
        ("a b", DIGEST),
        (DIGEST, DIGEST),
    ],
)
def test_r3_a_session_is_shown_by_its_name_or_by_its_id(
    place: Place, name: str, found: str
) -> None:
    document = place.json("show", name)

    assert (document["schema"], document["store_id"]) == (1, place.store.store_id)
    assert set(document["session"]) == KEYS
    assert document["session"]["name"] == found
    assert document["evidence"]["life_lock"] == "held"


def test_r3_a_lost_session_is_shown_with_its_reason(place: Place) -> None:
    document = place.json("show", "lost")

    assert "it left" in document["session"]["lost_because"]
    assert "the session was lost at" in document["evidence"]["reason"]
    assert "\\x1b" in place.run("show", "lost").stdout


@pytest.mark.parametrize("name", ["r1", "nobody", "session.a b", "../x", ""])
def test_r3_what_is_no_session_is_not_shown(place: Place, name: str) -> None:
    document = place.json("show", name, code=1)

    assert document["session"] is None
    assert "there is no session" in place.run("show", name).stderr


def test_a_name_that_is_no_text_is_wrong_usage(place: Place) -> None:
    done = place.run("show", "\udcff")

    assert done.exit_code == 2
    assert "Traceback" not in done.output


def test_r3_a_rollout_that_bears_the_name_of_a_session_is_none(place: Place) -> None:
    place.store.take("session.rollout", place.life.owner)

    assert "session.rollout" not in {row["name"] for row in place.json("list")["sessions"]}
    assert place.json("show", "rollout", code=1)["evidence"]["owner"] is None


@pytest.mark.parametrize("command", [["list"], ["show", "a"]])
def test_sessions_of_no_store_are_refused_and_none_is_made(
    tmp_path: Path, command: list[str]
) -> None:
    where = ("--state-dir", str(tmp_path / "none"))
    done = CliRunner().invoke(main, ["sessions", *command, *where])

    assert done.exit_code == 4
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((), None),
        (("--session-cookie", "sid"), SessionSettings(cookie="sid")),
        (("--session-header", "Session-Token"), SessionSettings(header="Session-Token")),
    ],
)
def test_r3_serve_is_told_how_sessions_are_named(
    flags: tuple[str, ...], named: SessionSettings | None
) -> None:
    told = told_by(SettingsCommand("serve").make_context("serve", list(flags)))

    assert told.config.settings().sessions == named


@pytest.mark.parametrize(
    "flags",
    [
        ("--session-cookie", "sid", "--session-header", "Session-Token"),
        ("--session-header", "x-session-id"),
        ("--session-cookie", "a b"),
    ],
)
def test_a_way_to_name_sessions_that_makes_no_sense_is_wrong_usage(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    places = ("--state-dir", str(tmp_path / "state"), "--run-dir", str(tmp_path / "run"))
    done = CliRunner().invoke(main, ["serve", "--port", "0", *places, *flags])

    assert done.exit_code == 2
    assert "session" in done.stderr
    assert not (tmp_path / "state").exists()
