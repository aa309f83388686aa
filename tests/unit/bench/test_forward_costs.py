# SPDX-License-Identifier: Apache-2.0
"""What loads come to: ratios to the way without a hop, what is added, targets. No clock."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from rollout_router.bench.forward_costs import (
    ALONE,
    BUSY,
    FORWARDERS,
    REFERENCES,
    WAYS,
    Case,
    ForwardCosts,
    forward_costs,
)
from rollout_router.bench.load import Outcome

TAKEN = Outcome(requests=10, seconds=1.0, median_ms=1.0, p99_ms=2.0, cpu_s=[0.1, 0.2])
HOP_TO_LOCAL = "5 KB, 64 in flight, every request over a hop: throughput, of local"
ONE_WAY_TO_HTTPX = "5 KB, 64 in flight, through one forwarder: throughput, of httpx"
ADDED_TO_NGINX = "5 KB, alone: latency that a hop adds, of nginx's"


def of(*rows: tuple[Case, str, Sequence[Outcome]]) -> ForwardCosts:
    return forward_costs({(case, way): outcomes for case, way, outcomes in rows}, notes=["said"])


def alone(**latencies_ms: Sequence[float]) -> ForwardCosts:
    """Rounds of one request alone, by their latencies."""
    return of(
        *(
            (ALONE, way, [replace(TAKEN, median_ms=each_ms) for each_ms in each_way_ms])
            for way, each_way_ms in latencies_ms.items()
        )
    )


def test_each_way_stands_beside_the_one_without_a_hop() -> None:
    rounds = [replace(TAKEN, requests=count) for count in (5, 20, 10)]
    spent = [replace(TAKEN, cpu_s=[0.3, 0.3])] * 3
    costs = of((BUSY, "local", rounds), (BUSY, "hop", spent), (BUSY, "one_way", spent))
    local, hop, one_way = costs.results
    assert (local.requests, local.time.median_ms, local.time.ratio) == (35, 100, None)
    assert (hop.time.ratio, hop.time.spread) == (1, (0.5, 2))
    assert (hop.time.stage, hop.time.reference) == ("5kb json 64 hop", "5kb json 64 local")
    assert (hop.cpu.median_ms, hop.cpu.ratio) == pytest.approx((60, 2))
    assert (hop.latency.median_ms, hop.p99_ms) == (1, 2)
    assert [one.forwarder_cpu_ms for one in costs.results] == [None, None, pytest.approx(30)]
    assert one_way.added is not None
    assert (local.rounds, costs.notes, local.added) == (3, ["said"], None)
    assert json.loads(json.dumps(asdict(costs)))["results"][1]["case"]["in_flight"] == 64


def test_every_way_has_a_reference_but_those_without_a_hop() -> None:
    assert WAYS.keys() - REFERENCES.keys() == {"local", "straight"} == set(REFERENCES.values())
    assert WAYS.keys() > FORWARDERS


def test_the_guard_compares_our_ways_alone() -> None:
    costs = of(*((BUSY, way, [TAKEN]) for way in WAYS))
    assert set(costs.measured()) == {
        f"forward {what} 5kb json 64 {way}"
        for what in ("time", "cpu")
        for way in ("hop", "mix", "one_way")
    }


def shown(costs: ForwardCosts) -> list[tuple[str, str, float, float, bool]]:
    return [
        (target.name, target.kind, round(target.value, 6), target.bound, target.met)
        for target in costs.targets()
    ]


@pytest.mark.parametrize(("requests", "met"), [(31, True), (29, False)])
def test_targets_of_throughput_are_of_medians(requests: int, *, met: bool) -> None:
    def rounds(requests: int) -> list[Outcome]:
        return [replace(TAKEN, requests=count) for count in (1, requests, 10_000)]

    costs = of(
        (BUSY, "local", rounds(100)),
        (BUSY, "hop", rounds(requests)),
        (BUSY, "one_way", rounds(requests)),
        (BUSY, "httpx", rounds(2)),
        (BUSY, "httpx_kept", rounds(100)),  # not the one that is meant
    )
    assert shown(costs) == [
        (HOP_TO_LOCAL, "at least", requests / 100, 0.3, met),
        (ONE_WAY_TO_HTTPX, "at least", requests / 2, 15, met),
    ]


@pytest.mark.parametrize(("hop_ms", "met"), [(1.4, True), (1.6, False)])
def test_added_latency_is_a_difference_of_medians(hop_ms: float, *, met: bool) -> None:
    costs = alone(
        local=(1.0, 1.0, 9.0),
        hop=(hop_ms, 0.1, 9.9),
        straight=(0.5, 0.5, 0.5),
        nginx=(0.75, 0.5, 1.75),
    )
    times = round(4 * (hop_ms - 1), 6)
    assert shown(costs) == [(ADDED_TO_NGINX, "at most", times, 2, met)]
    hop, nginx = costs.tables()[0].rows
    assert hop[2:] == ["hop", f"{hop_ms - 1:.3f}", "-0.900 to 0.900", "local", f"{times:.3g}"]
    assert nginx[2:] == ["nginx", "0.250", "0.000 to 1.250", "straight", "1"]


def test_a_target_whose_other_side_was_not_measured_is_missing() -> None:
    costs = of((BUSY, "hop", [TAKEN]), (BUSY, "one_way", [TAKEN]), (ALONE, "hop", [TAKEN]))
    assert costs.targets() == []
    assert alone(local=[1], hop=[2], nginx=[2]).targets() == []  # nothing beside nginx
    assert [one.time.ratio for one in costs.results] == [None] * 3
    assert [len(table.rows) for table in costs.tables()] == [0, 3]


def test_where_nginx_adds_nothing_there_is_no_target_and_a_note_says_so() -> None:
    costs = alone(local=[1], hop=[2], straight=[1], nginx=[1])
    assert costs.targets() == []
    assert costs.notes[0] == "said"
    assert "nginx added nothing" in costs.notes[1]


def test_people_read_rates_shares_and_processor_time() -> None:
    large = replace(BUSY, body_bytes=500_000, answer="stream")
    twice = replace(TAKEN, requests=2_000, cpu_s=[0.1, 0.7])
    costs = of(
        (BUSY, "straight", [replace(TAKEN, requests=4_000)] * 2),
        (BUSY, "nginx", [twice, replace(twice, requests=1_000)]),
        (large, "local", [TAKEN]),
    )
    _, small, streams = costs.tables()
    assert small.title == "Forwarding 5,000 bytes, answered by json"
    straight, nginx = small.rows
    assert straight == [
        "64",
        "2",
        *("straight", "4,000", "", ""),
        "1.000",
        "2.000",
        "75",
        "",
        "",
        "",
        "",
    ]
    assert nginx == [
        *("64", "2", "nginx", "1,333", "0.333", "0.25 to 0.5", "1.000", "2.000"),
        *("600", "8", "5.33 to 10.7", "75", "straight"),
    ]
    assert [row[2] for row in streams.rows] == ["local"]
