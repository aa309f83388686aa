# SPDX-License-Identifier: Apache-2.0
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.checkpoint.digests import canonical, chained, digest, link

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def turned(value: Any) -> Any:
    """The same value, with its keys in another order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(one) for one in value] if isinstance(value, list) else value


@settings(max_examples=50)
@given(JSON)
def test_equal_values_have_one_text_which_reads_as_them(value: Any) -> None:
    text = canonical(value)
    assert json.loads(text) == value
    assert canonical(turned(value)) == text == canonical(json.loads(text))
    assert text.isascii()


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"a": -float("inf")}, {float("nan"): 1}, {1}, b"x"]
)
def test_what_json_cannot_hold_has_no_form(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        canonical(value)


def test_a_tuple_is_a_list_and_a_key_is_a_string() -> None:
    assert canonical({1: (2, None)}) == '{"1":[2,null]}'


def test_each_part_of_a_link_counts_and_so_does_where_it_stands() -> None:
    links = [
        link("p", 1, "a"), link("q", 1, "a"), link("p", 2, "a"), link("p", "1", "a"),
        link("p", "a", 1), link("p", 1, "a", None), link("p", 1), chained(1, "a"), digest("p"),
    ]  # fmt: skip
    assert len(set(links)) == len(links)
    assert link("p", 1, "a") == links[0]
    assert digest("é") == digest("é".encode())
