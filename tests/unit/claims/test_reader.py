# SPDX-License-Identifier: Apache-2.0
"""Every record that can be read, however damaged the rest is (C5, C7)."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollout_router.claims import (
    Claim,
    ClaimUnreadable,
    FileClaimStore,
    LifeLock,
    StoreUnavailable,
    Unreadable,
    code_of,
    disk,
)
from rollout_router.claims import reader as module

Live = Callable[[], LifeLock]


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

    found = list(store.survey())

    assert {c.rollout_id for c in found if isinstance(c, Claim)} == set(rollouts) - {"r0"}
    assert {(bad.path, bad.code) for bad in found if isinstance(bad, Unreadable)} == {
        (str(empty), "empty"),
        (str(copied.with_name("r.other")), "wrong_name"),
        (str(store.state_dir / "claims" / free[0]), "missing"),
        (str(store.state_dir / "claims" / free[1]), "not_a_directory"),
    }
    assert store.count_files() == 42
    assert store.count_files(prefix="r1") == 11


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


def test_c5_a_claim_that_was_read_is_looked_at_and_read_again_once_it_changed(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = live(), live()
    store.take("r1", first.owner)
    opened: list[str] = []

    def counting(path: str) -> tuple[os.stat_result, bytes]:
        opened.append(path)
        return disk.read_signed(path)

    reader = FileClaimStore.inspect(store.state_dir)
    monkeypatch.setattr(module, "read_signed", counting)
    claim = reader.read("r1")
    assert [reader.read("r1"), reader.read("r1")] == [claim, claim]
    path = store.path_of("r1")
    assert opened == [path]
    Path(path).chmod(0o640)  # another signature, the same record
    assert reader.read("r1") == claim
    assert len(opened) == 2
    assert claim is not None
    store.force("r1", expect_epoch=claim.claim_epoch, reason="the test said so")
    assert reader.read("r1") is None
    store.take("r1", second.owner)
    moved = reader.read("r1")
    assert moved is not None
    assert (moved.owner, reader.read("r1")) == (second.owner, moved)
    Path(path).write_bytes(b"damaged")
    with pytest.raises(ClaimUnreadable):
        reader.read("r1")
    with pytest.raises(ClaimUnreadable):  # and is not remembered as what it was
        reader.read("r1")


def test_a_reader_remembers_a_bounded_number_of_claims(
    store: FileClaimStore, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_CLAIMS_MAX", 3)
    owner = live().owner
    reader = FileClaimStore.inspect(store.state_dir)
    for number in range(7):
        store.take(f"r{number}", owner)
        assert reader.read(f"r{number}") == reader.read(f"r{number}")
        assert len(reader._known) <= 3


def test_c1_a_known_claim_is_no_other_of_another_size(store: FileClaimStore, live: Live) -> None:
    owner = live().owner
    store.take("r1", owner)
    reader = FileClaimStore.inspect(store.state_dir)
    true = reader.read("r1")
    assert true is not None
    path, signature, _ = reader._known["r1"]
    of_another_epoch = replace(true, claim_epoch=true.claim_epoch + 1)
    reader._known["r1"] = (
        path,
        signature._replace(size_bytes=signature.size_bytes + 1),
        of_another_epoch,
    )
    assert reader.read("r1") == true
