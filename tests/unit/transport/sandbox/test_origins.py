# SPDX-License-Identifier: Apache-2.0
from rollout_router.transport.sandbox.origins import Link, Origin


def test_s4_off_ends_with_its_time() -> None:
    origin = Origin()
    origin.turn_off(10.0)

    links = []
    for now_s in (39.9, 40.0):
        origin.pass_time(now_s)
        links.append(origin.link)

    assert links == [Link.OFF, Link.UNKNOWN]


def test_s4_time_changes_nothing_but_off() -> None:
    origin = Origin()
    origin.turn_on()

    origin.pass_time(1e9)

    assert origin.link is Link.ON


def test_s4_off_ends_the_rows_of_all_rollouts() -> None:
    origin = Origin()
    assert [origin.count_resync("a") for _ in range(2)] == [False, False]

    origin.turn_off(0.0)

    assert [origin.count_resync("a") for _ in range(3)] == [False, False, True]


def test_s4_the_number_of_rows_is_bounded_and_the_oldest_goes() -> None:
    origin = Origin()
    for number in range(2):
        assert not origin.count_resync("a"), number
    for number in range(1_024):
        origin.count_resync(f"r{number}")

    assert not origin.count_resync("a")
