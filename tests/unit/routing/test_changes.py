# SPDX-License-Identifier: Apache-2.0
"""What who watches a worker learns: each change once, oldest first, in bounded answers."""

import math
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from rollout_router.routing.changes import EVENTS_KEPT_MAX, GONE_KEPT_MAX, Changes, Row


def row(rollout_id: str, claim_epoch: int = 1) -> Row:
    at = "2026-01-01T00:00:00Z"
    return Row(
        rollout_id=rollout_id, kind="rollout", claim_epoch=claim_epoch, claimed_at=at, how="new"
    )


def names(answer: dict[str, Any], what: str = "rollouts") -> list[str]:
    return [one["rollout_id"] for one in answer[what]]


def test_each_change_is_told_once_in_its_order() -> None:
    changes, first, second = Changes(), row("r1"), row("r2")
    changes.opened(first)
    changes.opened(second)
    changes.happened({"event": "resync"})
    answer = changes.since(0)
    assert names(answer) == ["r1", "r2"]
    assert answer["events"] == [{"event": "resync"}]
    assert not answer["more"]

    first.turns = 1
    changes.touched(first)
    later = changes.since(answer["cursor"])
    assert (names(later), later["rollouts"][0]["turns"], later["events"]) == (["r1"], 1, [])
    assert changes.since(later["cursor"]) == {
        "rollouts": [],
        "gone": [],
        "events": [],
        "cursor": later["cursor"],
        "more": False,
        "reset": False,
    }


def test_a_row_lives_as_long_as_its_claim() -> None:
    changes, old, new = Changes(), row("r1", 1), row("r1", 2)
    changes.opened(old)
    cursor = changes.since(0)["cursor"]
    changes.closed("r1", 1)
    changes.opened(new)
    changes.touched(old)  # a call that began under the claim before
    changes.closed("r1", 1)

    answer = changes.since(cursor)
    assert answer["gone"] == [{"rollout_id": "r1", "claim_epoch": 1}]
    assert [one["claim_epoch"] for one in answer["rollouts"]] == [2]
    assert changes.row("r1") is new


def test_who_missed_what_is_gone_begins_anew() -> None:
    changes = Changes()
    changes.opened(row("stays"))
    cursor = changes.since(0)["cursor"]
    for number in range(GONE_KEPT_MAX + 1):
        changes.opened(row(f"r{number}"))
        changes.closed(f"r{number}", 1)

    changes.opened(row("new"))
    answer = changes.since(cursor, rows_max=1)
    assert (answer["reset"], names(answer), answer["gone"]) == (True, ["stays"], [])
    answer = changes.since(answer["cursor"], rows_max=1)
    assert (answer["reset"], names(answer), answer["more"]) == (False, ["new"], False)


def test_a_cursor_of_another_worker_begins_anew() -> None:
    assert Changes().since(5)["reset"]


def test_of_events_the_newest_are_kept() -> None:
    changes = Changes()
    for number in range(EVENTS_KEPT_MAX + 1):
        changes.happened({"number": number})

    answer = changes.since(0, rows_max=EVENTS_KEPT_MAX)
    assert [answer["events"][place]["number"] for place in (0, -1)] == [1, EVENTS_KEPT_MAX]


class Watcher:
    """Asks for all that is new, in pieces, and keeps what it learns."""

    def __init__(self, changes: Changes, rows_max: int) -> None:
        self.known: dict[str, int] = {}
        self.events: list[int] = []
        self._changes = changes
        self._rows_max = rows_max
        self._cursor = 0

    def ask(self) -> None:
        more = True
        while more:
            answer = self._changes.since(self._cursor, self._rows_max)
            lists = (answer["rollouts"], answer["gone"], answer["events"])
            assert max(map(len, lists)) <= self._rows_max
            for gone in answer["gone"]:
                if self.known.get(gone["rollout_id"], math.inf) <= gone["claim_epoch"]:
                    del self.known[gone["rollout_id"]]
            self.known |= {one["rollout_id"]: one["claim_epoch"] for one in answer["rollouts"]}
            self.events += [event["number"] for event in answer["events"]]
            self._cursor, more = answer["cursor"], answer["more"]


steps = st.lists(
    st.tuples(st.sampled_from(["open", "touch", "close", "event"]), st.integers(0, 5)), max_size=60
)


@example(steps=[("open", 0), ("open", 0), ("close", 0)], rows_max=1, looks={0})
@given(steps=steps, rows_max=st.integers(1, 4), looks=st.sets(st.integers(0, 60)))
def test_who_asks_at_any_time_in_any_pieces_knows_what_is(
    steps: list[tuple[str, int]], rows_max: int, looks: set[int]
) -> None:
    changes, rows, told = Changes(), dict[str, Row](), 0
    watcher = Watcher(changes, rows_max)
    for number, (step, which) in enumerate(steps):
        name = f"r{which}"
        if step == "open":
            rows[name] = row(name, number + 1)
            changes.opened(rows[name])
        elif step == "event":
            changes.happened({"number": told})
            told += 1
        elif name in rows and step == "touch":
            changes.touched(rows[name])
        elif name in rows:
            changes.closed(name, rows.pop(name).claim_epoch)
        if number in looks:
            watcher.ask()
    watcher.ask()

    assert watcher.known == {name: one.claim_epoch for name, one in rows.items()}
    assert watcher.events == list(range(told))
