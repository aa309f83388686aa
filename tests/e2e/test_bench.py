# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, checks each call that it measures, and says what it measured."""

import json
import subprocess

from support.gateway import COMMAND

STAGES = {
    "json_reference": None,
    "delta_encode": "json_reference",
    "frame_rebuild": "json_reference",
    "capture_append": "json_reference",
    "claim_take": "json_reference",
    "claim_recheck": "json_reference",
    "claim_release": "json_reference",
    "call_router_off": "json_reference",
    "call_owner_full": "call_router_off",
    "call_owner_delta": "call_owner_full",
    "call_hop_full": "call_owner_full",
    "call_hop_delta": "call_owner_delta",
    "call_shim_delta": "call_owner_full",
}


def test_every_stage_has_a_ratio_to_its_reference_of_the_same_run() -> None:
    done = subprocess.run(
        [COMMAND, "bench", "--json", "--rounds", "2", "--sizes", "20000"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["rounds"] == 2
    assert document["machine"]["cpus"] >= 1
    (sized,) = document["sizes"]
    assert sized["history_bytes"] == 20_000
    assert 0 < sized["frame_bytes"] < sized["body_bytes"]
    stages = {stage["stage"]: stage for stage in sized["stages"]}
    assert {name: stage["reference"] for name, stage in stages.items()} == STAGES
    for stage in stages.values():
        assert 0 < stage["median_ms"] <= stage["p99_ms"]
        if stage["reference"] is None:
            assert stage["ratio"] is None
        else:
            reference_ms = stages[stage["reference"]]["median_ms"]
            assert stage["ratio"] == stage["median_ms"] / reference_ms > 0


def test_sizes_that_are_no_histories_are_wrong_usage() -> None:
    for sizes in ("x", "20000,", "10", "20000,20000"):
        done = subprocess.run(
            [COMMAND, "bench", "--sizes", sizes], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "sizes" in done.stderr
