# SPDX-License-Identifier: Apache-2.0
import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.recording import DIGESTS, TASK, dump, journal_in, on_a_loop, opened, refused, sql

from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal, Opened
from rollout_router.checkpoint.rows import Recorded, Rollout, check_whole

ROW = Recorded(
    sequence=1,
    claim_epoch=1,
    kind="step",
    effect="once",
    environment_id="e",
    request_digest="q",
    result=None,
    revision=None,
    orphans=0,
    chain=None,
)


def done(rollout: Rollout) -> Recorded:
    """The next operation of *rollout*."""
    row = replace(ROW, sequence=rollout.next, result="{}", revision=1)
    return replace(row, chain=row.linked(rollout.head))


Write = Callable[[Journal, Rollout], Awaitable[Any]]
WRITES: dict[str, Write] = {
    "append": lambda journal, rollout: journal.append(rollout, done(rollout)),
    "intend": lambda journal, rollout: journal.intend(rollout, ROW),
    "withdraw": lambda journal, rollout: journal.withdraw(rollout, ROW),
    "complete": lambda journal, rollout: journal.complete(rollout, {"reward": 1}),
    "restart": lambda journal, rollout: journal.restart(rollout, "divergence"),
    "quarantine": lambda journal, rollout: journal.quarantine(rollout, "gap"),
    "open": lambda journal, rollout: opened(journal, rollout.claim_epoch),
    "acknowledge": lambda journal, rollout: journal.acknowledge("r", rollout.claim_epoch, "x"),
    "check_receipt": lambda journal, rollout: journal.check_receipt("r", rollout.claim_epoch, "x"),
}


@pytest.mark.parametrize("name", WRITES)
@on_a_loop
async def test_f1_every_write_below_the_highest_epoch_is_refused(
    folder: Path, journal: Journal, name: str
) -> None:
    old = (await opened(journal, 5)).rollout
    with_another = journal_in(folder)  # as another process has it
    new = (await opened(with_another, 9)).rollout
    with_another.close()
    before = dump(folder)
    await refused("stale_attempt", WRITES[name](journal, old))
    assert dump(folder) == before
    restarted = journal_in(folder)
    await refused("stale_attempt", WRITES[name](restarted, old))
    assert dump(folder) == before
    assert (await restarted.append(new, done(new))).next == 2
    restarted.close()


@pytest.mark.parametrize("name", ["append", "intend", "complete", "restart", "quarantine"])
@on_a_loop
async def test_f1_a_write_of_a_rollout_that_went_on_without_it_is_refused(
    folder: Path, journal: Journal, name: str
) -> None:
    rollout = (await opened(journal)).rollout
    await journal.append(rollout, done(rollout))
    before = dump(folder)
    await refused("stale_attempt", WRITES[name](journal, rollout))
    assert dump(folder) == before


@on_a_loop
async def test_f1_the_epoch_is_seen_in_the_transaction_of_the_write(
    folder: Path, journal: Journal
) -> None:
    rollout = (await opened(journal)).rollout
    other = sqlite3.connect(folder / "journal.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with asyncio.TaskGroup() as tasks:
        write = journal.append(rollout, done(rollout))
        tasks.create_task(refused("stale_attempt", write))
        await asyncio.sleep(0)  # it waits for the lock that the other one holds
        other.execute("UPDATE rollout SET claim_epoch=2")
        other.execute("COMMIT")
    other.close()


@on_a_loop
async def test_f1_attempts_are_counted_one_by_one_while_epochs_jump(journal: Journal) -> None:
    seen = [(await opened(journal, epoch)).rollout for epoch in (3, 3, 1 << 32, 1 << 62)]
    assert [one.attempt for one in seen] == [1, 1, 2, 3]
    assert seen[-1].claim_epoch == 1 << 62


@on_a_loop
async def test_f1_a_result_that_was_taken_under_an_epoch_shuts_out_the_ones_before(
    journal: Journal,
) -> None:
    rollout = (await opened(journal, 2)).rollout
    result = await journal.complete(rollout, {})
    asked = {"task": TASK, **DIGESTS}
    assert await journal.open_rollout("r", 4, **asked) == result  # type: ignore[arg-type]
    await refused("stale_attempt", journal.acknowledge("r", 2, result.receipt))
    await refused("stale_attempt", opened(journal, 3))
    await journal.acknowledge("r", 6, result.receipt)
    await refused("stale_attempt", journal.acknowledge("r", 5, result.receipt))


@pytest.mark.parametrize("name", ["instance", "run", "store_id"])
def test_f1_a_journal_belongs_to_one_instance_run_and_store(folder: Path, name: str) -> None:
    journal_in(folder).close()
    before = dump(folder)
    with pytest.raises(CheckpointRefusal, match=name) as refusal:
        journal_in(folder, **{name: "another"})
    assert refusal.value.code == "journal_of_another"
    assert dump(folder) == before
    journal_in(folder).close()


@pytest.mark.parametrize("what", ["task", "loop", "configuration"])
@on_a_loop
async def test_a_rollout_is_continued_with_what_it_was_begun_with(
    folder: Path, journal: Journal, what: str
) -> None:
    await opened(journal)
    before = dump(folder)
    asked: dict[str, Any] = {"task": TASK, **DIGESTS}
    other = {**asked, what if what == "task" else f"{what}_digest": "other"}
    await refused(f"{what}_changed", journal.open_rollout("r", 2, **other))
    assert dump(folder) == before
    journal.restart_now("r")
    assert isinstance(await journal.open_rollout("r", 2, **other), Opened)
    await refused(f"{what}_changed", journal.open_rollout("r", 2, **asked))  # the next one alone


@on_a_loop
async def test_an_intent_is_replaced_by_its_result_or_withdrawn(journal: Journal) -> None:
    rollout = (await opened(journal)).rollout
    await journal.intend(rollout, ROW)
    assert (await opened(journal)).rows == (ROW,)
    await journal.withdraw(rollout, ROW)
    assert (await opened(journal)).rows == ()
    await journal.intend(rollout, ROW)
    rollout = await journal.append(rollout, done(rollout))
    found = await opened(journal)
    assert found.rollout == replace(rollout, reopened=1)
    assert [row.result for row in found.rows] == ["{}"]
    check_whole(found.rollout, found.rows)
    named = journal.environment_name("r", 0)
    assert await journal.environments_of("r") == {"e", named}


@on_a_loop
async def test_numbers_never_repeat_in_the_life_of_a_rollout(journal: Journal) -> None:
    rollout, used = (await opened(journal)).rollout, []
    for _ in range(3):
        for _ in range(2):
            used.append(rollout.next)
            rollout = await journal.append(rollout, done(rollout))
        used.append(rollout.next)  # sent, and its answer lost
        rollout = await journal.restart(rollout, "divergence")
        check_whole(rollout, (await opened(journal)).rows)
    used.append(journal.restart_now("r").next)
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("trigger", [False, True])
@on_a_loop
async def test_completion_and_its_entry_in_the_outbox_are_one(
    folder: Path, journal: Journal, *, trigger: bool
) -> None:
    rollout = (await opened(journal)).rollout
    if trigger:
        sql(
            folder, "CREATE TRIGGER no BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    else:
        sql(folder, "INSERT INTO outbox VALUES ('r', 'x', '{}')")
    before = dump(folder)
    with pytest.raises(sqlite3.IntegrityError):
        await journal.complete(rollout, {})
    assert dump(folder) == before
    sql(folder, "DROP TRIGGER no" if trigger else "DELETE FROM outbox")
    assert (await journal.complete(rollout, {})).payload == "{}"


@on_a_loop
async def test_what_can_be_continued_is_never_what_can_be_delivered(
    folder: Path, journal: Journal
) -> None:
    asked: Any = {"task": TASK, **DIGESTS}
    rollout = (await opened(journal)).rollout
    rollout = await journal.append(rollout, done(rollout))
    await refused("rollout_open", journal.acknowledge("r", 1, "x"))
    result = await journal.complete(rollout, {"a": (1,)})
    assert await journal.open_rollout("r", 1, **asked) == result
    assert result.payload == '{"a":[1]}'
    for name in ("append", "complete", "restart", "quarantine"):
        await refused("rollout_completed", WRITES[name](journal, rollout))
    with pytest.raises(CheckpointRefusal, match="completed"):
        journal.restart_now("r")
    before = dump(folder)
    await refused("receipt_mismatch", journal.acknowledge("r", 1, "x"))
    assert dump(folder) == before
    await journal.acknowledge("r", 1, result.receipt)
    assert dump(folder)["operation"] == []
    assert dump(folder)["outbox"] == [("r", result.receipt, None)]
    await journal.acknowledge("r", 1, result.receipt)
    await refused("receipt_mismatch", journal.acknowledge("r", 1, "x"))
    await refused("result_acknowledged", journal.open_rollout("r", 2, **asked))


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE outbox SET payload='{\"reward\":1}'",
        "UPDATE outbox SET receipt='x'",
        "UPDATE outbox SET payload=NULL",
        "DELETE FROM outbox",
        "UPDATE rollout SET head='x'",
    ],
)
@on_a_loop
async def test_a_result_that_is_not_what_was_completed_is_not_given_out(
    folder: Path, journal: Journal, change: str
) -> None:
    await journal.complete((await opened(journal)).rollout, {"reward": 0})
    sql(folder, change)
    await refused("chain_broken", opened(journal))


@on_a_loop
async def test_a_rollout_that_was_set_aside_waits_for_somebody(journal: Journal) -> None:
    rollout = (await opened(journal)).rollout
    rollout = await journal.append(rollout, done(rollout))
    await journal.quarantine(rollout, "gap")
    await refused("rollout_quarantined", opened(journal, 2))
    for name in ("append", "complete", "restart"):
        await refused("rollout_quarantined", WRITES[name](journal, rollout))
    await refused("rollout_open", journal.acknowledge("r", 1, "x"))
    journal.restart_now("r")
    found = await opened(journal, 2)
    assert (found.rollout.attempt, found.rows) == (2, ())
    check_whole(found.rollout, found.rows)


@on_a_loop
async def test_what_nobody_knows_is_refused(journal: Journal) -> None:
    with pytest.raises(CheckpointRefusal, match="does not know"):
        journal.restart_now("r")
    await refused("rollout_unknown", journal.acknowledge("r", 1, "x"))
    await refused("rollout_unknown", journal.check_receipt("r", 1, "x"))
    assert await journal.environments_of("r") == set()


@on_a_loop
async def test_a_result_is_told_whatever_the_loop_is_now(journal: Journal) -> None:
    result = await journal.complete((await opened(journal)).rollout, {"a": 1})
    for changed in ({"loop_digest": "new"}, {"configuration_digest": "new"}):
        asked = {**DIGESTS, **changed}
        assert await journal.open_rollout("r", 1, task=TASK, **asked) == result
    await refused("task_changed", journal.open_rollout("r", 1, task="other", **DIGESTS))


@on_a_loop
async def test_a_result_is_not_acknowledged_by_who_never_had_it_and_frees_its_task(
    folder: Path, journal: Journal
) -> None:
    result = await journal.complete((await opened(journal)).rollout, {"a": 1})
    wrong = await refused("receipt_mismatch", journal.acknowledge("r", 1, "x"))
    assert result.receipt not in wrong.message
    await journal.acknowledge("r", 1, result.receipt)
    assert sql(folder, "SELECT task FROM rollout") == [("null",)]
    await refused("result_acknowledged", opened(journal, 2))


def test_what_a_death_left_half_written_is_taken_back_by_a_command(folder: Path) -> None:
    journal_in(folder).close()
    path = folder / "journal.sqlite3"
    script = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN IMMEDIATE")
for n in range(200):
    db.execute("INSERT INTO meta VALUES (?, ?)", (f"n{n}", "x" * 4000))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0
    with closing(Journal.existing(path)) as found:
        assert found.instance
    assert sql(folder, "SELECT count(*) FROM meta") == [(3,)]


@on_a_loop
async def test_a_damaged_result_can_be_given_up_and_a_whole_one_cannot(
    folder: Path, journal: Journal
) -> None:
    await journal.complete((await opened(journal)).rollout, {"a": 1})
    with pytest.raises(CheckpointRefusal, match="its result stands"):
        journal.restart_now("r")
    sql(folder, "UPDATE outbox SET payload='{}'")
    await refused("chain_broken", opened(journal))
    journal.restart_now("r")
    assert sql(folder, "SELECT * FROM outbox") == []
    assert (await opened(journal)).rollout.restarts == 1
