# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, checks each call that it measures, and says what it measured."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateway import COMMAND, invoked

from rollout_router.bench import rooms
from rollout_router.bench.bodies import Conversation
from rollout_router.bench.guard import grown, recorded
from rollout_router.bench.measure import run_rounds
from rollout_router.timings import GYM, SANDBOX
from rollout_router.transport.sandbox.frame import rebuild

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
RECORDED = json.loads((Path(__file__).parents[2] / "docs" / "benchmarks.json").read_text())
REBUILD = "turns 500000 stages frame_rebuild"
# Processor time, or that of stages that compute beside one that computes: nothing waits for a disk.
GUARDED = [
    REBUILD,
    "turns 500000 stages delta_encode",
    "turns 500000 at_owner gym rebuild",
    "turns 500000 over_hop gym rebuild",
    "turns 500000 cpu cpu_shim",
]
# They digest a body, and were recorded with instructions for that.
SHA = re.search(
    r"^(flags|Features).*\b(sha_ni|sha2)\b", Path("/proc/cpuinfo").read_text(), re.MULTILINE
)
MARGIN = 1.0  # docs/benchmarking.md says what was measured for it


@pytest.fixture
def before(tmp_path: Path) -> Callable[[dict[str, Any]], str]:
    """Writes a document with these ratios; its path."""

    def write(ratios: dict[str, Any]) -> str:
        path = tmp_path / "before.json"
        path.write_text(json.dumps({"ratios": ratios}))
        return str(path)

    return write


def of_recorded(names: list[str]) -> dict[str, Any]:
    return {name: RECORDED["ratios"][name] for name in names}


def test_every_stage_of_a_turn_has_a_ratio_and_none_that_is_guarded_has_grown(
    before: Callable[[dict[str, Any]], str],
) -> None:
    check_them = ("--check", before(of_recorded(GUARDED)), "--margin", str(MARGIN))
    done = run(
        *("--json", "--quick", "--only", "turns", "--rounds", "5", "--sizes", "500000"),
        *(check_them if SHA else ()),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 2
    assert document["machine"]["cpus"] >= 1
    turns = document["parts"].pop("turns")
    assert document["parts"] == {}
    assert turns["rounds"] == 5
    (sized,) = turns["sizes"]
    assert sized["history_bytes"] == 500_000
    assert 0 < sized["frame_bytes"] < sized["body_bytes"]
    assert check(sized["stages"]) == STAGES
    assert check(sized["cpu"]) == {"cpu_bare": None, "cpu_shim": "cpu_bare"}
    assert [stage["stage"] for stage in sized["over_hop"]] == SPLIT
    assert [stage["stage"] for stage in sized["at_owner"]] == [s for s in SPLIT if s != "gym hop"]
    assert document["ratios"].keys() >= set(GUARDED)


def test_a_ratio_that_was_several_times_smaller_when_it_was_recorded_fails_the_command(
    before: Callable[[dict[str, Any]], str],
) -> None:
    smaller, same = (f"deltas compaction delta_{kind}" for kind in ("plain", "deflated"))
    ratios = of_recorded([smaller, same])
    ratios[smaller] = {name: value / 20 for name, value in ratios[smaller].items()}
    ratios[same] = {name: value * 20 for name, value in ratios[same].items()}
    arguments = ("--quick", "--only", "deltas", "--rounds", "1", "--check", before(ratios))
    done = run(*arguments, "--margin", str(MARGIN))
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "recorded" in line]
    assert f"{smaller}: " in line


@pytest.mark.skipif(SHA is None, reason="recorded with SHA instructions, which are missing here")
@pytest.mark.parametrize("decodes", [False, True])
def test_the_guard_finds_a_json_decode_where_frames_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, decodes: bool
) -> None:
    def decoding(*arguments: Any) -> bytes:
        body = rebuild(*arguments)
        json.loads(body)
        return body

    if decodes:
        monkeypatch.setattr(rooms, "rebuild", decoding)
    wanted = (rooms.DECODE_ENCODE, rooms.REBUILD)
    stages = rooms.history_stages(Conversation(500_000), tmp_path)
    measured = run_rounds(
        [stage for stage in stages if stage.name in wanted],
        rounds=9,
        warm_ups=1,
        clock_s=time.process_time,
    )
    now = recorded({f"turns 500000 stages {stage.stage}": stage for stage in measured})
    assert bool(grown(now, of_recorded([REBUILD]), margin=MARGIN)) is decodes


@pytest.mark.long  # what it measures is tested with the part
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


@pytest.mark.long  # as above; what each part does is tested with the part
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


@pytest.mark.long  # ten processes, each of which a load keeps busy
def test_forwarded_requests_are_compared_with_those_that_are_served_where_they_arrive() -> None:
    done = run("--json", "--quick", "--only", "forward", "--rounds", "1")
    document = json.loads(done.stdout)
    missed = [target for target in document["targets"] if not target["met"]]
    assert done.returncode == (1 if missed else 0), done.stderr
    times = [one["time"] for one in document["parts"]["forward"]["results"]]
    references = {time["stage"]: time["reference"] for time in times}
    for case in ("5kb json 1", "5kb json 64"):
        for way in ("hop", "mix", "one_way", "httpx", "httpx_kept"):
            assert references[f"{case} {way}"] == f"{case} local"
        assert document["ratios"][f"forward cpu {case} hop"]["low"] > 0
    for bound in (0.3, 15):
        assert bound in [target["bound"] for target in document["targets"]]


@pytest.mark.long  # as above
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
