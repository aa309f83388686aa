# SPDX-License-Identifier: Apache-2.0
"""Tests of the test: the race must see what is wrong with stores that a careless hand might make.

The mutants are in ``race_process.py``. Each is the product's store but for one thing, and runs the
workload that the product's store survives; a race ends as soon as the checker finds no excuse.
"""

from pathlib import Path

import pytest
from support.race import run_race

WORKERS = 6
BOUND_S = 60.0  # a race that is still unsuspicious by then failed to see; most take one second


@pytest.mark.parametrize(
    "mutant", ["no_second_look", "no_lock", "in_place", "dead_by_socket", "epoch_of_the_claim"]
)
def test_c1_c2_c3_c4_c5_a_race_catches_a_store_that_is_wrong(
    state_dir: Path, run_dir: Path, tmp_path: Path, mutant: str
) -> None:
    race = run_race(
        state_dir, run_dir, tmp_path / "history", store=mutant, workers=WORKERS, bound_s=BOUND_S
    )

    assert race.unexplained, race.story


def test_c1_a_race_finds_nothing_wrong_with_a_store_that_is_only_slow(
    state_dir: Path, run_dir: Path, tmp_path: Path
) -> None:
    """It pauses where the mutants pause, so it is not their pauses that give them away."""
    race = run_race(
        state_dir, run_dir, tmp_path / "history", store="paused", workers=WORKERS, bound_s=4.0
    )

    assert race.unexplained is None, race.story
    assert not race.failures, race.story
