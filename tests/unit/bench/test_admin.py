# SPDX-License-Identifier: Apache-2.0
"""What is measured of the admin address is what it is named after."""

from pathlib import Path

from rollout_router.bench.admin import run_admin

REFRESHES = ["unchanged", "1_percent", "2000", "1_percent_beside_a_survey"]


def test_a_refresh_is_measured_against_writing_everything(directory: Path) -> None:
    said: list[str] = []

    costs = run_admin(directory, claims=300, rounds=2, say=said.append)

    others = ["all_told_anew", "survey", "survey_merged"]
    assert {stage.stage: stage.reference for stage in costs.stages} == {
        "json_of_all": None,
        **dict.fromkeys([f"refresh_{name}" for name in REFRESHES] + others, "json_of_all"),
    }
    assert [(one.name, one.bound) for one in costs.targets()] == [
        (f"refresh_{name} of 300 claims, ms", 100.0) for name in REFRESHES
    ]
    assert costs.view_bytes > 10_000
    assert said == ["measuring refreshes of the admin address: 300 claims, 2 rounds"]
    assert list(directory.iterdir()) == []
