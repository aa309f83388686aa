# SPDX-License-Identifier: Apache-2.0
"""What happened is remembered up to a bound, as a whole and for each rollout."""

from rollout_router.admin.events import Events


def test_the_oldest_events_are_forgotten_everywhere() -> None:
    events = Events(events_max=3)
    for number, rollout_id in enumerate(["r", None, "r", "s"], start=1):
        events.add({"rollout_id": rollout_id, "event": f"e{number}"})

    assert [one["event"] for one in events.after(0, limit=10)] == ["e2", "e3", "e4"]
    assert [one["number"] for one in events.of("r")] == [3]
    events.add({"rollout_id": None})
    events.add({"rollout_id": None})
    assert (events.of("r"), list(events._of)) == ([], ["s"])


def test_events_are_asked_for_behind_a_number_a_part_at_a_time() -> None:
    events = Events()
    assert events.after(0, limit=10) == []
    for _ in range(5):
        events.add({"rollout_id": None})

    assert [one["number"] for one in events.after(1, limit=2)] == [2, 3]
    assert events.after(5, limit=2) == events.after(99, limit=2) == []
