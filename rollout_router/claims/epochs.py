# SPDX-License-Identifier: Apache-2.0
"""The number that fences: how the next claim epoch is found and kept (law C2).

Every stripe has an epoch file with the highest epoch that it ever granted. It is written before
each grant, in place, with one ``pwrite`` of a fixed width, under the stripe lock. Claim files may
be released, corrupted or deleted: the number does not come from them. Power may be lost before the
file reaches the disk: the generation, raised durably once a boot, stands above all that it held.

Pure. A missing or damaged epoch file is an error of its stripe and never read as zero.
"""

import hashlib
import re
from typing import Final

from rollout_router.claims.envelope import Malformed

__all__ = [
    "CLAIM_EPOCH_MAX",
    "EPOCH_FILE_BYTES",
    "GENERATION_MAX",
    "EpochsExhausted",
    "decode_highest",
    "encode_highest",
    "floor_of",
    "generation_of",
    "next_epoch",
]

CLAIM_EPOCH_MAX: Final = 2**63 - 1  # fits the signed 64-bit integer of every database and language
_GENERATION_SHIFT: Final = 32
GENERATION_MAX: Final = 2**31 - 1  # (generation << 32) stays below 2**63
EPOCH_FILE_BYTES: Final = 53  # 19 digits, a space, 32 digits of checksum, a newline
_EPOCH_FILE: Final = re.compile(rb"(\d{19}) ([0-9a-f]{32})\n")


class EpochsExhausted(Exception):  # noqa: N818 - names the state of the stripe
    """No epoch below 2**63 is left. A number is never used twice, so nothing is granted."""


def floor_of(generation: int) -> int:
    """What every epoch granted under *generation* is above."""
    return generation << _GENERATION_SHIFT


def generation_of(epoch: int) -> int:
    """The generation under which *epoch* was granted."""
    return epoch >> _GENERATION_SHIFT


def next_epoch(*, highest: int, generation: int, standing: int) -> int:
    """The epoch of the next grant.

    Args:
        highest: of the stripe, from its epoch file.
        generation: of the store.
        standing: the epoch of the record that is replaced, 0 where none stands. It is below
            *highest* unless somebody put an old epoch file back.

    Raises:
        EpochsExhausted: it would be above 2**63 - 1.
    """
    epoch = max(highest, floor_of(generation), standing) + 1
    if epoch > CLAIM_EPOCH_MAX:
        raise EpochsExhausted
    return epoch


def encode_highest(highest: int) -> bytes:
    """The bytes of an epoch file, always of the same width."""
    digits = f"{highest:019d}".encode()
    return digits + b" " + _checksum(digits) + b"\n"


def decode_highest(raw: bytes) -> int:
    """The highest epoch in *raw*.

    Raises:
        Malformed: ``checksum``, for anything that :func:`encode_highest` did not make.
    """
    match = _EPOCH_FILE.fullmatch(raw)
    if match is None or match[2] != _checksum(match[1]) or int(match[1]) > CLAIM_EPOCH_MAX:
        raise Malformed("checksum")
    return int(match[1])


def _checksum(digits: bytes) -> bytes:
    return hashlib.sha256(b"claim epoch " + digits).hexdigest()[:32].encode()
