# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from rollout_router.bench import start
from rollout_router.bench.connection import BenchFailed


def test_a_shim_that_does_not_start_ends_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "build", lambda path: path.write_text("raise SystemExit(3)"))

    with pytest.raises(BenchFailed, match="before it was ready"):
        start.run_start(tmp_path, rounds=1, say=lambda _: None)

    assert list(tmp_path.iterdir()) == []
