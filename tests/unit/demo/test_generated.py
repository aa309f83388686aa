# SPDX-License-Identifier: Apache-2.0
"""The invented rollouts are always the same, and as mixed as they are said to be."""

import json
from collections import Counter

from rollout_router.demo.conversation import Rollout, turns
from rollout_router.demo.generated import COUNT, SHAPES, generate


def _line(rollout: Rollout) -> str:
    document = {"rollout_id": rollout.rollout_id, "items": list(rollout.items)}
    return json.dumps(document, separators=(",", ":"))


def _first(rollout: Rollout) -> tuple[str, ...]:
    return tuple(str(item.get("role", item["type"])) for item in rollout.items[:3])


def test_the_same_rollouts_come_every_time() -> None:
    assert [_line(r) for r in generate()] == [_line(r) for r in generate()]
    assert generate(4) == generate()[:4]


def test_more_rollouts_than_shapes_are_different_ones() -> None:
    more = generate(COUNT + 1)
    assert len({rollout.rollout_id for rollout in more}) == COUNT + 1
    assert more[COUNT].items != more[0].items
    assert len(more[COUNT].items) == len(more[0].items)


def test_they_are_as_long_and_as_large_as_their_shapes() -> None:
    rollouts = generate()
    assert len(rollouts) == 30
    assert [len(r.items) for r in rollouts] == [shape[0] for shape in SHAPES]
    assert min(len(r.items) for r in rollouts) == 7
    assert max(len(r.items) for r in rollouts) == 272
    for rollout, (_, kilobytes, _) in zip(rollouts, SHAPES, strict=True):
        assert abs(len(_line(rollout)) - kilobytes * 1000) < 0.02 * kilobytes * 1000
    assert min(shape[1] for shape in SHAPES) == 13
    assert max(shape[1] for shape in SHAPES) == 155


def test_they_open_in_four_ways_and_hold_every_kind_of_item() -> None:
    rollouts = generate()
    openings = {_first(rollout)[:2] for rollout in rollouts}
    assert ("system", "user") in openings
    assert ("system", "assistant") in openings
    assert any(opening[0] == "user" for opening in openings)
    assert sum(turns(rollout.items)[0] == 0 for rollout in rollouts) >= 8
    kinds = Counter(item["type"] for rollout in rollouts for item in rollout.items)
    assert set(kinds) == {"message", "reasoning", "function_call", "function_call_output"}
    assert kinds["function_call"] == kinds["function_call_output"]
    assert min(kinds.values()) > 50


def test_most_bytes_are_in_outputs_and_some_outputs_are_long() -> None:
    outputs = [
        len(item["output"])
        for rollout in generate()
        for item in rollout.items
        if item["type"] == "function_call_output"
    ]
    assert sum(outputs) > sum(len(_line(rollout)) for rollout in generate()) / 2
    assert max(outputs) > 10_000
    assert sorted(outputs)[len(outputs) // 2] < 2_000
