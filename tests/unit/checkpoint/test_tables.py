# SPDX-License-Identifier: Apache-2.0
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace

import pytest
from support.recording import begun

from rollout_router.checkpoint.rows import Recorded
from rollout_router.checkpoint.tables import (
    SCHEMA,
    all_rollouts,
    insert,
    insert_row,
    remove_intent,
    rollout_of,
    rows_of,
)

ROLLOUT = replace(begun("r"), claim_epoch=(1 << 63) - 1, head="h")
INTENT = Recorded(
    sequence=1,
    claim_epoch=1,
    kind="pay",
    effect="once",
    environment_id=None,
    request_digest="q",
    result=None,
    revision=None,
    orphans=0,
    chain=None,
)
DONE = replace(INTENT, result="{}", revision=1, chain="h")


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("PRAGMA foreign_keys=ON")
        db.executescript(SCHEMA)
        insert(db, "rollout", asdict(ROLLOUT))
        yield db


def test_rows_are_what_was_inserted_in_order(db: sqlite3.Connection) -> None:
    assert rollout_of(db, "r") == ROLLOUT
    assert rollout_of(db, "s") is None
    insert(db, "rollout", asdict(replace(ROLLOUT, rollout_id="a")))
    assert [one.rollout_id for one in all_rollouts(db)] == ["a", "r"]
    for sequence in (10, 9):
        insert_row(db, "r", replace(DONE, sequence=sequence))
    assert [row.sequence for row in rows_of(db, "r")] == [9, 10]
    assert rows_of(db, "a") == ()


def test_a_result_takes_the_place_of_an_intent_and_of_nothing_else(db: sqlite3.Connection) -> None:
    insert_row(db, "r", INTENT)
    insert_row(db, "r", DONE)
    remove_intent(db, "r", 1)
    assert rows_of(db, "r") == (DONE,)
    with pytest.raises(sqlite3.IntegrityError):
        insert_row(db, "r", DONE)


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("rollout", {**asdict(ROLLOUT), "rollout_id": "s", "status": "parked"}),
        ("rollout", {**asdict(ROLLOUT), "rollout_id": "s", "next": "one"}),
        ("operation", {"rollout_id": "r", **asdict(DONE), "effect": "twice"}),
        ("operation", {"rollout_id": "nobody", **asdict(DONE)}),
        ("outbox", {"rollout_id": "nobody", "receipt": "x", "payload": "{}"}),
    ],
)
def test_what_makes_no_sense_is_not_stored(
    db: sqlite3.Connection, table: str, values: dict[str, object]
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        insert(db, table, values)
