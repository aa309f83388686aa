# SPDX-License-Identifier: Apache-2.0
"""What is measured of the journal is what it is named after."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rollout_router.bench import journal
from rollout_router.bench.journal import run_journal
from rollout_router.checkpoint.journal import Journal


def test_an_operation_is_measured_against_a_bare_insert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_OPERATIONS", 2)
    said: list[str] = []

    costs = run_journal(tmp_path, file_system="ext4", rounds=2, say=said.append)

    names = ["bare_insert", "operation", "operation_together", "operation_replayed", "journal_off"]
    assert {stage.stage: stage.reference for stage in costs.stages} == {
        f"{name}_{size}": None if name == "bare_insert" else f"bare_insert_{size}"
        for size in ("4k", "64k")
        for name in names
    }
    assert all(stage.ratio is not None for stage in costs.stages if stage.reference is not None)
    assert said == ["measuring operations of agent sessions: 2 rounds of 2"]
    assert list(tmp_path.iterdir()) == []


def test_the_bare_insert_has_the_settings_of_the_journal(tmp_path: Path) -> None:
    def settings(db: sqlite3.Connection) -> list[object]:
        return [db.execute(f"PRAGMA {one}").fetchone() for one in ("journal_mode", "synchronous")]

    with closing(journal._Bench(tmp_path)) as bench:
        (tmp_path / "other").mkdir()
        with closing(
            Journal(tmp_path / "other" / "j", instance="agent", run="run", store_id="store")
        ) as ours:
            assert settings(bench._bare) == ours.database.write_now(settings)
