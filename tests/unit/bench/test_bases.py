# SPDX-License-Identifier: Apache-2.0
"""What is measured of bases is what it is named after."""

from dataclasses import asdict

import pytest

from rollout_router.bench import bases
from rollout_router.bench.bases import run_bases
from rollout_router.bench.connection import BenchFailed


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "_IDLE_ROLLOUTS", 50)
    monkeypatch.setattr(bases, "_RESIDENT_ROLLOUTS", 2)
    monkeypatch.setattr(bases, "_TURNS", 10)


@pytest.mark.usefixtures("_few")
def test_bases_of_a_conversation_are_measured_against_one_and_against_hashing() -> None:
    said: list[str] = []

    costs = run_bases(rounds=3, say=said.append)

    assert [one.bases for one in costs.held] == [1, 2, 4, 8]
    assert costs.held[0].bytes == costs.body_bytes
    assert [one.rollouts for one in costs.resident] == [2] * 4
    assert all(one.resident_bytes > one.body_bytes / 2 for one in costs.resident)
    assert sorted(costs.idle_bytes) == [0, 8]
    assert {stage.stage: stage.reference for stage in costs.stages} == {
        "sha256": None,
        "keep": "sha256",
        "base_newest": "sha256",
        "base_oldest": "sha256",
    }
    assert asdict(costs)["held"][0] == {"bases": 1, "bytes": costs.body_bytes, "ratio": 1.0}
    assert said == ["measuring the bases of conversations, 3 rounds"]


def test_a_process_that_fails_is_no_result() -> None:
    with pytest.raises(BenchFailed, match="holds bases failed"):
        bases._resident(-1, -1)
