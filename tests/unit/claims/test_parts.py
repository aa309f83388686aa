# SPDX-License-Identifier: Apache-2.0
"""What the name of a file tells (C5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.claims import rollout_of_file
from rollout_router.claims.names import ROLLOUT_ID, file_name


@given(rollout=st.from_regex(ROLLOUT_ID, fullmatch=True))
def test_c5_a_file_name_tells_its_rollout_or_nothing(rollout: str) -> None:
    name = file_name(rollout)
    told = rollout_of_file(f"/claims/00/{name}")
    assert told == (None if "_.h" in name else rollout)


@pytest.mark.parametrize("name", ["", "r.", "r._zz", "r.A", "x.a", "r._61", "r.a_", "r._ff", "a5"])
def test_c5_a_name_that_no_rollout_has_tells_nothing(name: str) -> None:
    assert rollout_of_file(f"/claims/00/{name}") is None
