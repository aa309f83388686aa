# SPDX-License-Identifier: Apache-2.0
"""A client that leaves, told by our own server (R2, R4)."""

from rollout_router.routing.gone import Gone


def test_who_listens_is_told_and_who_has_stopped_is_not() -> None:
    told: list[str] = []
    gone = Gone()
    stop = gone.listen(lambda: told.append("first"))
    stop()
    gone.tell()
    assert told == []
    gone.listen(lambda: told.append("late"))
    assert told == ["late"]  # it left before anybody listened
    gone.tell()
    assert told == ["late", "late"]
