# SPDX-License-Identifier: Apache-2.0
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.recording import Died, Server, dump, journal_in, on_a_loop, opened, refused, sql

from rollout_router.checkpoint.effects import Lost, NotPerformed, Performed, Send
from rollout_router.checkpoint.errors import CheckpointRefusal
from rollout_router.checkpoint.journal import Journal
from rollout_router.checkpoint.rows import EFFECTS, Effect, check_whole
from rollout_router.checkpoint.run import LOST_MAX, Run
from rollout_router.checkpoint.wire import Operation


async def begun(journal: Journal, epoch: int = 1, **named: Any) -> Run:
    found = await opened(journal, epoch)
    check_whole(found.rollout, found.rows)
    return Run(journal, found.rollout, found.rows, **named)


async def does(run: Run, send: Send, effect: Effect = "resample", **named: Any) -> Any:
    return await run.op("do", {"a": 1}, send, effect=effect, **named)


@pytest.mark.parametrize("effect", sorted(EFFECTS))
@on_a_loop
async def test_a_result_has_the_same_types_the_first_time_and_from_the_record(
    journal: Journal, effect: Effect
) -> None:
    server = Server({1: (True, None), 2: 2.0})
    for epoch in (1, 2):
        value = await does(await begun(journal, epoch), server, effect)
        assert value == {"1": [True, None], "2": 2.0}
        assert type(value["1"]) is list
    assert [one.id for one in server.sent] == ["r/1"]


@on_a_loop
async def test_values_of_different_attempts_and_uses_are_not_shared(journal: Journal) -> None:
    run = await begun(journal)
    (await does(run, Server([]))).append("changed by the loop")
    run = await begun(journal, 2)
    assert await does(run, Server("never")) == []


@pytest.mark.parametrize(
    ("effect", "failure", "sends", "orphans"),
    [
        ("keyed", NotPerformed("no"), 2, 0),
        ("keyed", Lost("cut"), 2, 0),
        ("keyed", Performed(value=float("nan")), 2, 0),
        ("resample", NotPerformed("no"), 2, 0),
        ("resample", Lost("cut"), 2, 1),
        ("resample", Performed(value=float("inf")), 2, 1),
        ("resample", Performed(value={1, 2}), 2, 1),
        ("once", NotPerformed("no"), 2, 0),
    ],
)
@on_a_loop
async def test_the_same_operation_is_sent_again(
    journal: Journal, *, effect: Effect, failure: Any, sends: int, orphans: int
) -> None:
    server = Server(failure, "yes")
    assert await does(await begun(journal), server, effect) == "yes"
    assert len({one.id for one in server.sent}) == 1
    assert len(server.sent) == sends
    found = (await opened(journal)).rows
    assert [row.orphans for row in found] == [orphans]


@pytest.mark.parametrize("failure", [Lost("cut"), Performed(value=float("nan"))])
@on_a_loop
async def test_what_may_be_done_once_is_never_sent_twice(journal: Journal, failure: Any) -> None:
    server = Server(failure)
    run = await begun(journal)
    await refused("ambiguous_outcome", does(run, server, "once"))
    await refused("ambiguous_outcome", run.complete({}))
    await refused("ambiguous_outcome", does(await begun(journal, 2), server, "once"))
    await refused("divergence", (await begun(journal, 3)).complete({}))
    assert len(server.sent) == 1


@on_a_loop
async def test_what_may_be_done_once_is_announced_before_it_is_sent(
    folder: Path, journal: Journal
) -> None:
    async def send(operation: Operation) -> Performed:
        found = sql(folder, "SELECT sequence, result FROM operation")
        assert found == [(operation.sequence, None)]
        raise Died

    with pytest.raises(Died):
        await does(await begun(journal), send, "once")
    run = await begun(journal, 2)
    assert not run.replaying
    await refused("ambiguous_outcome", does(run, send, "once"))


@on_a_loop
async def test_an_intent_is_withdrawn_while_its_server_refuses(
    folder: Path, journal: Journal
) -> None:
    run = await begun(journal, patience_s=0.0)
    before = dump(folder)
    server = Server(NotPerformed("parked", retry_after_s=1.0))
    await refused("operation_unavailable", does(run, server, "once"))
    assert dump(folder) == before
    assert await does(await begun(journal, 2), Server("yes"), "once") == "yes"


@pytest.mark.parametrize(
    ("failure", "patience_s", "sends"),
    [
        (NotPerformed("no", retry_after_s=1.0), 0.5, 1),
        (Lost("cut"), 600.0, LOST_MAX),
        (NotPerformed("it failed and was set back", tried=True), 600.0, LOST_MAX),
    ],
)
@on_a_loop
async def test_patience_has_an_end_and_the_next_call_goes_on(
    folder: Path, journal: Journal, *, failure: Exception, patience_s: float, sends: int
) -> None:
    server = Server(failure)
    run = await begun(journal, patience_s=patience_s)
    before = dump(folder)
    await refused("operation_unavailable", does(run, server, "keyed"))
    assert len(server.sent) == sends
    assert dump(folder) == before
    assert await does(await begun(journal), Server("yes"), "keyed") == "yes"


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "undo"},
        {"request": {"a": 2}},
        {"effect": "once"},
        {"environment_id": "e"},
    ],
)
@on_a_loop
async def test_a_loop_that_asks_for_something_else_diverges(
    journal: Journal, asked: dict[str, Any]
) -> None:
    await does(await begun(journal), Server(1))
    server, run = Server("never"), await begun(journal, 2)
    named = {"kind": "do", "request": {"a": 1}, "send": server, "effect": "resample", **asked}
    refusal = await refused("divergence", run.op(**named))
    assert refusal.outcome == "restart"
    assert not server.sent


@on_a_loop
async def test_a_loop_that_ends_before_its_record_does_diverges(journal: Journal) -> None:
    await does(await begun(journal), Server(1))
    await refused("divergence", (await begun(journal, 2)).complete({}))


@pytest.mark.parametrize("revision", [None, 0, 2])
@pytest.mark.parametrize("before", [0, 1])
@on_a_loop
async def test_a_revision_that_is_not_the_next_one_is_a_mismatch(
    folder: Path, journal: Journal, revision: int | None, before: int
) -> None:
    for number in range(before):
        server = Server(Performed(value=1, revision=number + 1))
        await does(await begun(journal), server, "keyed", environment_id="e")
    run, server = await begun(journal, 2), Server(1)
    if before:
        await does(run, server, "keyed", environment_id="e")
    rows = dump(folder)
    answer = Performed(value=1, revision=None if revision is None else before + revision)
    work = does(run, Server(answer), "keyed", environment_id="e")
    assert (await refused("revision_mismatch", work)).outcome == "quarantined"
    assert dump(folder) == rows
    assert "e" in run.environment_ids  # also before anything was recorded of it


@on_a_loop
async def test_environments_of_rows_that_were_not_reached_are_known(journal: Journal) -> None:
    run = await begun(journal)
    for name in ("e", "f"):
        answer = Performed(value=1, revision=1)
        await does(run, Server(answer), "keyed", environment_id=name)
    run = await begun(journal, 2)
    assert run.environment_ids == {run.environment_id, "e", "f"}


@on_a_loop
async def test_an_environment_has_a_name_of_its_own(folder: Path, journal: Journal) -> None:
    names = [(await begun(journal, epoch)).environment_id for epoch in (1, 2)]
    assert len(set(names)) == 1
    journal.restart_now("r")
    names.append((await begun(journal, 3)).environment_id)
    for number, other in enumerate(({"run": "run-2"}, {"instance": "b"})):
        place = folder / str(number)
        place.mkdir(mode=0o700)
        another = journal_in(place, **other)
        names.append((await begun(another)).environment_id)
        another.close()
    assert len(set(names)) == 4


async def _swallow(run: Run, send: Send) -> None:
    with pytest.raises((CheckpointRefusal, Died)):
        await does(run, send)


async def _go_on(run: Run, send: Send) -> None:
    for _ in range(3):
        try:
            await does(run, send)
        except Exception:  # noqa: BLE001, S112 - a loop that takes it for an answer
            continue


async def _time_out(run: Run, send: Send) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.0):
            await does(run, Server(asyncio.Event()))
    await refused("operation_unavailable", does(run, send))


async def _clean_up(run: Run, send: Send) -> None:
    try:
        try:
            await does(run, send)
        finally:
            await does(run, Server("closed"))
    except (CheckpointRefusal, Died):
        pass


async def _both_at_once(run: Run, send: Send) -> None:
    await asyncio.gather(does(run, send), does(run, send), return_exceptions=True)


FAILURES: dict[str, Callable[[], Exception]] = {
    "refusal": lambda: CheckpointRefusal("environment_unknown", "no", rollout_id="r"),
    "unavailable": lambda: NotPerformed("no", retry_after_s=1.0),
    "defect": Died,
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("loop", [_swallow, _go_on, _time_out, _clean_up, _both_at_once])
@on_a_loop
async def test_a_loop_that_goes_on_from_an_operation_that_failed_has_no_result(
    folder: Path, journal: Journal, failure: str, loop: Callable[[Run, Send], Awaitable[None]]
) -> None:
    run = await begun(journal, patience_s=0.0)
    server = Server(FAILURES[failure]())
    before = dump(folder)
    await loop(run, server)
    with pytest.raises((CheckpointRefusal, RuntimeError)):
        await run.complete({"reward": 1.0})
    assert len(server.sent) <= 1
    assert dump(folder) == before


@on_a_loop
async def test_a_result_waits_for_no_operation_and_overtakes_none(
    folder: Path, journal: Journal
) -> None:
    run, server = await begun(journal), Server(asyncio.Event())
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(does(run, server))
        await server.asked.wait()
        with pytest.raises(RuntimeError, match="one operation at a time"):
            await run.complete({})
        with pytest.raises(RuntimeError, match="one operation at a time"):
            await does(run, server)
        work.cancel()
    await refused("operation_unavailable", run.complete({}))
    assert dump(folder)["outbox"] == []


@on_a_loop
async def test_an_effect_of_no_kind_is_a_mistake(journal: Journal) -> None:
    with pytest.raises(ValueError, match="effect"):
        await does(await begun(journal), Server(1), "twice")  # type: ignore[arg-type]


@pytest.mark.parametrize("deaths", [0, 1, 3])
@on_a_loop
async def test_each_death_since_the_last_record_may_have_left_a_sample(
    journal: Journal, deaths: int
) -> None:
    for epoch in range(1, deaths + 1):
        await opened(journal, epoch)
    run = await begun(journal, deaths + 1)
    for _ in range(2):
        await does(run, Server(1))
    rows = (await opened(journal, deaths + 1)).rows
    assert [row.orphans for row in rows] == [deaths, 0]
