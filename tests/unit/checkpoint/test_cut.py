# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.deployment import DIGESTS, Deployment, code_of
from support.folders import private_folder

from rollout_router.checkpoint.cut import Cut, boundary_document
from rollout_router.checkpoint.effects import Performed
from rollout_router.checkpoint.manifest import Heading
from rollout_router.checkpoint.records import parse
from rollout_router.checkpoint.run import Run
from rollout_router.checkpoint.tool_session import SessionTask, ToolSession

HEADING = Heading(
    instance="agent", run="run-1", store_id="s", checkpoint_id="c1", arguments_digest="0" * 64
)
TASK = {"scenario": "s", "seed": 1}
SAID = [{"type": "message", "content": [{"text": "hello"}]}]
RESULTS: dict[str, Any] = {
    "seed": {"tools": [], "observation": []},
    "model": {"status": 200, "cookies": {}, "response": {"id": "m", "output": SAID}},
    "step": {"observation": [], "done": True},
    "close": {},
    "verify": {"reward": 1, "details": None},
}


@pytest.fixture(scope="module")
def place() -> Iterator[Deployment]:
    with private_folder() as folder, closing(Deployment(folder / "place")) as one:
        begin(one)
        yield one


def begin(one: Deployment) -> None:
    for name in ("b", "a"):
        one.play(name, 2)
    one.play("done", 1, ends=True)
    one.play("lost", 1)
    one.act(lambda run: one.environments.forget(run.environment_id), "lost")
    one.play("aside", 1)
    one.act(lambda run: one.journal.quarantine(run.rollout, "gap"), "aside")


def test_a_cut_has_each_rollout_by_id(place: Deployment) -> None:
    cut = Cut(place.journal, place.server, None)
    kept = list(cut)
    assert [(one.rollout.rollout_id, one.kind) for one in kept] == [
        ("a", "open"),
        ("aside", "quarantined"),
        ("b", "open"),
        ("done", "completed"),
        ("lost", "restart"),
    ]
    assert all(parse(one.line()) is not None for one in kept)
    heading = cut.completed(HEADING)
    assert heading.restarts == ("lost",)
    assert [one.rollout_id for one in heading.deliverable] == ["done"]


def test_what_goes_on_and_what_is_delivered_are_never_the_same(place: Deployment) -> None:
    cut = Cut(place.journal, place.server, None)
    going_on = {one.rollout.rollout_id for one in cut if one.kind in ("open", "restart")}
    outbox = {one for one in ("a", "b", "done", "lost", "aside") if place.outbox(one)}
    assert going_on
    assert not going_on & outbox


def test_a_scope_is_all_that_is_in_it(place: Deployment) -> None:
    assert [one.rollout.rollout_id for one in Cut(place.journal, place.server, ["b"])] == ["b"]


def test_damage_is_not_carried_on(place: Deployment, folder: Path) -> None:
    other = Deployment(folder / "other", state=place.state)
    other.play("a", 2)
    change = "UPDATE operation SET kind='other' WHERE sequence=2"
    other.journal.database.write_now(lambda db: db.execute(change))
    assert code_of(list, Cut(other.journal, other.server, ["a"])) == "chain_broken"
    (kept,) = Cut(other.journal, other.server, None)
    assert (kept.kind, kept.reason, kept.rows) == ("quarantined", "chain_broken", ())
    assert other.rollout("a").status == "open"  # who opens it sets it aside
    other.close()


def test_a_boundary_is_there_at_every_operation_of_a_tool_session_and_for_no_other(
    place: Deployment, folder: Path
) -> None:
    other = Deployment(folder / "other", state=place.state)
    seen: list[Any] = []

    async def play(run: Run) -> None:
        session = ToolSession.begin(SessionTask.from_document(TASK), run.environment_id)
        while following := session.next():
            seen.append(boundary_of(other))

            async def send(_: object, kind: str = following.kind) -> Performed:
                return Performed(value=RESULTS[kind])

            value = await run.op(following.kind, following.request, send, effect="resample")
            session = session.after(following.kind, value)
        seen.append(boundary_of(other))

    other.play("first", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(other, "opened", opened_as(other, TASK))
        other.act(play, "tool")
    kinds = ["pending_model", "pending_model", "pending_action", "pending_close", "pending_verify"]
    assert seen == [*kinds, None]  # the result is not written down yet: nothing is left to do
    other.prepare()
    assert other.commit().records_count == 2
    assert boundary_of(other, "first") is None
    other.close()


def opened_as(place: Deployment, task: Any) -> Any:
    async def opened(rollout_id: str, epoch: int) -> Run:
        found: Any = await place.journal.open_rollout(rollout_id, epoch, task=task, **DIGESTS)
        return Run(place.journal, found.rollout, found.rows)

    return opened


def boundary_of(place: Deployment, rollout_id: str = "tool") -> Any:
    rollout, rows = place.rollout(rollout_id), place.rows(rollout_id)
    found = boundary_document(place.journal, rollout, rows)
    return None if found is None else found["kind"]


def test_operations_of_another_loop_have_no_boundary(place: Deployment) -> None:
    rollout = replace(place.rollout("a"), task=json.dumps(TASK))
    assert boundary_document(place.journal, rollout, place.rows("a")) is None
