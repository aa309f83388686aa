# SPDX-License-Identifier: Apache-2.0
import asyncio
import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.deployment import Deploy, Deployment, code_of

from rollout_router.checkpoint import control, cut, holding, ledger
from rollout_router.checkpoint.archive import read_archive
from rollout_router.checkpoint.control import Checkpoints
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.phases import ACTIVE
from rollout_router.checkpoint.records import Kept
from rollout_router.checkpoint.restoring import kept_in
from rollout_router.checkpoint.tables import save_checkpoint
from rollout_router.claims import Gate, StoreRefused, read_gate, write_gate
from rollout_router.operate import Blocker, hold_admission


def kept_of(place: Deployment, name: str = "c1") -> dict[str, Kept]:
    journal = place.journal
    archive = read_archive(
        place.archives, instance=journal.instance, run=journal.run, checkpoint_id=name
    )
    return {one.rollout.rollout_id: one for one in kept_in(archive)}


def operator_closes(place: Deployment) -> None:
    write_gate(place.state, Gate(open=False, by="operator", why="a look"))


def one_of_each(place: Deployment) -> None:
    """Rollouts that go on, that wait to be taken, that were taken, and that are set aside."""
    place.play("open", 2)
    place.play("waiting", 2, ends=True)
    place.play("taken", 1, ends=True)
    place.acknowledge("taken")
    place.play("aside", 1)
    place.act(lambda run: place.journal.quarantine(run.rollout, "divergence"), "aside")
    place.play("lost", 2)
    place.act(lambda run: place.environments.forget(run.environment_id), "lost")


def test_a_checkpoint_goes_through_its_phases_and_the_gate_with_it(deploy: Deploy) -> None:
    place = deploy()
    place.play("r1", 2)
    for step, phase in (("prepare", "prepared"), ("commit", "committed")):
        getattr(place, step)()
        assert place.phases == {"c1": phase}
        place.check_gate()
    assert place.checkpoints.resume("c1").phase == "resumed"
    place.check_gate()
    place.play("r1", 3)


def test_each_step_again_has_the_same_answer_and_changes_nothing(deploy: Deploy) -> None:
    place = deploy()
    place.play("r1", 2)
    place.prepare()
    assert place.prepare().checkpoint.phase == "prepared"
    manifest = place.commit()
    after = place.dump()
    assert place.commit() == manifest
    assert place.dump() == after
    place.checkpoints.resume("c1")
    place.play("r1", 3)
    after = place.dump()
    assert place.commit() == manifest  # not one of the session as it is now
    assert place.checkpoints.resume("c1").phase == "resumed"
    assert place.dump() == after


def test_other_arguments_under_one_id_are_a_conflict(deploy: Deploy, folder: Path) -> None:
    place = deploy()
    place.play("r1", 1)
    place.prepare()
    place.commit()
    before = place.dump()
    assert code_of(place.commit, scope=["r1"]) == "checkpoint_conflict"
    elsewhere = folder / "elsewhere"
    call = place.checkpoints.commit
    assert code_of(call, "c1", elsewhere, environments=None) == "checkpoint_conflict"
    assert not elsewhere.exists()
    assert place.dump() == before

    new = deploy("new")
    new.restore()
    named: Any = {"environments": new.server, "budget_s": 9, "wait_s": 0}
    assert code_of(new.checkpoints.restore, "c1", elsewhere, **named) == "checkpoint_conflict"


def test_a_refused_commit_pins_nothing(deploy: Deploy) -> None:
    place = deploy()
    place.play("r1", 1)
    place.prepare()
    assert code_of(place.commit, scope=["none"]) == "rollout_unknown"
    assert place.commit(scope=["r1"]).records_count == 1


@pytest.mark.parametrize("call", ["prepare", "commit", "resume", "restore"])
def test_a_checkpoint_has_the_form_of_an_id(deploy: Deploy, call: str) -> None:
    place = deploy()
    before = place.dump()
    step = place.checkpoints.resume if call == "resume" else getattr(place, call)
    with pytest.raises(ValueError, match="not an id"):
        step("../c1")
    assert place.dump() == before
    assert place.gate_open


@pytest.mark.parametrize(("budget_s", "wait_s"), [(0, 0), (5, 6), (1e9, 0), (5, -1)])
def test_a_budget_out_of_its_bounds_changes_nothing(
    deploy: Deploy, budget_s: float, wait_s: float
) -> None:
    place = deploy()
    with pytest.raises(ValueError, match=r"a budget|a wait"):
        place.checkpoints.prepare("c1", budget_s=budget_s, wait_s=wait_s)
    assert place.phases == {}
    assert place.gate_open


@pytest.mark.parametrize("call", ["commit", "resume", "restore"])
def test_what_never_was_prepared_is_refused(deploy: Deploy, call: str) -> None:
    place = deploy()
    step = place.checkpoints.resume if call == "resume" else getattr(place, call)
    code = "manifest_missing" if call == "restore" else "checkpoint_phase"
    assert code_of(step, "c1") == code
    assert place.phases == {}
    assert place.gate_open


def test_without_a_store_nothing_is_prepared(deploy: Deploy, folder: Path) -> None:
    place = deploy(state=folder / "store")
    shutil.rmtree(place.state)
    with pytest.raises(StoreRefused):
        place.prepare()
    assert place.phases == {}
    assert not place.state.exists()
    with pytest.raises(StoreRefused):
        Checkpoints(place.journal, place.state)


def test_another_store_has_another_gate(deploy: Deploy) -> None:
    place, other = deploy(), deploy("other")
    assert code_of(Checkpoints, place.journal, other.state) == "journal_of_another"


@pytest.mark.parametrize("boots", [False, True])
@pytest.mark.parametrize(
    ("steps", "ended"),
    [(["prepare"], "abandoned"), (["prepare", "commit"], "resumed"), (["restore"], "resumed")],
)
def test_a_budget_that_ends_is_a_resume_that_nobody_asked_for(
    deploy: Deploy, steps: list[str], ended: str, *, boots: bool
) -> None:
    if steps == ["restore"]:
        deploy("first").taken()
    place = deploy()
    for step in steps:
        getattr(place, step)()
    place.clock.forward(59)
    place.check_gate()
    assert set(place.phases.values()) <= ACTIVE
    if boots:
        place.clock.reboot()
    else:
        place.clock.forward(1)
    assert place.phases == {"c1": ended}
    assert place.checkpoints.resume("c1").phase == ended
    place.clock.forward(1)
    assert place.gate_open
    place.prepare("c2")  # which is in nobody's way


def test_a_budget_begins_anew_with_each_prepare(deploy: Deploy) -> None:
    place = deploy()
    place.prepare()
    place.clock.forward(50)
    place.prepare()
    place.clock.forward(50)
    assert place.phases == {"c1": "prepared"}
    place.check_gate()


@pytest.mark.parametrize("how", ["resumed", "expired"])
def test_what_was_abandoned_is_never_published(deploy: Deploy, how: str) -> None:
    place = deploy()
    place.prepare()
    if how == "resumed":
        place.checkpoints.resume("c1")
    else:
        place.clock.forward(61)
    before = place.dump()
    for step in (place.prepare, place.commit, place.restore):
        assert code_of(step) == "checkpoint_abandoned"
    assert place.dump() == before
    assert place.gate_open
    assert not place.archives.exists()


@pytest.mark.parametrize("how", ["resumed", "expired", "an operator opened"])
def test_what_ends_while_it_is_cut_is_not_published(deploy: Deploy, how: str) -> None:
    place = deploy()
    place.play("r1", 1)
    place.prepare()
    export = place.server.export

    def ended(environment_id: str) -> Any:
        match how:
            case "resumed":
                place.checkpoints.resume("c1")
            case "expired":
                place.clock.forward(61)
            case _:
                write_gate(place.state, Gate(open=True, by="operator"))
        return export(environment_id)

    place.server.export = ended  # type: ignore[method-assign]
    code = "checkpoint_phase" if how == "an operator opened" else "checkpoint_abandoned"
    assert code_of(place.commit) == code
    assert code_of(kept_of, place) == "manifest_missing"


@pytest.mark.parametrize("how", ["commit", "resume", "expire", "prepare", "status"])
def test_what_got_its_name_before_its_committer_died_is_committed(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    place = deploy()
    place.play("r1", 2)
    place.prepare()
    with monkeypatch.context() as patch:

        def dying(db: Any, one: Any) -> None:
            if one.phase == "committed":
                error = sqlite3.OperationalError("of this transaction nothing stays")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise error
            save_checkpoint(db, one)

        patch.setattr(ledger, "save_checkpoint", dying)
        assert code_of(place.commit) == "journal_unavailable"
    place.close()
    place = deploy()
    manifest = kept_of(place)
    assert set(manifest) == {"r1"}
    match how:
        case "commit":
            place.commit()
            assert place.phases == {"c1": "committed"}
        case "resume":
            assert place.checkpoints.resume("c1").phase == "resumed"
        case "expire":
            place.clock.forward(61)
            assert place.phases == {"c1": "resumed"}
            place.commit()
        case "prepare":
            assert code_of(place.prepare) == "checkpoint_phase"
        case "status":
            assert place.phases == {"c1": "committed"}
    place.check_gate()
    shutil.rmtree(place.archives)
    if how in ("commit", "resume", "expire"):  # it is written down by now
        assert place.phases["c1"] in ("committed", "resumed")


def test_where_nobody_can_tell_whether_it_was_published_nothing_follows(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = deploy()
    place.prepare()

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk")

    with monkeypatch.context() as patch:
        patch.setattr("rollout_router.checkpoint.archive.os.link", link)
        assert code_of(place.commit) == "archive_unavailable"
    (place.archives / "agent" / "c1").chmod(0o777)
    before = place.dump()
    assert code_of(place.checkpoints.resume, "c1") == "archive_unavailable"
    assert place.dump() == before
    (place.archives / "agent" / "c1").chmod(0o700)
    assert place.checkpoints.resume("c1").phase == "abandoned"


def test_an_archive_that_cannot_be_used_stops_nothing_but_its_commit(deploy: Deploy) -> None:
    place = deploy()
    (place.archives / "agent").mkdir(0o777, parents=True)
    (place.archives / "agent").chmod(0o777)
    place.prepare()
    assert code_of(place.commit) == "archive_unavailable"
    assert place.phases == {"c1": "prepared"}
    assert place.checkpoints.resume("c1").phase == "abandoned"
    place.prepare("c2")


def test_one_checkpoint_at_a_time_and_the_other_is_named(deploy: Deploy) -> None:
    place = deploy()
    place.taken("c0")
    shutil.copytree(place.archives / "agent" / "c0", place.archives / "agent" / "c2")
    place.prepare()
    before = place.dump()
    for step in (place.prepare, place.restore):
        with pytest.raises(CheckpointRefusal, match="checkpoint c1 holds the gate") as caught:
            step("c2")
        assert caught.value.code == "checkpoint_busy"
    assert place.dump() == before
    place.commit()  # it was in nobody's way
    assert place.commit("c0").checkpoint_id == "c0"


@pytest.mark.parametrize("renewed", [False, True])
def test_an_operators_closed_gate_is_not_taken(deploy: Deploy, *, renewed: bool) -> None:
    place = deploy()
    if renewed:
        place.prepare()
    operator_closes(place)
    before = place.dump()
    assert code_of(place.prepare) == "checkpoint_busy"
    assert place.dump() == before
    assert read_gate(place.state).by == "operator"
    if renewed:
        assert code_of(place.commit) == "checkpoint_phase"
        place.checkpoints.resume("c1")
    assert read_gate(place.state).by == "operator"


def test_a_restore_leaves_the_gate_to_the_operator_who_closed_it(deploy: Deploy) -> None:
    deploy().taken()
    new = deploy("new")
    operator_closes(new)
    assert new.restore().checkpoint.phase == "restored"
    new.checkpoints.resume("c1")
    assert read_gate(new.state).by == "operator"


BLOCKER = Blocker(worker_id="w1", rollout_id="r1", claim_epoch=1, why="a call is in flight")


def blocked(monkeypatch: pytest.MonkeyPatch, then: Any = None) -> None:
    """Have workers in hand what they are asked for."""

    def held(*arguments: Any, **named: Any) -> Any:
        hold_admission(*arguments, **named)
        if then is not None:
            then()
        return () if then else (BLOCKER,)

    monkeypatch.setattr(holding, "hold_admission", held)


def test_with_blockers_the_gate_stays_closed_and_the_next_prepare_goes_on(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = deploy()
    with monkeypatch.context() as patch:
        blocked(patch)
        found = place.prepare()
        assert (found.checkpoint.phase, found.blockers) == ("preparing", (BLOCKER,))
        assert not place.gate_open
        assert code_of(place.commit) == "checkpoint_phase"
    assert place.prepare().checkpoint.phase == "prepared"


def test_a_restore_that_is_not_quiet_names_who_is_not(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy().taken()
    new = deploy("new")
    blocked(monkeypatch)
    with pytest.raises(CheckpointRefusal, match="w1, rollout r1") as caught:
        new.restore()
    assert caught.value.code == "checkpoint_not_quiet"
    assert new.phases == {}
    assert new.gate_open


@pytest.mark.parametrize("ends", [True, False])
def test_a_resume_during_a_prepare_is_the_last_word(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    place = deploy()

    def resumed() -> None:
        place.checkpoints.resume("c1")
        if ends:
            raise KeyboardInterrupt

    blocked(monkeypatch, resumed)
    with pytest.raises(KeyboardInterrupt if ends else CheckpointRefusal):
        place.prepare()
    assert place.phases == {"c1": "abandoned"}
    assert place.gate_open


def test_a_prepare_that_is_interrupted_leaves_no_trace(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = deploy()

    def interrupted() -> None:
        raise KeyboardInterrupt

    blocked(monkeypatch, interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.prepare()
    assert place.phases == {}
    assert place.gate_open


def test_what_is_restored_goes_on_where_it_was_and_repeats_nothing(deploy: Deploy) -> None:
    old, never = deploy(), deploy("never")
    one_of_each(old)
    never.play("open", 4, ends=True)
    manifest = old.taken()
    assert {one.rollout_id for one in manifest.deliverable} == {"waiting"}
    assert manifest.restarts == ("lost",)

    new = deploy("new")
    assert new.restore().numbers == dict.fromkeys(
        ("open", "completed", "acknowledged", "restart", "quarantined"), 1
    )
    new.check_gate()
    new.checkpoints.resume("c1")
    asked = len(new.notebook.applied)
    assert asked == 0
    assert new.play("open", 4, ends=True) == [f"open {number}" for number in range(4)]
    assert [line for _, line in new.notebook.applied] == ["open 2", "open 3"]
    assert new.outbox("open") == never.outbox("open")  # receipt and bytes: as never interrupted


def test_a_result_that_waited_is_delivered_again_and_one_that_was_taken_never_runs(
    deploy: Deploy,
) -> None:
    old = deploy()
    one_of_each(old)
    old.taken()
    new = deploy("new")
    new.restore()
    new.checkpoints.resume("c1")

    assert new.outbox("waiting") == old.outbox("waiting")
    assert new.play("waiting", 2) == ["waiting 0", "waiting 1"]
    assert new.notebook.applied == []
    new.acknowledge("waiting")
    for rollout_id in ("taken", "waiting"):
        assert code_of(new.play, rollout_id, 1) == "result_acknowledged"


def test_what_cannot_be_carried_over_begins_anew_with_other_numbers_and_another_environment(
    deploy: Deploy,
) -> None:
    old = deploy()
    one_of_each(old)
    old.taken()
    new = deploy("new")
    new.restore()
    new.checkpoints.resume("c1")
    names = [place.act(_environment, "lost", epoch=9) for place in (old, new)]
    before, after = old.rollout("lost"), new.rollout("lost")
    assert names[0] != names[1]
    assert after.first == after.next == before.next + 1
    assert (after.restarts, after.reason) == (1, "environment_lost")
    new.play("lost", 1, epoch=9)
    assert [row.sequence for row in new.rows("lost")] == [after.first]


def test_what_was_set_aside_stays_so_until_somebody_restarts_it(deploy: Deploy) -> None:
    old = deploy()
    one_of_each(old)
    old.taken()
    new = deploy("new")
    new.restore()
    new.checkpoints.resume("c1")
    before, after = old.rollout("aside"), new.rollout("aside")
    assert (after.status, after.reason) == ("quarantined", "divergence")
    assert code_of(new.play, "aside", 2, ends=True) == "rollout_quarantined"
    new.journal.restart_now("aside")
    new.play("aside", 1, epoch=2)
    assert [row.sequence > before.next for row in new.rows("aside")] == [True]
    assert new.act(_environment, "aside", epoch=2) != old.journal.environment_name("aside", 0)


async def _environment(run: Any) -> str:
    return str(run.environment_id)


def test_an_operation_whose_answer_was_lost_is_answered_from_the_environments_record(
    deploy: Deploy,
) -> None:
    old = deploy()
    old.play("r1", 2)

    async def lost(run: Any) -> None:
        keeping = old.journal.append
        old.journal.append = None  # type: ignore[method-assign, assignment]
        await old.one(run, 0)
        await old.one(run, 1)
        with pytest.raises(TypeError):
            await old.one(run, 2)
        old.journal.append = keeping  # type: ignore[method-assign]

    old.act(lost, "r1")
    environment_id = old.act(_environment, "r1")
    assert len(old.lines(environment_id)) == 3
    assert len(old.rows("r1")) == 2
    old.taken()
    assert kept_of(old)["r1"].environments[0]["revision"] == 3

    new = deploy("new")
    new.restore()
    new.checkpoints.resume("c1")
    assert new.play("r1", 4) == [f"r1 {number}" for number in range(4)]
    assert [line for _, line in new.notebook.applied] == ["r1 3"]


def test_an_environment_that_somebody_else_acted_on_is_no_cut(deploy: Deploy) -> None:
    place = deploy()
    place.play("r1", 2)
    environment_id = place.act(_environment, "r1")
    found: Any = asyncio.run(place.environments.look(environment_id))
    behind = place.server.export(environment_id)
    assert behind is not None
    place.play("r1", 3)
    asyncio.run(place.environments.forget(environment_id))
    place.server.restore(behind, store_id=place.journal.store_id)
    place.prepare()
    assert found.revision == 2
    assert code_of(place.commit) == "revision_mismatch"
    assert code_of(kept_of, place) == "manifest_missing"
    assert place.phases == {"c1": "prepared"}


@pytest.mark.parametrize(
    ("rollout_id", "code"),
    [
        ("open", None),
        ("waiting", "completed_in_scope"),
        ("taken", "completed_in_scope"),
        ("lost", "restart_in_scope"),
        ("aside", "quarantined_in_scope"),
        ("none", "rollout_unknown"),
    ],
)
def test_what_must_go_on_and_cannot_is_a_refusal(
    deploy: Deploy, rollout_id: str, code: str | None
) -> None:
    place = deploy()
    one_of_each(place)
    place.prepare()
    if code is None:
        assert place.commit(scope=[rollout_id]).records_count == 1
    else:
        assert code_of(place.commit, scope=["open", rollout_id]) == code
        assert code_of(kept_of, place) == "manifest_missing"


def test_f1_in_its_own_store_a_restored_rollout_keeps_its_fence(deploy: Deploy) -> None:
    old = deploy()
    old.play("r1", 2, epoch=7)
    old.taken()
    new = deploy("new", state=old.state)
    new.restore()
    new.checkpoints.resume("c1")
    assert code_of(new.play, "r1", 3, epoch=6) == "stale_attempt"
    new.play("r1", 3, epoch=7)
    assert new.rollout("r1").attempt == 1


def test_f1_in_another_store_epochs_start_anew_and_attempts_go_on(deploy: Deploy) -> None:
    old = deploy()
    old.play("r1", 2, epoch=7)
    old.taken()
    new = deploy("new")
    new.restore()
    new.checkpoints.resume("c1")
    new.play("r1", 3, epoch=1)
    assert (new.rollout("r1").claim_epoch, new.rollout("r1").attempt) == (1, 2)


def test_a_restore_again_has_the_same_answer_also_after_the_sessions_went_on(
    deploy: Deploy,
) -> None:
    old = deploy()
    old.play("r1", 2)
    old.taken()
    new = deploy("new")
    numbers = new.restore().numbers
    assert new.restore().numbers == numbers
    new.checkpoints.resume("c1")
    new.play("r1", 4)
    before = new.dump()
    assert new.restore().checkpoint.phase == "resumed"
    assert new.dump() == before
    assert new.gate_open


def test_of_two_restores_at_once_one_does_it_and_the_other_leaves_it_alone(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = deploy()
    old.play("r1", 2)
    old.taken()
    new = deploy("new")

    def meanwhile() -> None:
        assert new.phases == {"c1": "restoring"}
        before = new.dump()
        assert code_of(new.restore) == "checkpoint_busy"
        assert new.dump() == before
        assert not new.gate_open

    blocked(monkeypatch, meanwhile)
    numbers = new.restore().numbers
    assert new.restore().numbers == numbers
    assert new.phases == {"c1": "restored"}
    assert not new.gate_open
    assert new.rows("r1") == old.rows("r1")


@pytest.mark.parametrize("name", ["instance", "run"])
def test_a_journal_under_whose_name_nothing_could_be_published_is_not_made(
    folder: Path, deploy: Deploy, name: str
) -> None:
    with pytest.raises(ValueError, match="not an id"):
        deploy("none", **{name: "a/b"})
    assert not (folder / "none" / "journal").exists()


@pytest.mark.parametrize("name", ["c1", "c0"])
def test_nothing_is_restored_over_what_lives(deploy: Deploy, name: str) -> None:
    place = deploy()
    place.play("r1", 2)
    place.taken("c0")
    if name == "c1":  # published by another journal of this name
        shutil.copytree(place.archives / "agent" / "c0", place.archives / "agent" / "c1")
        before = place.dump()
        assert code_of(place.restore, "c1") == "manifest_of_another"
    else:  # its own: it was not restored here, and is not said to be
        before = place.dump()
        assert code_of(place.restore, "c0") == "checkpoint_phase"
    assert place.dump() == before
    other = deploy("other")
    other.play("r1", 1)
    before = other.dump()
    assert code_of(other.restore, "c0") == "restore_into_live"
    assert other.dump() == before
    assert other.gate_open
    assert other.server.asked == []


def test_an_older_checkpoint_is_restored_as_it_was(deploy: Deploy) -> None:
    old = deploy()
    old.play("r1", 2)
    old.taken("c1")
    old.play("r1", 4)
    old.taken("c2")
    new = deploy("new")
    new.restore("c1")
    assert len(new.rows("r1")) == 2
    assert code_of(new.restore, "c2") == "checkpoint_busy"
    new.checkpoints.resume("c1")
    assert code_of(new.restore, "c2") == "restore_into_live"


def test_an_environment_server_that_went_on_keeps_what_it_has(deploy: Deploy) -> None:
    old = deploy()
    old.play("r1", 2)
    old.taken("c1")
    old.play("r1", 4)
    new = deploy("new")
    new.server.receiver = old.receiver
    before = new.dump()
    assert code_of(new.restore) == "restore_conflict"
    assert new.dump() == before
    assert new.gate_open


@pytest.mark.parametrize(("name", "code"), [("instance", "manifest_missing"), ("run", None)])
def test_what_another_published_is_neither_restored_nor_replaced(
    deploy: Deploy, name: str, code: str | None
) -> None:
    first = deploy()
    first.play("r1", 1)
    manifest = first.taken()
    other = deploy("other", **{name: "another"})
    other.play("r2", 1)
    assert code_of(other.restore) == (code or "manifest_of_another")
    other.prepare()
    if name == "instance":
        assert set(kept_of(other) if other.commit() else ()) == {"r2"}
    else:
        assert code_of(other.commit) == "checkpoint_conflict"
        other.clock.forward(61)
        assert other.phases == {"c1": "abandoned"}
    assert set(kept_of(first)) == {"r1"}
    assert first.commit() == manifest


def test_the_second_checkpoint_after_a_restore_holds_all_that_was_restored(
    deploy: Deploy,
) -> None:
    old = deploy()
    one_of_each(old)
    old.taken("c1")
    middle = deploy("middle")
    middle.restore("c1")
    middle.checkpoints.resume("c1")
    middle.taken("c2")
    first, second = kept_of(old, "c1"), kept_of(middle, "c2")
    assert first.keys() == second.keys()
    for rollout_id, kind in (
        ("open", "open"),
        ("waiting", "completed"),
        ("taken", "acknowledged"),
        ("aside", "quarantined"),
    ):
        assert second[rollout_id].kind == kind
        assert second[rollout_id].rows == first[rollout_id].rows
        assert second[rollout_id].receipt == first[rollout_id].receipt
    assert second["lost"].kind == "open"  # it began anew, and has nothing to lose yet
    new = deploy("new")
    new.restore("c2")
    new.checkpoints.resume("c2")
    assert new.play("open", 3) == ["open 0", "open 1", "open 2"]


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("unreachable", "environment_unreachable"),
        ("unnamed", "environment_unreachable"),
        ("records", "manifest_damaged"),
        ("journal", "journal_unavailable"),
    ],
)
def test_a_restore_that_fails_leaves_all_as_it_was_and_can_be_repeated(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, what: str, code: str
) -> None:
    old = deploy()
    one_of_each(old)
    old.taken()
    new = deploy("new")
    before = new.dump()
    with monkeypatch.context() as patch:
        records = next((new.archives / "agent" / "c1").glob("records-*"))
        raw = records.read_bytes()
        restore = new.restore
        match what:
            case "unreachable":
                new.server.down = True
            case "unnamed":
                new.server = None  # type: ignore[assignment]
            case "records":
                records.write_bytes(raw[:-20] + b"x" + raw[-19:])
            case "journal":
                patch.setattr(control, "put_back", _full)
        assert code_of(restore) == code
        records.write_bytes(raw)
    assert new.dump() == before
    assert new.gate_open
    place = deploy("new")
    assert place.restore().numbers["open"] == 1


def _full(*_: object, **__: object) -> None:
    raise CheckpointRefusal("journal_unavailable", "the disk is full")


@pytest.mark.parametrize("down", [True, False])
def test_a_commit_needs_the_environments(deploy: Deploy, *, down: bool) -> None:
    place = deploy()
    place.play("r1", 1)
    place.prepare()
    place.server.down = down
    server = place.server if down else None
    call = place.checkpoints.commit
    code = code_of(call, "c1", place.archives, environments=server)
    assert code == "environment_unreachable"
    assert code_of(kept_of, place) == "manifest_missing"
    place.server.down = False
    assert place.commit().records_count == 1


@pytest.mark.parametrize("number", [50, pytest.param(10_000, marks=pytest.mark.long)])
def test_rollouts_are_kept_and_brought_back_one_at_a_time(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    old, new = deploy(), deploy("new")
    alive = most = reads = 0

    class Counted(Kept):
        def __init__(self, **named: Any) -> None:
            nonlocal alive, most
            super().__init__(**named)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    async def play() -> None:
        for index in range(number):
            await old.opened(f"r{index}", 1)

    asyncio.run(play())
    old.prepare()
    read = old.journal.database.read

    def reading(look: Any) -> Any:
        nonlocal reads
        reads += 1
        return read(look)

    monkeypatch.setattr(old.journal.database, "read", reading)
    monkeypatch.setattr(cut, "Kept", Counted)
    monkeypatch.setattr("rollout_router.checkpoint.records.Kept", Counted)
    assert old.commit().records_count == number
    assert reads <= number + 5  # one of each, and no more with their number
    assert new.restore().numbers == {"open": number}
    assert most <= 5
