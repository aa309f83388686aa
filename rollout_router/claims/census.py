# SPDX-License-Identifier: Apache-2.0
"""Every record of a store that can be read, however damaged the rest is (law C5).

The survey of a store ends where a stripe is missing, because a sweep must not take an incomplete
pass for a whole one. People who look at a damaged store want the opposite: what can be read, and a
name for everything that cannot. Takes no lock, changes nothing.
"""

import errno
import os
import re
from collections.abc import Iterator
from typing import Final

from rollout_router.claims.disk import TEMPORARY
from rollout_router.claims.errors import ClaimUnreadable, StoreUnavailable, errno_name
from rollout_router.claims.layout import STRIPE_NAMES
from rollout_router.claims.reader import ClaimReader
from rollout_router.claims.record import Claim, Unreadable, file_name, valid_rollout_id

__all__ = ["census", "claim_files", "code_of", "names_in", "read_record", "rollout_of_file"]

_OF_THE_PROCESS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing of the store; every other is of the file or directory that gave it."""

_CODES: Final = {errno.ENOENT: "missing", errno.ENOTDIR: "not_a_directory"}
_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")


def census(store: ClaimReader) -> Iterator[Claim | Unreadable]:
    """Every claim, and what cannot be read: files, and whole stripes that cannot be listed.

    Raises:
        StoreUnavailable: this process has no descriptors or memory left.
    """
    for stripe in STRIPE_NAMES:
        directory = f"{store.state_dir}/claims/{stripe}"
        try:
            names = names_in(directory)
        except OSError as error:
            yield Unreadable(path=directory, code=code_of(error))
            continue
        for name in names:
            if not name.startswith(TEMPORARY):
                found = read_record(store, f"{directory}/{name}")
                if found is not None:
                    yield found


def claim_files(store: ClaimReader) -> int:
    """How many files a pass over the claims will meet, about: workers go on. Never raises."""
    return sum(_count(f"{store.state_dir}/claims/{stripe}") for stripe in STRIPE_NAMES)


def read_record(store: ClaimReader, path: str) -> Claim | Unreadable | None:
    """What one claim file holds; None where it is gone, released since its name was read.

    Raises:
        StoreUnavailable: as :func:`census`.
    """
    try:
        claim = store.read_file(path, None)
    except ClaimUnreadable as error:
        return Unreadable(path=path, code=error.code)
    except StoreUnavailable as error:
        return Unreadable(path=path, code=code_of(OSError(error.errno, error.what)))
    if claim is None or path == store.path_of(claim.rollout_id):
        return claim
    return Unreadable(path=path, code="wrong_name")


def names_in(directory: str) -> list[str]:
    """The names in a directory, sorted.

    Raises:
        OSError: as ``listdir``.
    """
    return sorted(os.listdir(directory))  # noqa: PTH208 - names


def rollout_of_file(path: str) -> str | None:
    """The rollout whose claim file has this name; None where a long id was shortened into it."""
    name = os.path.basename(path)  # noqa: PTH119 - a string, as everywhere here
    rollout = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name.removeprefix("r."))
    return rollout if valid_rollout_id(rollout) and file_name(rollout) == name else None


def code_of(error: OSError) -> str:
    """The code of a part of the store that gave *error*.

    Raises:
        StoreUnavailable: the error is of this process.
    """
    if error.errno in _OF_THE_PROCESS:
        raise StoreUnavailable("reading the store", error.errno) from error
    return _CODES.get(error.errno or 0) or errno_name(error)


def _count(directory: str) -> int:
    try:
        return len(os.listdir(directory))  # noqa: PTH208 - names
    except OSError:  # the pass itself will say so
        return 0
