# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_router.checkpoint.wire import IDENTIFIER, Operation

IDS = st.from_regex(IDENTIFIER, fullmatch=True)
NUMBERS = st.integers(min_value=1, max_value=(1 << 63) - 1)
NAMED = {"operation-id": "r/1", "operation-fence": "s/2", "operation-environment": "e"}


OPERATIONS = st.builds(
    Operation,
    rollout_id=IDS,
    sequence=NUMBERS,
    store_id=IDS,
    claim_epoch=NUMBERS,
    environment_id=st.none() | IDS,
)


@settings(max_examples=30)
@given(OPERATIONS)
def test_an_operation_is_what_its_headers_say(operation: Operation) -> None:
    assert Operation.from_headers(operation.headers()) == operation
    assert operation.id == f"{operation.rollout_id}/{operation.sequence}"  # and no epoch in it


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("operation-id", text) for text in ("", "r", "r/", "/1", "r/0", "r/01", "r/-1", "r/1x")),
        *(("operation-id", text) for text in ("r/s/1", "r /1", "-r/1", "r/\u0661", f"r/{1 << 63}")),
        *(("operation-fence", text) for text in ("s/0", "s", "/2", "s/2.0", "s/ 2", "s/1e3")),
        *(("operation-environment", text) for text in ("", ".e", "e/f", "e" * 201, "e\n")),
    ],
)
def test_what_has_another_form_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match="not"):
        Operation.from_headers({**NAMED, name: text})


@pytest.mark.parametrize("name", ["operation-id", "operation-fence"])
def test_an_operation_without_a_name_or_a_fence_is_none(name: str) -> None:
    with pytest.raises(KeyError):
        Operation.from_headers({key: value for key, value in NAMED.items() if key != name})
