# SPDX-License-Identifier: Apache-2.0
"""Which worker gets a new rollout: the table, and bursts over loads that nobody has updated yet."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest

from rollout_router.routing.placement import LOAD_BYTES, Load, decode, encode, place

WORKERS = ("a", "b", "c", "d")


def loads(**in_hand: tuple[int, int]) -> dict[str, Load]:
    return {w: Load(calls=calls, rollouts=own, at=0) for w, (calls, own) in in_hand.items()}


@pytest.mark.parametrize(
    ("in_hand", "coming", "among"),
    [
        ({"a": (2, 0), "b": (1, 9), "c": (2, 0)}, {}, "b"),
        ({"a": (1, 5), "b": (1, 4), "c": (2, 0)}, {}, "b"),
        ({"a": (1, 4), "b": (1, 4), "c": (2, 0)}, {}, "ab"),
        ({"a": (0, 0), "b": (0, 0), "c": (1, 1)}, {"a": 1}, "b"),
        ({"a": (0, 0), "b": (2, 0), "c": (4, 0)}, {"a": 1}, "b"),  # 3: the others may do the same
        ({"a": (0, 0), "b": (0, 0)}, {"a": 2, "b": 2}, "ab"),
        ({"a": (0, 0), "b": (1, 0)}, {"gone": 9}, "a"),
        ({"a": (7, 7)}, {"a": 9}, "a"),
    ],
)
def test_the_fewest_calls_decide_then_the_fewest_rollouts_then_chance(
    in_hand: dict[str, tuple[int, int]], coming: dict[str, int], among: str
) -> None:
    asked: list[Sequence[str]] = []

    def draw(workers: Sequence[str]) -> str:
        asked.append(workers)
        return workers[-1]

    assert place(loads(**in_hand), coming, draw) == among[-1]
    assert asked == [list(among)]


def chance(seed: int) -> Callable[[Sequence[str]], str]:
    return random.Random(seed).choice  # noqa: S311 - a burst that can be repeated


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("fewer", [0, 1, 6, 20])
def test_a_burst_over_loads_that_all_see_and_nobody_updates_fills_a_gap_and_then_spreads(
    fewer: int, seed: int
) -> None:
    seen = loads(**{w: (20 - fewer * (w == "a"), 0) for w in WORKERS})
    placed: Counter[str] = Counter()
    for forwarder in range(4):
        coming: Counter[str] = Counter()
        for _ in range(25):
            coming[place(seen, coming, chance(97 * seed + forwarder))] += 1
        placed += coming

    after = [seen[w].calls + placed[w] for w in WORKERS]

    # Each forwarder is off by one rollout, and fills its part of the gap rounded up by one.
    assert max(after) - min(after) <= 2 * 4
    assert placed["a"] <= (100 - fewer) / 4 + fewer + 2 * 4


@pytest.mark.parametrize("seed", range(20))
def test_a_burst_whose_calls_are_counted_late_and_in_any_order_spreads(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - as above
    calls: Counter[str] = Counter({w: dice.randrange(4) for w in WORKERS})
    coming: list[Counter[str]] = [Counter() for _ in WORKERS]
    for _ in range(400):
        mine = dice.choice(coming)
        mine[place(loads(**{w: (calls[w], 0) for w in WORKERS}), mine, dice.choice)] += 1
        while dice.random() < 0.5 and (late := dice.choice(coming)).total():
            worker = dice.choice(list(late.elements()))
            late[worker] -= 1
            calls[worker] += 1
    for rest in coming:
        calls += rest

    assert max(calls.values()) - min(calls.values()) <= 2 * 4


def test_a_load_that_is_up_to_date_is_followed_exactly() -> None:
    calls: Counter[str] = Counter({"a": 3, "b": 3, "c": 3, "d": 0})
    order = []
    for _ in range(7):
        order.append(place(loads(**{w: (calls[w], 0) for w in WORKERS}), {}, chance(1)))
        calls[order[-1]] += 1

    assert order[:3] == ["d", "d", "d"]
    assert sorted(order[3:]) == list(WORKERS)


def test_a_load_is_read_as_it_was_written() -> None:
    load = Load(calls=4096, rollouts=10**6, at=1234567.25)
    line = encode(load, store_id="s" * 32)

    assert len(line) == LOAD_BYTES
    assert line.endswith(b" \n")
    assert decode(line, store_id="s" * 32) == load


MALFORMED: Mapping[str, bytes] = {
    "empty": b"",
    "half": b"1 store 3",
    "no number": b"1 store x 2 3.0",
    "no text": b"\xff" * LOAD_BYTES,
    "another store": b"1 other 1 2 3.0",
    "another version": b"2 store 1 2 3.0",
}


@pytest.mark.parametrize("how", MALFORMED)
def test_what_is_no_load_of_this_store_says_nothing(how: str) -> None:
    assert decode(MALFORMED[how], store_id="store") is None
