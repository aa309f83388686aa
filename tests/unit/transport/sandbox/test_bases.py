# SPDX-License-Identifier: Apache-2.0
from rollout_router.transport.sandbox.bases import Base, RecentBases, closest


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
    bases = [Base("new", b"abXX"), Base("old", b"abcX"), Base("older", b"abcY")]

    chosen = closest(bases, b"abcd")

    assert chosen is not None
    assert chosen.sha == "old"
    assert closest([], b"abcd") is None
