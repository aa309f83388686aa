# SPDX-License-Identifier: Apache-2.0
"""What checkpoints leave when something fails, is damaged, comes late or belongs to another run."""

import errno
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.deployment import Deploy, Deployment, Local, code_of

from rollout_router import operate
from rollout_router.checkpoint import control, holding, ledger
from rollout_router.checkpoint.control import Checkpoints
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.restoring import Imports, alone
from rollout_router.claims import Gate, read_gate, write_gate
from rollout_router.operate import Blocker, hold_admission

BLOCKER = Blocker(worker_id="w1", rollout_id="r1", claim_epoch=1, why="a call is in flight")


def published(deploy: Deploy, *rollouts: str) -> Deployment:
    """A deployment that published c1, and went away."""
    place = deploy()
    for rollout_id in rollouts:
        place.play(rollout_id, 3)
    place.taken()
    return place


def name_of(place: Deployment, rollout_id: str) -> str:
    return place.journal.environment_name(rollout_id, 0)


def before_put(place: Deployment, nth: int, act: Callable[[], object]) -> None:
    """Have something happen before the *nth* environment is given."""
    send, puts = place.server._sent, []

    def sent(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if method == "PUT":
            puts.append(path)
            if len(puts) == nth:
                act()
        return send(method, path, body)

    place.server._sent = sent  # type: ignore[method-assign]


def breaks() -> None:
    raise ConnectionResetError


def held_by(monkeypatch: pytest.MonkeyPatch, then: Callable[[], tuple[Blocker, ...]]) -> None:
    """Have workers answer what *then* does, after the gate was closed."""

    def held(*arguments: Any, **named: Any) -> tuple[Blocker, ...]:
        hold_admission(*arguments, **named)
        return then()

    monkeypatch.setattr(holding, "hold_admission", held)


# Damage

DAMAGE = {
    "result": ("done", "receipt_mismatch", "UPDATE outbox SET payload='[9]'"),
    "no result": ("done", "unknown_schema", "DELETE FROM outbox"),
    "operation": ("bad", "chain_broken", "UPDATE operation SET result='9' WHERE rollout_id='bad'"),
    "end": ("bad", "gap", "UPDATE rollout SET next=1 WHERE rollout_id='bad'"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_what_is_damaged_is_set_aside_and_the_others_are_kept(deploy: Deploy, what: str) -> None:
    damaged, code, change = DAMAGE[what]
    place = deploy()
    place.play("good", 2)
    place.play("bad", 2)
    place.play("done", 1, ends=True)
    with sqlite3.connect(place.journal.database.path) as db:
        db.execute(change)
    place.prepare()
    in_scope = code if damaged == "bad" else None
    if in_scope is not None:
        assert code_of(place.commit, scope=["good", damaged]) == in_scope
    place.commit()
    place.checkpoints.resume("c1")
    new = deploy("new")
    assert new.restore().numbers["quarantined"] == 1
    new.checkpoints.resume("c1")
    found = new.rollout(damaged)
    assert (found.status, found.reason) == ("quarantined", code)
    assert code_of(new.play, damaged, 1) == "rollout_quarantined"
    assert new.play("good", 3) == ["good 0", "good 1", "good 2"]
    new.journal.restart_now(damaged)
    used = [row.sequence for row in place.rows(damaged)]
    assert new.rollout(damaged).first > max(used)


# A restore that fails


@pytest.mark.parametrize("removed", [False, True])
def test_a_restore_that_fails_takes_back_what_it_made(deploy: Deploy, *, removed: bool) -> None:
    published(deploy, "r1", "r2")
    new = deploy("new")
    if removed:  # one of that name was here, and is remembered
        new.play("r1", 1)
        new.act(lambda run: new.environments.forget(run.environment_id), "r1")
        new.journal.database.write_now(lambda db: db.execute("DELETE FROM operation"))
        new.journal.database.write_now(lambda db: db.execute("DELETE FROM rollout"))
    before_put(new, 2, breaks)
    assert code_of(new.restore) == "environment_unreachable"
    assert (new.phases, new.gate_open) == ({}, True)
    assert new.lines(name_of(new, "r1")) is None
    if removed:
        assert code_of(new.play, "r1", 1) == "stale_operation"
    else:
        assert new.play("r1", 3, ends=True) == ["r1 0", "r1 1", "r1 2"]


def test_a_restore_that_failed_can_be_said_again(deploy: Deploy) -> None:
    published(deploy, "r1", "r2")
    new = deploy("new")
    before_put(new, 2, breaks)
    assert code_of(new.restore) == "environment_unreachable"
    assert new.restore().numbers == {"open": 2}


def test_a_restore_that_fails_leaves_what_was_there_and_what_was_used_since(
    deploy: Deploy,
) -> None:
    names = ["r1", "r2", "r3", "r4"]
    old = published(deploy, *names)
    new = deploy("new")
    copy = old.server.export(name_of(old, "r1"))
    assert copy is not None
    new.server.restore(copy, store_id=new.journal.store_id)

    def used_and_broken() -> None:
        change = "UPDATE environment SET claim_epoch=1 WHERE rollout_id='r3'"
        with sqlite3.connect(new.environments._database.path) as db:
            db.execute(change)
        raise ConnectionResetError

    before_put(new, 4, used_and_broken)
    assert code_of(new.restore) == "environment_unreachable"
    left = [name for name in names if new.lines(name_of(new, name))]
    assert left == ["r1", "r3"]


def test_what_ends_a_restore_after_its_last_word_takes_nothing_back(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(deploy, "r1")
    new = deploy("new")
    step = new.checkpoints._ledger.step

    def interrupted(checkpoint_id: str, event: Any, **named: Any) -> Any:
        done = step(checkpoint_id, event, **named)
        if event == "put_back":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(new.checkpoints._ledger, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        new.restore()
    assert (new.phases, new.gate_open) == ({"c1": "restored"}, False)
    new.checkpoints.resume("c1")
    assert new.play("r1", 4, ends=True) == [f"r1 {number}" for number in range(4)]
    assert [line for _, line in new.notebook.applied] == ["r1 3"]


def test_environments_that_cannot_be_taken_back_are_named(deploy: Deploy) -> None:
    published(deploy, "r1", "r2")
    new = deploy("new")

    def goes_down() -> None:
        new.server.down = True

    before_put(new, 2, goes_down)
    names = f"2 environments may be there still.*: {name_of(new, 'r1')}, {name_of(new, 'r2')}"
    with pytest.raises(CheckpointRefusal, match=names):
        new.restore()
    assert (new.phases, new.gate_open) == ({}, True)
    new.server.down = False
    assert new.restore().numbers == {"open": 2}


@pytest.mark.parametrize("how", ["over", "resumed", "opened"])
def test_a_restore_whose_gate_opened_restores_nothing(deploy: Deploy, how: str) -> None:
    published(deploy, "r1", "r2")
    new = deploy("new")
    acts: dict[str, Callable[[], object]] = {
        "over": lambda: new.clock.forward(61),
        "resumed": lambda: new.checkpoints.resume("c1"),
        "opened": lambda: write_gate(new.state, Gate(open=True, by="operator")),
    }
    before_put(new, 2, acts[how])
    assert code_of(new.restore) == "checkpoint_phase"
    assert (new.phases, new.gate_open) == ({}, True)
    assert [new.lines(name_of(new, one)) for one in ("r1", "r2")] == [None, None]
    assert new.play("r1", 3, ends=True) == ["r1 0", "r1 1", "r1 2"]


def test_behind_an_operators_gate_a_restore_waits_for_quiet_too(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(deploy, "r1")
    new = deploy("new")
    write_gate(new.state, Gate(open=False, by="operator", why="a look"))
    with monkeypatch.context() as patch:
        patch.setattr(operate, "_blockers", lambda *_: (BLOCKER,))
        assert code_of(new.restore) == "checkpoint_not_quiet"
    assert (new.phases, read_gate(new.state).by) == ({}, "operator")
    assert new.server.asked == []
    assert new.restore().checkpoint.phase == "restored"


def test_a_second_restore_that_fails_leaves_the_first_alone(deploy: Deploy) -> None:
    published(deploy, "r1", "r2")
    new = deploy("new")
    down = Local(new.receiver)
    down.down = True
    second = Checkpoints(new.journal, new.state, now=new.clock)

    def retried() -> None:
        named: Any = {"environments": down, "budget_s": 60, "wait_s": 0}
        assert code_of(second.restore, "c1", new.archives, **named) == "checkpoint_busy"
        assert not new.gate_open

    before_put(new, 2, retried)
    assert new.restore().checkpoint.phase == "restored"
    assert not new.gate_open


def test_a_restore_that_another_ended_first_begins_no_budget(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(deploy, "r1")
    new = deploy("new")

    def faster(*arguments: Any) -> Any:
        monkeypatch.undo()
        new.restore()
        new.clock.forward(50)
        return alone(*arguments)

    monkeypatch.setattr(control, "alone", faster)
    assert new.restore().checkpoint.phase == "restored"
    new.clock.forward(11)
    new.check_gate()


@pytest.mark.parametrize("how", ["again", "expired", "resumed", "failed"])
def test_a_restore_that_died_is_said_again_or_ends_with_its_budget(
    deploy: Deploy, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    published(deploy, "r1", "r2")
    new = deploy("new")
    with monkeypatch.context() as patch:  # of a process that died nothing is undone
        patch.setattr(new.checkpoints._ledger, "undo", lambda *_: True)
        patch.setattr(Imports, "take_back", lambda _: [])
        before_put(new, 2, breaks)
        assert code_of(new.restore) == "environment_unreachable"
    assert (new.phases, new.gate_open) == ({"c1": "restoring"}, False)
    match how:
        case "expired":
            new.clock.forward(61)
            assert new.gate_open
            assert new.phases == {}
            new.archives = new.archives.rename(folder / "moved")  # nothing is known of it
        case "resumed":
            assert new.checkpoints.resume("c1").phase == "none"
            assert new.gate_open
        case "failed":
            new.server.down = True
            before = new.dump()
            assert code_of(new.restore) == "environment_unreachable"
            assert new.dump() == before
            new.server.down = False
    assert new.restore().numbers == {"open": 2}
    new.check_gate()


# Whose gate it is


@pytest.mark.parametrize("other", [{"run": "run-2"}, {"instance": "another"}])
def test_a_resume_of_one_run_leaves_the_gate_of_another(
    deploy: Deploy, folder: Path, other: dict[str, str]
) -> None:
    first = published(deploy, "r1")
    second = deploy("second", archives=folder / "others", **other)
    second.prepare()
    assert first.checkpoints.resume("c1").phase == "resumed"
    assert not second.gate_open
    assert second.commit().records_count == 0


def test_the_longest_names_have_room_in_a_gate(deploy: Deploy) -> None:
    place = deploy("long", instance="i" * 200, run="r" * 200)
    assert place.prepare("c" * 200).checkpoint.phase == "prepared"
    assert not place.gate_open


# What comes late


@pytest.mark.parametrize("blockers", [(BLOCKER,), ()])
def test_a_prepare_that_outlives_its_budget_is_abandoned_for_good(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, blockers: tuple[Blocker, ...]
) -> None:
    place = deploy()

    def late(*arguments: Any, **named: Any) -> tuple[Blocker, ...]:
        place.clock.forward(1)
        hold_admission(*arguments, **named)
        place.clock.forward(59.5)  # the checkpoint's budget began before the gate's
        return blockers

    with monkeypatch.context() as patch:
        patch.setattr(holding, "hold_admission", late)
        if blockers:
            prepared = place.prepare()
            assert (prepared.checkpoint.phase, prepared.blockers) == ("abandoned", blockers)
        else:
            assert code_of(place.prepare) == "checkpoint_abandoned"
    assert (place.phases, place.gate_open) == ({"c1": "abandoned"}, True)
    assert code_of(place.prepare) == "checkpoint_abandoned"
    assert code_of(place.commit) == "checkpoint_abandoned"


def test_a_budget_that_is_renewed_while_it_is_cut_stops_no_commit(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = deploy()
    place.play("r1", 2)
    place.prepare()
    held_by(monkeypatch, lambda: (BLOCKER,))
    export = place.server.export

    def renewed(environment_id: str) -> Any:
        place.clock.forward(50)
        assert place.prepare().checkpoint.phase == "prepared"
        place.clock.forward(50)
        return export(environment_id)

    place.server.export = renewed  # type: ignore[method-assign]
    assert place.commit().records_count == 1
    assert place.phases == {"c1": "committed"}


def test_where_its_gate_was_opened_a_renewal_waits_for_quiet_anew(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = deploy()
    place.prepare()
    write_gate(place.state, Gate(open=True, by="operator"))
    with monkeypatch.context() as patch:
        held_by(patch, lambda: (BLOCKER,))
        assert place.prepare().checkpoint.phase == "preparing"
        assert code_of(place.commit) == "checkpoint_phase"
    assert place.prepare().checkpoint.phase == "prepared"


@pytest.mark.parametrize("step", ["resume", "expire"])
def test_a_renewal_that_comes_after_the_end_leaves_the_gate_open(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place = deploy()
    place.prepare()
    renew = operate.renew_admission

    def ended(*arguments: Any, **named: Any) -> bool:
        done = renew(*arguments, **named)
        if step == "resume":
            place.checkpoints.resume("c1")
        else:
            place.clock.forward(61)
        return done

    monkeypatch.setattr(holding, "renew_admission", ended)
    assert code_of(place.prepare) == "checkpoint_abandoned"
    assert place.gate_open


# An archive that cannot be read


def unreadable(place: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of c1 that died at its last step, and whose archive cannot be looked at since."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk")

    place.prepare()
    with monkeypatch.context() as patch:
        patch.setattr("rollout_router.checkpoint.archive.os.link", link)
        assert code_of(place.commit) == "archive_unavailable"
    (place.archives / "agent").chmod(0o777)


def test_an_archive_that_cannot_be_read_stops_its_own_checkpoint_alone(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = deploy()
    unreadable(place, monkeypatch)
    assert place.phases == {"c1": "unknown"}
    assert code_of(place.checkpoints.resume, "c1") == "archive_unavailable"
    assert place.gate_open  # whatever became of it
    assert code_of(place.prepare, "c2") == "checkpoint_busy"
    place.clock.forward(61)
    assert place.prepare("c2").checkpoint.phase == "prepared"
    assert place.phases == {"c1": "unknown", "c2": "prepared"}
    place.checkpoints.resume("c2")
    (place.archives / "agent").chmod(0o700)
    assert place.phases == {"c1": "abandoned", "c2": "abandoned"}


@pytest.mark.parametrize("call", ["resume", "known"])
def test_an_archive_that_hangs_stops_no_session(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    place = deploy()
    unreadable(place, monkeypatch)
    asked: list[object] = []

    def hangs(*_: object) -> bool:
        if not asked:
            asked.append(None)
            assert place.gate_open == (call == "resume")
            with closing(sqlite3.connect(place.journal.database.path, timeout=0)) as db, db:
                db.execute("UPDATE meta SET value=value")  # nobody has a lock
        return False

    monkeypatch.setattr(ledger, "is_published", hangs)
    (place.checkpoints.known if call == "known" else lambda: place.checkpoints.resume("c1"))()
    assert asked
