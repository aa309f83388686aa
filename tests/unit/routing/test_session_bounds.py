# SPDX-License-Identifier: Apache-2.0
"""When there is room for one more session (R3)."""

import pytest

from rollout_router.errors import Refusal
from rollout_router.routing.session_bounds import SessionBounds


@pytest.mark.parametrize(
    ("files", "own_then", "own_now", "why"),
    [
        (0, 0, 0, None),
        (2, 2, 2, "this worker owns 2 sessions"),
        (3, 0, 0, None),
        (4, 0, 0, "the store has 4 sessions"),
        (3, 0, 1, "the store has 4 sessions"),  # taken here since
        (4, 1, 0, None),  # closed here since
        (0, 1, 0, None),  # one that was being taken, and had no file yet
    ],
)
def test_r3_there_is_room_below_the_bound_of_the_worker_and_of_the_store(
    files: int, own_then: int, own_now: int, why: str | None
) -> None:
    bounds = SessionBounds(number_max=2, remembered_max=4)
    bounds.counted(files, own=own_then)

    if why is None:
        bounds.check("session.a", own=own_now)
        return
    with pytest.raises(Refusal, match=f"session.a: {why}") as refused:
        bounds.check("session.a", own=own_now)
    assert refused.value.code == "overloaded"
