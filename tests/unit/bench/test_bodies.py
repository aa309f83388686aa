# SPDX-License-Identifier: Apache-2.0
"""The bodies of the benchmark: of the size that was asked for, repeatable, and growing by turns."""

import itertools
import json

import pytest

from rollout_router.bench.bodies import TURN_BYTES, TURNS, Conversation

SIZES = [TURN_BYTES, 20_000, 100_000]


@pytest.mark.parametrize("size", SIZES)
def test_a_history_has_the_size_that_was_asked_for(size: int) -> None:
    history = Conversation(size).history()
    assert size <= len(history) <= size + 1_000


@pytest.mark.parametrize("size", SIZES)
def test_each_body_is_the_one_before_and_a_turn_more(size: int) -> None:
    conversation = Conversation(size)
    before = json.loads(conversation.history())["messages"]
    for body in itertools.islice(conversation.bodies(), TURNS):
        now = json.loads(body)["messages"]
        assert now[: len(before)] == before
        assert len(now) == len(before) + 2
        before = now


def test_after_its_turns_a_conversation_begins_anew_with_others() -> None:
    conversation = Conversation(20_000)
    history = json.loads(conversation.history())["messages"]
    first, *_, again = itertools.islice(conversation.bodies(), TURNS + 1)
    for body in (first, again):
        assert json.loads(body)["messages"][:-2] == history
    assert first != again


def test_a_turn_has_the_size_that_was_asked_for() -> None:
    conversation = Conversation(20_000, turn_bytes=5_000)
    before, after = map(len, itertools.islice(conversation.bodies(), 2))
    assert 5_000 <= after - before <= 6_000  # with what JSON escapes


def test_no_two_bodies_are_the_same() -> None:
    bodies = list(itertools.islice(Conversation(20_000).bodies(), 3 * TURNS))
    assert len(set(bodies)) == len(bodies)


def test_the_same_size_gives_the_same_bodies() -> None:
    one, other = (itertools.islice(Conversation(20_000).bodies(), 3) for _ in range(2))
    assert list(one) == list(other)


def test_less_than_a_turn_is_no_history() -> None:
    with pytest.raises(ValueError, match="4096 bytes or more"):
        Conversation(TURN_BYTES - 1)
