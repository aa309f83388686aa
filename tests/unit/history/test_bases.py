# SPDX-License-Identifier: Apache-2.0
"""Bases of one conversation share their bytes, and are what was kept all the same (H2, H3)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.built import Step, built, steps

from rollout_router.history.bases import NOTHING, Bases, Incoming
from rollout_router.history.difference import Operation

TEXT = b"".join(b"%d," % n for n in range(300))[:900]


def conversation(turns: int, body: bytes = TEXT) -> tuple[Bases, list[bytes]]:
    """Bases of which each is the one before and a turn more, with a tail that moves on."""
    bases, bodies = Bases(), [body]
    bases.add(b"0", Incoming(body, {}))
    for turn in range(1, turns):
        old, at = bodies[-1], len(bodies[-1]) - 200
        bodies.append(old[:at] + b"a turn" + old[at:])
        operations: list[Operation] = [(0, at), (None, 6), (at, 200)]
        incoming = bases.incoming(bodies[-1], b"%d" % (turn - 1), operations)
        bases.add(b"%d" % turn, incoming)
    return bases, bodies


def test_h3_the_bases_of_a_conversation_hold_little_more_than_the_newest() -> None:
    bases, bodies = conversation(8)

    newest = bases.newest()
    assert newest is not None
    assert newest.read() is bodies[-1]
    assert bases.held_bytes == len(bodies[-1]) + 7 * 40
    assert [base.read() for base in bases._bases] == bodies


def test_h3_a_body_that_has_little_of_its_base_stands_alone() -> None:
    bases, bodies = conversation(2)
    size = len(bodies[1]) // 2 - 1

    body = bodies[1][:size] + b"?"
    bases.add(b"title", bases.incoming(body, b"1", [(0, size), (None, 1)]))

    assert bases.held_bytes == len(bodies[1]) + 40 + size + 1
    assert [base.read() for base in bases._bases] == [*bodies, body]


def test_h3_a_body_that_would_make_the_others_hold_more_stands_alone() -> None:
    bases, bodies = conversation(4)
    size = 2 * len(bodies[-1]) // 3

    bases.add(b"cleared", bases.incoming(bodies[-1][:size], b"3", [(0, size)]))

    assert bases.held_bytes == len(bodies[-1]) + 3 * 40 + size


def test_h3_forks_of_an_older_base_are_one_conversation() -> None:
    bases, bodies = conversation(3)
    fork = bodies[0] + b"otherwise"

    bases.add(b"fork", bases.incoming(fork, b"0", [(0, len(bodies[0])), (None, 9)]))

    assert [base.read() for base in bases._bases] == [*bodies, fork]
    assert bases.held_bytes < len(fork) + 3 * 70


def test_h3_operations_without_end_share_nothing() -> None:
    body = TEXT * 200
    bases = Bases()
    bases.add(b"0", Incoming(body, {}))
    parts: list[Operation] = [(64 * n, 64) for n in reversed(range(len(body) // 64))]

    assert bases.incoming(b"", b"0", parts).told == {}
    assert bases.incoming(b"", b"0", parts[:2040]).told != {}


def test_h3_the_body_of_a_dropped_base_stays_while_two_need_it() -> None:
    bases, bodies = conversation(4)
    for name in (b"0", b"1", b"2"):
        found = bases.find(name)
        assert found is not None
        found.pins += 1

    bases.drop_oldest()

    assert bases.newest() is None
    assert bases.held_bytes == len(bodies[3]) + 3 * 40
    assert [base.read() for base in bases._bases] == bodies[:3]


def test_h3_the_last_base_that_needs_a_body_without_a_name_becomes_whole() -> None:
    bases, bodies = conversation(2)
    found = bases.find(b"0")

    bases.drop_oldest()

    assert found is bases.newest()
    assert found is not None
    assert (found.read(), bases.held_bytes) == (bodies[0], len(bodies[0]))


def test_h3_a_body_that_others_need_is_not_dropped_for_its_bytes() -> None:
    bases, bodies = conversation(3)
    bases.find(b"0")
    bases.find(b"1")  # the whole one is the least recently used one now

    assert bases.free_oldest(spare=0)

    assert [base.read() for base in bases._bases] == [bodies[2], bodies[1]]
    assert bases.held_bytes == len(bodies[2]) + 40


def test_h3_what_a_pinned_base_alone_would_hold_is_foretold() -> None:
    bases, bodies = conversation(4)
    bases._bases[1].pins += 1

    assert bases.bytes_least(spare=0) == len(bodies[1])
    bases._bases[0].pins += 1
    assert bases.bytes_least(spare=0) == len(bodies[3]) + 2 * 40


@settings(max_examples=50)
@given(data=st.data(), spare=st.integers(0, 2))
def test_h3_giving_up_all_that_may_go_leaves_what_was_foretold(
    data: st.DataObject, spare: int
) -> None:
    bases, bodies = Bases(), [TEXT]
    bases.add(b"0", Incoming(TEXT, {}))

    def next_one() -> Incoming:
        origin = data.draw(st.integers(0, len(bodies) - 1))
        taken: list[Step] = data.draw(steps())
        body, operations = built(bodies[origin], taken)
        bodies.append(body)
        return bases.incoming(body, b"%d" % origin, operations)

    for turn in range(1, data.draw(st.integers(2, 5))):
        bases.add(b"%d" % turn, next_one())
    pinned = data.draw(st.sets(st.sampled_from([*bases._bases])))
    for base in pinned:
        base.pins += 1
    incoming = data.draw(st.sampled_from([NOTHING, next_one()]))
    foretold = bases.bytes_least(incoming, spare=spare)
    stay = {*pinned, *bases._bases[len(bases) - spare :]}
    read = {base.name: base.read() for base in bases._bases}
    held_bytes = bases.bytes_with(incoming)

    while bases.free_oldest(incoming, spare=spare):
        assert bases.bytes_with(incoming) < held_bytes
        held_bytes = bases.bytes_with(incoming)
        assert {base.name: base.read() for base in bases._bases}.items() <= read.items()

    assert held_bytes == foretold
    assert stay <= {*bases._bases}
    bases.add(b"new", incoming)
    assert bases.held_bytes == foretold


@pytest.mark.parametrize("origin", [b"0", b"gone"])
def test_a_body_without_known_operations_stands_alone(origin: bytes) -> None:
    bases, _ = conversation(1)

    assert bases.incoming(b"body", origin, []).told == {}
