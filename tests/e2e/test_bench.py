# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, checks each call that it measures, and says what it measured."""

import json
import subprocess
from typing import Any

import pytest
from support.gateway import COMMAND, invoked

from rollout_router.timings import GYM, SANDBOX

STAGES = {
    "json_reference": None,
    "decode_encode": None,
    "delta_encode": "json_reference",
    "frame_rebuild": "decode_encode",
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
    "call_shim_hop_delta": "call_owner_full",
}
SPLIT = [*SANDBOX, *GYM]


def test_every_stage_of_a_turn_has_a_ratio_to_its_reference_of_the_same_run() -> None:
    done = run("--json", "--only", "turns", "--rounds", "2", "--sizes", "20000")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 2
    assert document["machine"]["cpus"] >= 1
    turns = document["parts"].pop("turns")
    assert document["parts"] == {}
    assert turns["rounds"] == 2
    (sized,) = turns["sizes"]
    assert sized["history_bytes"] == 20_000
    assert 0 < sized["frame_bytes"] < sized["body_bytes"]
    assert check(sized["stages"]) == STAGES
    assert check(sized["cpu"]) == {"cpu_bare": None, "cpu_shim": "cpu_bare"}
    assert [stage["stage"] for stage in sized["over_hop"]] == SPLIT
    assert [stage["stage"] for stage in sized["at_owner"]] == [s for s in SPLIT if s != "gym hop"]
    assert document["ratios"]["turns 20000 stages frame_rebuild"]["low"] > 0


def test_claims_have_targets_and_a_missed_one_is_the_exit_code() -> None:
    done = run("--json", "--only", "claims", "--rounds", "1", "--claims", "5")
    document = json.loads(done.stdout)
    claims = document["parts"]["claims"]
    assert claims["rounds"] == 10
    file_systems = {store["file_system"] for store in claims["stores"]}
    assert len(claims["stores"]) == 2 * len(file_systems)
    assert document["notes"] == claims["notes"]
    assert len(claims["notes"]) == 2 - len(file_systems)
    for store in claims["stores"]:
        assert store["claims"] >= 3
        assert set(check(store["stages"]).values()) == {None, "plain_reads"}
    assert len(document["targets"]) == 5 * len(claims["stores"])
    for target in document["targets"]:
        assert target["met"] == (target["value"] <= target["bound"] == 1)
    missed = sum(not target["met"] for target in document["targets"])
    assert done.stderr.count("target missed") == missed
    assert done.returncode == (1 if missed else 0)


@pytest.mark.long  # how a table looks is tested with the command itself
def test_the_figures_of_claims_are_printed_for_people() -> None:
    done = run("--only", "claims", "--rounds", "1", "--claims", "2")
    for word in ("median µs", "p99 µs", "claim_take_over", "Targets", "three plain reads"):
        assert word in done.stdout


def test_each_client_of_the_hop_is_compared_with_a_bare_connection() -> None:
    done = run("--json", "--only", "hop", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    measured = document["parts"]["hop"]
    assert measured["rounds"] == 1
    assert measured["notes"] == []
    works = ("5kb", "1mb", "5kb_in_flight")
    stages = {f"bare_{work}": None for work in works} | {
        f"{client}_{work}": f"bare_{work}" for client in ("hop", "httpx") for work in works
    }
    assert check(measured["stages"]) == check(measured["cpu"]) == stages


def test_each_start_is_compared_with_the_least_that_could_do_the_same() -> None:
    done = run("--json", "--only", "start", "--rounds", "1")
    document = json.loads(done.stdout)
    assert len(document["targets"]) == 4
    missed = [target for target in document["targets"] if not target["met"]]
    assert done.returncode == (1 if missed else 0), done.stderr
    assert check(document["parts"]["start"]["stages"]) == {
        "bare_python": None,
        "shim_ready": "bare_python",
        "shim_first_answer": "bare_python",
        "bare_pass": None,
        "claims_list": "bare_pass",
        "uvicorn_fastapi_answers": None,
        "serve_answers": "uvicorn_fastapi_answers",
        "worker_again": "uvicorn_fastapi_answers",
    }


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "bench", *arguments], capture_output=True, text=True, check=False
    )


def check(listed: list[dict[str, Any]]) -> dict[str, str | None]:
    """Each stage's reference; every ratio is that of the medians beside it."""
    stages = {stage["stage"]: stage for stage in listed}
    for stage in listed:
        assert 0 < stage["median_ms"] <= stage["p99_ms"]
        if stage["reference"] is None:
            assert stage["ratio"] is None
        else:
            reference_ms = stages[stage["reference"]]["median_ms"]
            assert stage["ratio"] == pytest.approx(stage["median_ms"] / reference_ms)
            low, high = stage["spread"]
            assert 0 < low <= high
    return {name: stage["reference"] for name, stage in stages.items()}


def test_sizes_that_are_no_histories_are_wrong_usage() -> None:
    for sizes in ("x", "20000,", "10", "20000,20000"):
        done = invoked("bench", "--sizes", sizes)
        assert done.exit_code == 2
        assert "sizes" in done.stderr
