# SPDX-License-Identifier: Apache-2.0
"""The whole path is measured in each way that it has a name for. No test looks at a time."""

import dataclasses
import json
from pathlib import Path

import pytest

from rollout_router.bench.connection import BenchFailed, Connection
from rollout_router.bench.measure import Measured
from rollout_router.bench.path import PathCosts, PathTurns, run_path


@pytest.mark.long  # two gateways and four shims: 5 s of processor time
def test_each_link_client_and_kind_of_body_is_measured(folder: Path) -> None:
    said: list[str] = []

    costs = run_path(folder, sizes=[20_000], rounds=1, say=said.append)

    names = [
        f"{link} 20000 {client} {deltas}"
        for link in ("loopback", "slow")
        for deltas in ("off", "on")
        for client in ("kept", "new")
    ]
    assert [turns.latency.stage for turns in costs.turns] == names
    for turns in costs.turns:
        latency = turns.latency
        assert latency.reference == (latency.stage[:-2] + "off" if turns.deltas else None)
        assert turns.p10_ms <= latency.median_ms <= turns.p90_ms
    assert list(costs.measured()) == [f"path {name}" for name in names]
    assert costs.targets() == []  # no megabyte
    assert len(costs.tables()[0].rows) == len(names)
    assert json.loads(json.dumps(dataclasses.asdict(costs)))["turns"][0]["link"] == "loopback"
    assert len(said) == 3
    assert list(folder.iterdir()) == []


@pytest.mark.long  # it costs as much
def test_a_call_that_does_not_arrive_ends_the_benchmark_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Connection, path: str, *__: object) -> None:
        raise BenchFailed(f"POST {path} broke")

    monkeypatch.setattr(Connection, "post", refuse)
    with pytest.raises(BenchFailed, match="broke"):
        run_path(folder, sizes=[20_000], rounds=1, say=lambda _: None)
    assert list(folder.iterdir()) == []


def turns(*, history_bytes: int, ratio: float | None) -> PathTurns:
    latency = Measured(stage="s", median_ms=1, p99_ms=1, reference=None, ratio=ratio, spread=None)
    return PathTurns(
        link="slow",
        history_bytes=history_bytes,
        deltas=ratio is not None,
        client="kept",
        rounds=1,
        turns_per_s=1,
        p10_ms=1,
        p90_ms=1,
        latency=latency,
    )


@pytest.mark.parametrize(("ratio", "met"), [(0.125, True), (0.126, False)])
def test_a_megabyte_over_the_slow_link_has_a_target(*, ratio: float, met: bool) -> None:
    costs = PathCosts(
        turn_bytes=1,
        slow_bits_per_s=1,
        slow_round_trip_s=1,
        turns=[
            turns(history_bytes=1_000_000, ratio=None),
            turns(history_bytes=1_000_000, ratio=ratio),
            turns(history_bytes=100_000, ratio=1),
        ],
    )
    (target,) = costs.targets()
    assert (target.value, target.bound, target.met) == (1 / ratio, 8.0, met)
