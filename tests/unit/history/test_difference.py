# SPDX-License-Identifier: Apache-2.0
"""A difference builds the body that it was made of, however often it is told anew (H2)."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from support.built import Step, built, steps

from rollout_router.history.difference import Difference, Run, inverted, runs_of, through

TEXT = b"".join(b"%d," % n for n in range(300))[:900]


def assert_true_and_disjoint(runs: Sequence[Run], one: bytes, other: bytes) -> None:
    for start, to, size in runs:
        assert one[start : start + size] == other[to : to + size]
        assert size > 0
    for seen in (list(runs), inverted(runs)):
        assert all(a.start + a.size <= b.start for a, b in pairwise(seen))


@given(first=steps(), second=steps())
def test_h2_a_body_is_built_from_the_one_that_was_built_from_it(
    first: list[Step], second: list[Step]
) -> None:
    middle, one = built(TEXT, first)
    newest, two = built(middle, second)
    from_text, from_middle = runs_of(one), runs_of(two)
    assert_true_and_disjoint(from_text, TEXT, middle)
    assert_true_and_disjoint(from_middle, middle, newest)
    both = through(from_text, from_middle)
    assert_true_and_disjoint(both, TEXT, newest)

    near = Difference.of(TEXT, from_text)
    far = near.moved(middle, from_middle)

    assert near.build(middle) == far.build(newest) == TEXT
    assert Difference.of(TEXT, both).build(newest) == TEXT
    assert near.length == far.length == len(TEXT)
    assert_true_and_disjoint(list(far.runs()), TEXT, newest)
    assert len(near) == 8 + 16 * near.pieces + len(TEXT) - sum(run.size for run in near.runs())


def test_h3_a_moved_tail_costs_two_pieces_however_often_it_moves() -> None:
    body, old = TEXT, Difference.of(TEXT, [Run(0, 0, len(TEXT))])
    for _ in range(20):
        newer = body[:600] + b"a turn" * 9 + body[600:]
        old = old.moved(body, runs_of([(0, 600), (None, 54), (600, len(body) - 600)]))
        body = newer

    assert old.build(body) == TEXT
    assert (old.pieces, len(old)) == (2, 40)


def test_h3_a_run_that_costs_more_than_its_bytes_is_none() -> None:
    operations = [(0, 31), (None, 5), (40, 32), (None, 5)]

    assert runs_of(operations) == [Run(40, 36, 32)]


def test_what_a_body_has_twice_is_told_once() -> None:
    assert runs_of([(0, 100), (50, 100), (0, 100)]) == [Run(0, 0, 100), Run(100, 150, 50)]
