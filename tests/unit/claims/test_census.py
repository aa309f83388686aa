# SPDX-License-Identifier: Apache-2.0
"""Every record that can be read, however damaged the rest is (C5)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout_router.claims import (
    Claim,
    FileClaimStore,
    LifeLock,
    StoreUnavailable,
    Unreadable,
    census,
    claim_files,
    code_of,
    rollout_of_file,
)
from rollout_router.claims.record import ROLLOUT_ID, file_name

Live = Callable[[], LifeLock]


@given(rollout=st.from_regex(ROLLOUT_ID, fullmatch=True))
def test_c5_a_file_name_tells_its_rollout_or_nothing(rollout: str) -> None:
    name = file_name(rollout)
    told = rollout_of_file(f"/claims/00/{name}")
    assert told == (None if "_.h" in name else rollout)


@pytest.mark.parametrize("name", ["", "r.", "r._zz", "r.A", "x.a", "r._61", "r.a_", "r._ff", "a5"])
def test_c5_a_name_that_no_rollout_has_tells_nothing(name: str) -> None:
    assert rollout_of_file(f"/claims/00/{name}") is None


def test_c5_what_is_damaged_is_named_and_the_rest_is_read(
    store: FileClaimStore, live: Live
) -> None:
    owner = live().owner
    rollouts = [f"r{n}" for n in range(40)]
    for rollout in rollouts:
        store.take(rollout, owner)
    paths = {rollout: Path(store.path_of(rollout)) for rollout in rollouts}
    empty, copied = paths["r0"], paths["r1"]
    empty.write_bytes(b"")
    copied.with_name("r.other").write_bytes(copied.read_bytes())
    (copied.parent / ".tmp.x").touch()
    free = sorted({p.name for p in (store.state_dir / "claims").iterdir()} - _used(paths))
    (store.state_dir / "claims" / free[0]).rmdir()
    (store.state_dir / "claims" / free[1]).rmdir()
    (store.state_dir / "claims" / free[1]).touch()

    found = list(census(store))

    assert {c.rollout_id for c in found if isinstance(c, Claim)} == set(rollouts) - {"r0"}
    assert {(bad.path, bad.code) for bad in found if isinstance(bad, Unreadable)} == {
        (str(empty), "empty"),
        (str(copied.with_name("r.other")), "wrong_name"),
        (str(store.state_dir / "claims" / free[0]), "missing"),
        (str(store.state_dir / "claims" / free[1]), "not_a_directory"),
    }
    assert claim_files(store) == 42


def _used(paths: dict[str, Path]) -> set[str]:
    return {path.parent.name for path in paths.values()}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_c7_what_a_process_lacks_says_nothing_of_the_store(number: int) -> None:
    with pytest.raises(StoreUnavailable):
        code_of(OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOENT, "missing"), (errno.ENOTDIR, "not_a_directory"), (errno.EACCES, "EACCES")],
)
def test_c5_what_a_file_gives_is_a_code_of_it(number: int, code: str) -> None:
    assert code_of(OSError(number, "")) == code
