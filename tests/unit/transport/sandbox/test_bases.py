# SPDX-License-Identifier: Apache-2.0
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.transport.sandbox import bases as bases_module
from rollout_router.transport.sandbox.bases import Base, RecentBases, closest
from rollout_router.transport.sandbox.delta import Delta, common_ends, encode
from rollout_router.transport.sandbox.wire import EMPTY_SHA256


def base(name: str, size: int = 10) -> Base:
    return Base(name, name.encode().ljust(size, b"."))


def held(bases: RecentBases, rollout: str = "r") -> list[str]:
    return [one.sha for one in bases.of("o", rollout)]


def test_the_last_four_are_held_newest_first() -> None:
    bases = RecentBases(bytes_max=1000)
    for name in "abcde":
        bases.add("o", "r", base(name))

    assert held(bases) == ["e", "d", "c", "b"]
    assert bases.bytes_held == 40


def test_a_base_that_comes_again_moves_to_the_front_and_counts_once() -> None:
    bases = RecentBases(bytes_max=1000)
    for name in "aba":
        bases.add("o", "r", base(name))

    assert held(bases) == ["a", "b"]
    assert bases.bytes_held == 20


def test_the_bytes_are_bounded_and_the_rollout_used_longest_ago_goes_first() -> None:
    bases = RecentBases(bytes_max=30)
    for rollout in ("one", "two", "three"):
        bases.add("o", rollout, base(rollout))
    bases.of("o", "one")

    bases.add("o", "four", base("four"))

    assert held(bases, "two") == []
    assert held(bases, "one") == ["one"]
    assert bases.bytes_held == 30


def test_a_body_over_the_bound_is_not_remembered() -> None:
    bases = RecentBases(bytes_max=30)
    bases.add("o", "r", base("a"))

    bases.add("o", "r", base("b", size=31))

    assert held(bases) == ["a"]


def test_the_number_of_rollouts_is_bounded() -> None:
    bases = RecentBases(bytes_max=1 << 20)
    for number in range(2_000):
        bases.add("o", str(number), base("a"))

    assert bases.bytes_held == 1_024 * 10


def test_s4_bases_are_per_origin_and_rollout() -> None:
    bases = RecentBases(bytes_max=1000)
    bases.add("o", "r", base("a"))
    bases.add("p", "r", base("b"))
    bases.add("o", "s", base("c"))

    assert [one.sha for one in bases.of("p", "r")] == ["b"]
    bases.forget("o", "s")
    assert held(bases, "s") == []
    bases.forget_origin("o")
    assert held(bases) == []
    assert bases.bytes_held == 10


def test_the_closest_base_begins_most_like_the_body() -> None:
    bodies = {"new": b"XX", "old": SAME + b"X", "older": SAME + b"Y"}
    bases = [Base(name, b"ab" + body) for name, body in bodies.items()]

    assert closest(bases, b"ab" + SAME + b"d").base.sha == "old"
    assert closest([], b"abcd").base == Base(EMPTY_SHA256, b"")


def test_of_two_that_begin_alike_the_closest_base_ends_like_the_body() -> None:
    bases = [Base("new", b"abX-tail"), Base("old", b"abY" + SAME)]

    assert closest(bases, b"ab" + SAME).base.sha == "old"


def test_a_few_bytes_more_in_common_are_chance_and_the_newest_is_closest() -> None:
    bases = [Base("new", SAME + b"X"), Base("old", SAME + b"dd")]

    assert closest(bases, SAME + b"ddd").base.sha == "new"


SAME = b"as much as would not be in common by chance, which is " * 3


def noise(seed: int, size: int = 4_000) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311 - test data


def test_where_ends_tell_nothing_the_closest_base_holds_the_middle() -> None:
    tools = noise(0)
    bases = [Base(f"{seed}", b"Now: 12:0%d" % seed + noise(seed) + tools) for seed in (1, 2, 3)]

    choice = closest(bases, b"Now: 12:09" + noise(3) + noise(9, 400) + tools)

    assert choice.base.sha == "3"
    assert len(choice.delta.inserted) < 500


def test_where_nothing_is_in_common_one_delta_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bytes] = []

    def count(base: bytes, *others: Any) -> Delta:
        made.append(base)
        return encode(base, *others)

    monkeypatch.setattr(bases_module, "encode", count)
    bases = [Base(f"{seed}", noise(seed)) for seed in range(4)]

    closest(bases, noise(9))
    assert len(made) == 1
    closest(bases, noise(9) + noise(2) + noise(1, 60))
    assert len(made) == 3  # the first says little, another one holds samples of the rest


class Searched(bytes):
    """Counts the bytes in which something is looked for."""

    bytes_read = 0

    def find(self, sub: object, start: object = 0, end: object = None) -> int:
        assert isinstance(sub, bytes)
        assert isinstance(start, int)
        assert isinstance(end, int)
        self.bytes_read += min(end, len(self)) - start
        return super().find(sub, start, end)

    def __contains__(self, sub: object) -> bool:
        raise AssertionError("reads all of it")


def looked_at(base_bytes: int) -> int:
    bodies = [Searched(noise(seed, base_bytes)) for seed in range(4)]
    closest([Base(f"{seed}", body) for seed, body in enumerate(bodies)], noise(9, 2_000))
    return sum(body.bytes_read for body in bodies)


def test_what_a_short_body_costs_does_not_grow_with_its_bases() -> None:
    assert 0 < looked_at(200_000) == looked_at(1_000_000)


CHUNKS = st.lists(st.sampled_from([b"a" * 40, b"b" * 50, b'{"role":"user"}', b"x"]), max_size=8)


@given(old=CHUNKS, other=CHUNKS, new=CHUNKS, common=st.binary(max_size=200))
def test_no_base_with_much_longer_ends_is_passed_over(
    old: list[bytes], other: list[bytes], new: list[bytes], common: bytes
) -> None:
    first, second = b"".join(old) + common, common + b"".join(other)
    body = common + b"".join(new) + common
    for ends, base in ((common_ends(first, body), second), (common_ends(second, body), first)):
        if sum(common_ends(base, body)) > sum(ends) + 64:
            assert bases_module._may_share_more(base, body, ends)
