# SPDX-License-Identifier: Apache-2.0
"""The note of the admin address: private, whole, removed by its writer alone, nobody's trouble."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from rollout_router.claims import (
    ADMIN_NOTE,
    AdminNote,
    FileClaimStore,
    StoreUnavailable,
    inspect_store,
    read_admin_note,
    remove_admin_note,
    sweep,
    write_admin_note,
)

NOTE = AdminNote(url="http://127.0.0.1:9", token="t0ken", pid=7)  # noqa: S106 - of a test


def test_a_note_is_read_as_it_was_written_by_its_user_alone(store: FileClaimStore) -> None:
    write_admin_note(store.state_dir, NOTE)

    assert read_admin_note(store.state_dir) == NOTE
    assert (store.state_dir / ADMIN_NOTE).stat().st_mode & 0o777 == 0o600
    assert "t0ken" not in repr(NOTE)


def test_only_its_writer_removes_a_note(store: FileClaimStore) -> None:
    write_admin_note(store.state_dir, NOTE)
    remove_admin_note(store.state_dir, pid=8)
    assert read_admin_note(store.state_dir) == NOTE

    remove_admin_note(store.state_dir, pid=7)
    remove_admin_note(store.state_dir, pid=7)
    assert not (store.state_dir / ADMIN_NOTE).exists()


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"[]", b'{"url": "x"}', b'{"url":"x","token":"t","pid":"p"}']
)
def test_what_is_no_note_is_none(store: FileClaimStore, raw: bytes) -> None:
    (store.state_dir / ADMIN_NOTE).write_bytes(raw)
    assert read_admin_note(store.state_dir) is None
    remove_admin_note(store.state_dir, pid=7)
    assert (store.state_dir / ADMIN_NOTE).exists()


def test_c1_a_note_is_a_part_of_its_store(store: FileClaimStore) -> None:
    write_admin_note(store.state_dir, NOTE)

    assert inspect_store(store, step=lambda: None).findings == ()
    swept = sweep(store, now=datetime.now(UTC), tombstone_age_max=timedelta.max)
    assert (swept.leftovers, swept.failed) == ((), ())
    FileClaimStore.open(store.state_dir, service="model")
    assert read_admin_note(store.state_dir) == NOTE


def test_a_note_that_others_can_read_is_damage(store: FileClaimStore) -> None:
    write_admin_note(store.state_dir, NOTE)
    (store.state_dir / ADMIN_NOTE).chmod(0o644)

    (found,) = inspect_store(store, step=lambda: None).findings
    assert (Path(found.path).name, found.code) == (ADMIN_NOTE, "mode")


def test_c7_a_note_that_cannot_be_written_leaves_the_old_one(
    store: FileClaimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_admin_note(store.state_dir, NOTE)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rollout_router.claims.admin_note.publish", full)
    with pytest.raises(StoreUnavailable, match="ENOSPC"):
        write_admin_note(store.state_dir, NOTE)
    monkeypatch.setattr(Path, "unlink", full)
    with pytest.raises(StoreUnavailable, match="removing"):
        remove_admin_note(store.state_dir, pid=7)
    assert read_admin_note(store.state_dir) == NOTE
