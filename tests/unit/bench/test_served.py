# SPDX-License-Identifier: Apache-2.0
from contextlib import closing
from pathlib import Path

import pytest

from rollout_router.bench import served
from rollout_router.bench.connection import BenchFailed


def test_a_server_that_ends_before_it_answers_ends_the_benchmark(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_BARE", "raise SystemExit('no application')")

    with closing(served.Served(directory)) as starts, pytest.raises(BenchFailed, match="no appl"):
        starts.uvicorn()


def test_a_command_that_finds_damage_is_not_measured(directory: Path) -> None:
    with closing(served.Served(directory)) as starts:
        starts.claims_list()
        (directory / "state/claims/00/stray").write_bytes(b"")
        with pytest.raises(BenchFailed, match="code 3"):
            starts.claims_list()
