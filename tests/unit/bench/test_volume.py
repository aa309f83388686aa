# SPDX-License-Identifier: Apache-2.0
"""The bytes of recorded rollouts and of conformance runs are counted, each for itself."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rollout_router.bench.connection import BenchFailed
from rollout_router.bench.volume import Spread, run_volume
from rollout_router.demo.generated import generate
from rollout_router.transport.sandbox import client


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    lines = [
        json.dumps({"rollout_id": rollout.rollout_id, "items": list(rollout.items)})
        for rollout in generate(3)
    ]
    (tmp_path / "some.jsonl").write_text("\n".join(lines))
    return tmp_path


def test_d3_each_rollout_is_counted_in_full_gzipped_and_as_frames(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[bytes] = []
    prepare = client.Client.prepare

    def heard(*arguments: Any) -> client.Outgoing:
        bodies.append(arguments[-1])
        return prepare(*arguments)

    monkeypatch.setattr(client.Client, "prepare", heard)
    said: list[str] = []

    costs = run_volume(recorded, None, said.append)

    assert [volume.dialect for volume in costs.rollouts] == ["responses", "chat", "responses"]
    assert sum(volume.calls for volume in costs.rollouts) == len(bodies)
    assert sum(volume.bytes_full for volume in costs.rollouts) == sum(map(len, bodies))
    gzipped = sum(len(gzip.compress(body, 6)) for body in bodies)
    assert sum(volume.bytes_gzip for volume in costs.rollouts) == gzipped
    for volume in costs.rollouts:
        assert volume.bytes_full > volume.bytes_plain > volume.bytes_deflated > 0
    for target in costs.targets():
        assert target.met
        assert target.bound == 1.0
    assert len(costs.targets()) == 2
    assert said == ["counting the bytes of 3 recorded rollouts"]
    assert "request_text" not in json.dumps(dataclasses.asdict(costs))


def test_ratios_are_of_the_rollouts_each_and_of_all(recorded: Path) -> None:
    costs = run_volume(recorded, None, lambda _: None)
    for way, spread in zip(("gzip", "plain", "deflated"), costs.spreads, strict=True):
        ratios = sorted(volume.times_fewer(way) for volume in costs.rollouts)
        sent = sum(getattr(volume, f"bytes_{way}") for volume in costs.rollouts)
        full = sum(volume.bytes_full for volume in costs.rollouts)
        assert spread == Spread(
            way=way, all=full / sent, least=ratios[0], median=ratios[1], most=ratios[2]
        )
    assert len(costs.tables()[0].rows) == 3


def test_a_frame_that_cannot_be_made_ends_the_benchmark(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise ArithmeticError

    monkeypatch.setattr(client, "encode_frame", fail)
    with pytest.raises(BenchFailed, match="could make no frame"):
        run_volume(recorded, None, lambda _: None)


def run(mode: str, **figures: Any) -> dict[str, Any]:
    return {"mode": mode, "failed": False, "exit_code": 0, "findings": [], **figures}


def test_the_runs_of_a_conformance_document_are_listed_but_for_failed_ones(tmp_path: Path) -> None:
    document = {
        "schema": 3,
        "variants": [
            {
                "harness": "pi",
                "dialect": "chat",
                "scenario": "long",
                "rules": {},
                "runs": [
                    run("in full", bytes_full=100, bytes_plain=100, bytes_sent=100, calls=2),
                    {"mode": "deltas", "failed": True, "findings": []},
                    run("deltas", bytes_full=100, bytes_plain=20, bytes_sent=10, calls=2),
                ],
            }
        ],
        "findings": 0,
    }
    path = tmp_path / "conformance.json"
    path.write_text(json.dumps(document))

    costs = run_volume(None, path, lambda _: None)

    assert [(found.mode, found.bytes_plain, found.bytes_sent) for found in costs.conformance] == [
        ("in full", 100, 100),
        ("deltas", 20, 10),
    ]
    assert {(found.harness, found.dialect, found.scenario) for found in costs.conformance} == {
        ("pi", "chat", "long")
    }
    assert costs.tables()[0].rows[1] == ["pi, chat", "long", "deltas", "100", "5.0", "10.0"]


@pytest.mark.parametrize("text", ["", "[]", '{"variants": [{}]}', '{"variants": [{"runs": [{}]}]}'])
def test_what_is_no_conformance_document_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "conformance.json"
    path.write_text(text)
    with pytest.raises(BenchFailed, match=r"conformance\.json is no document"):
        run_volume(None, path, lambda _: None)


def test_a_folder_without_rollouts_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match="recorded rollouts cannot be read"):
        run_volume(tmp_path, None, lambda _: None)


def test_what_is_not_given_is_empty() -> None:
    costs = run_volume(None, None, lambda _: None)
    assert (costs.rollouts, costs.spreads, costs.conformance, costs.tables()) == ([], [], [], [])
