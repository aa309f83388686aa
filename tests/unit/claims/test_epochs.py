# SPDX-License-Identifier: Apache-2.0
"""The next epoch and the bytes of an epoch file (C2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.claims.envelope import Malformed
from rollout_router.claims.epochs import (
    CLAIM_EPOCH_MAX,
    EPOCH_FILE_BYTES,
    GENERATION_MAX,
    EpochsExhausted,
    decode_highest,
    encode_highest,
    floor_of,
    next_epoch,
)

EPOCHS = st.integers(0, CLAIM_EPOCH_MAX - 1)


@given(highest=EPOCHS, generation=st.integers(0, GENERATION_MAX), standing=EPOCHS)
def test_c2_the_next_epoch_is_above_everything_known(
    highest: int, generation: int, standing: int
) -> None:
    epoch = next_epoch(highest=highest, generation=generation, standing=standing)

    assert epoch == max(highest, generation * 2**32, standing) + 1


@pytest.mark.parametrize("name", ["highest", "standing"])
def test_c2_no_epoch_is_used_twice_at_the_end(name: str) -> None:
    last = {"highest": 0, "standing": 0, name: CLAIM_EPOCH_MAX}

    with pytest.raises(EpochsExhausted):
        next_epoch(generation=1, **last)


def test_c2_the_last_generation_has_as_many_epochs_as_every_other() -> None:
    room = floor_of(2) - floor_of(1)

    assert floor_of(GENERATION_MAX) + room - 1 == CLAIM_EPOCH_MAX
    last = next_epoch(highest=CLAIM_EPOCH_MAX - 1, generation=GENERATION_MAX, standing=0)
    assert last == CLAIM_EPOCH_MAX


@given(highest=st.integers(0, CLAIM_EPOCH_MAX))
def test_c2_an_epoch_file_reads_as_it_was_written(highest: int) -> None:
    raw = encode_highest(highest)

    assert decode_highest(raw) == highest
    assert len(raw) == EPOCH_FILE_BYTES


@given(highest=EPOCHS, at=st.integers(0, EPOCH_FILE_BYTES - 1), bit=st.integers(0, 7))
def test_c2_a_damaged_epoch_file_is_never_read(highest: int, at: int, bit: int) -> None:
    raw = bytearray(encode_highest(highest))
    raw[at] ^= 1 << bit

    with pytest.raises(Malformed):
        decode_highest(bytes(raw))


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * EPOCH_FILE_BYTES, id="zeros"),
        pytest.param(encode_highest(7)[:-1], id="cut"),
        pytest.param(encode_highest(7) + b"\n", id="longer"),
        pytest.param(b"0", id="by hand"),
    ],
)
def test_c2_what_is_no_epoch_file_is_not_zero(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode_highest(raw)
