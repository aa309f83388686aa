# SPDX-License-Identifier: Apache-2.0
"""Each fault at each point of a session: it ends as if nothing had been (F1).

Every cell is a session of real processes, with faults at named points (support/faults). Where a
process died or was overtaken, the session is continued under the next claim epoch until its result
was taken and acknowledged. Then, compared with the session that nothing happened to:

* The environment did the same operations, each once.
* The result is the same, byte for byte, and so is its one receipt, in every delivery.
* The journal has the same rows; those that were there at a take-over stayed, and none came after it
  from a lower epoch.
* The model was asked no more often than the journal says.
* Nothing is left once the receipt was acknowledged.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from support.faults.seen import Seen, check, playing
from support.faults.table import (
    ACTIONS,
    AGENT,
    COMMITS,
    DONE,
    ONCE,
    POINTS,
    REQUESTS,
    SAMPLES,
    WRITES,
    Stop,
    cells,
    each,
    two_deaths,
)

Play = Callable[..., Seen]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Plays one cell; see support/faults/bench.py."""
    with playing("support.faults.bench") as told_to:

        def play(
            *stops: Stop,
            loop: str = "tools",
            mutant: str | None = None,
            clocks_s: tuple[int, ...] = (0,),
        ) -> Seen:
            return told_to({"loop": loop, "mutant": mutant, "clocks_s": clocks_s, "stops": stops})

        yield play


@pytest.fixture(scope="module")
def calm(play: Play) -> Seen:
    """What is seen of a session that nothing happens to."""
    seen = play()
    check(seen, seen)
    assert json.loads(seen["receipts"][0][1])["reward"] == 1.0
    kinds = [row[2] for row in seen["journal"]["rows"]]
    assert " ".join(kinds) == "seed model step step model step model step close verify"
    assert [row[2] for row in seen["effects"]] == [int(one) for one in ACTIONS]
    assert [seen["outside"], seen["refusals"], seen["zombies"]] == [list(SAMPLES), [], []]
    return seen


@cells(
    "killed-agent-written-open",
    "killed-outside-replied-2",
    "killed-environment-arrived-1",
    "killed-environment-replied-3",
    "killed-agent-unwritten-4",
    "killed-agent-commit-8",
    "killed-environment-replied-9",
    "killed-agent-begun-10",
    "killed-agent-written-complete",
    "killed-agent-told-deliver",
    "killed-agent-unwritten-acknowledge",
    "torn-agent-commit-6",
    killed=each(POINTS, "kill agent"),
    torn=each([point for point in AGENT if point[1] == "commit"], "tear"),
)
def test_a_session_continues_after_the_death_of_its_agent(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    assert [told[0] for told in seen["told"]] == ["torn"] * (stops[0][3] == "tear")
    assert all(bytes_ > 0 for _, bytes_ in seen["told"])  # a journal to roll back was there


@cells(
    "killed-environment-arrived-1",
    "killed-environment-unwritten-3",
    "killed-environment-replied-4",
    "killed-environment-commit-9",
    "killed-agent-unwritten-complete",
    "killed-environment-written-forget",
    "torn-environment-commit-6",
    killed=each(POINTS, "kill environment"),
    **{
        # A repeat raises the fence, and changes nothing else.
        f"fenced-{write}": [
            [
                ["environment", "replied", target, "kill agent"],
                ["environment", write, "fence", "kill environment"],
            ]
            for target in ACTIONS
        ]
        for write in WRITES
    },
    torn=each([point for point in COMMITS if point[0] == "environment"], "tear"),
)
def test_a_session_continues_after_the_death_of_its_environment_server(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    assert set(seen["refusals"]) <= {"environment_unreachable"}  # while it was to be forgotten
    assert [told[0] for told in seen["told"]] == ["torn"] * (stops[0][3] == "tear")


@cells("killed-environment-unwritten-3", killed=each(POINTS, "kill both"))
def test_a_session_continues_after_the_death_of_both(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    check(play(*stops), calm)


@cells(
    "lost-environment-replied-3",
    "lost-outside-replied-2",
    lost=each([point for point in POINTS if point[1] == "replied"], "lose"),
)
def test_an_answer_that_is_lost_is_asked_for_again(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    again = stops[0][2] in SAMPLES
    assert len(seen["outside"]) == len(SAMPLES) + again
    assert sum(row[8] for row in seen["journal"]["rows"]) == again


@cells(
    "twice-environment-arrived-3",
    "together-environment-arrived-8",
    twice=each([point for point in REQUESTS if point[0] == "environment"], "twice"),
    together=each([point for point in REQUESTS if point[0] == "environment"], "together"),
)
def test_a_request_that_is_delivered_twice_is_done_once_and_answered_alike(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    assert seen["told"] == [["repeated", True]]


LATE = [point for point in REQUESTS if point[2] in ACTIONS]


@cells(
    "before-environment-arrived-1",
    "after-environment-arrived-3",
    before=each(LATE, "late before"),
    after=each(LATE, "late after"),
    forgotten=each(LATE, "late forgotten"),
)
def test_f1_a_request_that_arrives_after_its_owner_was_replaced_changes_nothing(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    # Before anything of the successor arrives it cannot be told, and is the operation itself.
    before = stops[0][3] == "late before"
    assert seen["told"] == [["late", 200, None] if before else ["late", 409, "stale_attempt"]]


REFUSING = [point for point in REQUESTS if point[2] != "forget"]


@cells(
    "busy-outside-arrived-5",
    "parked-environment-arrived-8",
    busy=each(REFUSING, "refuse", "refuse", "pass"),
    parked=each(REFUSING, "park", "park", "pass"),
)
def test_a_refusal_moves_nothing_and_the_operation_is_sent_again(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    first, *others = seen["refused"]
    assert others == [first, first]
    assert len(seen["outside"]) == len(SAMPLES)


FREEZING = [point for point in POINTS if point[1] != "commit"]
# A successor begins where none was completed, and delivers where none was taken.
BEGUN = [
    point for point in FREEZING if not (point[2] in DONE or point[1:] == ["written", "complete"])
]
DELIVERED = [point for point in FREEZING if point[2] not in DONE or point[1] == "told"]


@cells(
    "begun-agent-unwritten-3",
    "delivered-agent-written-complete",
    "ended-environment-replied-6",
    begun=each(BEGUN, "freeze begun"),
    delivered=each(DELIVERED, "freeze delivered"),
    ended=each(FREEZING, "freeze ended"),
)
def test_f1_an_agent_that_was_stopped_and_overtaken_writes_nothing_more(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    _, point, target, _ = stops[0]
    over = (point, target) == ("written", "acknowledge")  # nothing was left for it to do
    assert seen["zombies"] == ["acknowledged" if over else "stale_attempt"]


@cells(
    "stopped-agent-commit-3",
    stopped=each([point for point in AGENT if point[1] == "commit"], "freeze refused"),
)
def test_f1_nobody_takes_over_within_a_commit_of_a_stopped_agent(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    assert seen["refusals"][0] == "journal_unavailable"
    assert seen["zombies"] == ["acknowledged"]


@cells(
    "full-agent-commit-2",
    "broken-agent-commit-4",
    "broken-environment-commit-8",
    full=each(COMMITS, "full"),
    broken=each(COMMITS, "eio"),
)
def test_a_disk_that_is_full_or_broken_costs_no_operation(
    play: Play, calm: Seen, stops: list[Stop]
) -> None:
    seen = play(*stops)
    check(seen, calm)
    refused = {
        "agent": {"journal_unavailable"},
        "environment": {"environment_unreachable"} if stops[0][2] == "forget" else set(),
    }
    assert set(seen["refusals"]) == refused[stops[0][0]]


@cells("killed-agent-written-3", killed=each(AGENT, "kill agent"))
def test_the_wall_clock_has_no_part_in_it(play: Play, calm: Seen, stops: list[Stop]) -> None:
    check(play(*stops, clocks_s=(3600, -3600)), calm)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] * (seed >= 4)) for seed in range(150)]
)
def test_a_session_continues_after_two_deaths(play: Play, calm: Seen, seed: int) -> None:
    check(play(*two_deaths(seed)), calm)


ONCE_EVERYDAY = {
    "kill-agent-written-intent-1",
    "kill-agent-replied-2",
    "kill-agent-written-3",
    "lose-replied-2",
}


def check_once(seen: Seen, restarts: int) -> None:
    """No operation was performed twice, and those of the last attempt were performed."""
    assert not seen["failed"]
    assert not seen["unreached"]
    [[_, _, restarted, _, number, _]] = seen["journal"]["rollout"]
    assert restarted == restarts
    performed = seen["outside"]
    assert len(set(performed)) == len(performed)
    assert performed[-3:] == [str(number - 3), str(number - 2), str(number - 1)]
    assert {payload for _, payload in seen["receipts"]} == {
        '[{"number":0},{"number":1},{"number":2}]'
    }
    assert len({receipt for receipt, _ in seen["receipts"]}) == 1


@pytest.mark.parametrize(
    ("stop", "restarts"),
    [
        pytest.param(*cell, id=name, marks=[pytest.mark.long] * (name not in ONCE_EVERYDAY))
        for name, cell in ONCE.items()
    ],
)
def test_what_may_happen_once_never_happens_twice(play: Play, stop: Stop, restarts: int) -> None:
    seen = play(stop, loop="once")
    check_once(seen, restarts)
    assert seen["zombies"] == ["stale_attempt"] * stop[3].startswith("freeze")


MUTANTS = {
    "no repeats told": [["environment", "replied", "3", "kill agent"]],
    "epoch in the id": [["environment", "replied", "3", "kill agent"]],
    "outbox later": [["agent", "written", "complete", "kill agent"]],
    "no fence": [["agent", "unwritten", "3", "freeze begun"]],
    "answers from memory": [["agent", "written", "3", "kill environment"]],
}
MUTANTS_ONCE = {
    "no intents": [["outside", "replied", "2", "kill agent"]],
    "numbers again": [["outside", "replied", "2", "kill agent"]],
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_matrix_notices_a_guard_that_is_missing(play: Play, calm: Seen, mutant: str) -> None:
    unharmed = play(mutant=mutant)
    check(unharmed, unharmed)
    check(play(*MUTANTS[mutant]), calm)
    with pytest.raises(AssertionError):
        check(play(*MUTANTS[mutant], mutant=mutant), unharmed)


@pytest.mark.parametrize("mutant", MUTANTS_ONCE)
def test_the_matrix_notices_that_something_may_happen_twice(play: Play, mutant: str) -> None:
    check_once(play(loop="once", mutant=mutant), 0)
    check_once(play(*MUTANTS_ONCE[mutant], loop="once"), 1)
    with pytest.raises(AssertionError):
        check_once(play(*MUTANTS_ONCE[mutant], loop="once", mutant=mutant), 1)
