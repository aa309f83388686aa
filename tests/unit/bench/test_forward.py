# SPDX-License-Identifier: Apache-2.0
"""The benchmark of forwarding measures what its ways are named after. No test looks at a time."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollout_router.bench import forward
from rollout_router.bench.forward import (
    CASES,
    QUICK_CASES,
    ROUNDS_MAX,
    UNTARGETED_ROUNDS_MAX,
    run_forward,
)
from rollout_router.bench.forward_costs import ALONE, FORWARDERS, WAYS, Case
from rollout_router.bench.load import Group, Load, Outcome
from rollout_router.bench.proxies import PROXIES, Proxy

STREAM = Case(body_bytes=100_000, answer="stream", in_flight=3)
MISSING = [f"{name} is not installed: nothing was measured with it" for name in PROXIES]


class Loading:
    """Instead of a load."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def run(self, load: Load) -> Outcome:
        self.asked.append(str(load.groups[0].paths[0]))
        return Outcome(requests=1, seconds=1.0, median_ms=1.0, p99_ms=1.0, cpu_s=[1.0])

    def close(self) -> None:
        self.asked.append("closed")


def test_every_round_measures_each_way_once_and_httpx_where_that_takes_no_seconds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one(way: str, case: Case) -> list[Group]:
        return [Group(address=["", 0], pid=None, connections=1, paths=[case.named(way)])]

    ways = {
        way: forward._Way(lambda case, way=way: one(way, case), [1])  # type: ignore[misc]
        for way in ("local", "httpx")
    }
    loading = Loading()
    monkeypatch.setattr(forward, "LoadProcess", lambda: loading)
    monkeypatch.setattr(forward._Processes, "ways", lambda *_: (ways, ["a note"]))
    costs = run_forward(folder, rounds=100, say=lambda _: None)
    many = [case for case in CASES if case.in_flight == 256]
    expected = [
        (case, way)
        for case in CASES
        for way in ways
        if way == "local" or case == many[0] or case not in many
    ]
    assert [(one.case, one.way) for one in costs.results] == expected
    assert costs.notes == ["a note"]
    for found in costs.results:
        most = ROUNDS_MAX if found.case in QUICK_CASES else UNTARGETED_ROUNDS_MAX
        assert found.rounds == most
    *asked, last = loading.asked
    names, size = sorted(case.named(way) for case, way in expected), len(expected)
    orders = [asked[size * number : size * (number + 1)] for number in range(UNTARGETED_ROUNDS_MAX)]
    assert [sorted(order) for order in orders] == [names] * UNTARGETED_ROUNDS_MAX
    assert len({*map(tuple, orders)}) == UNTARGETED_ROUNDS_MAX
    assert last == "closed"


def test_connections_are_spread_evenly() -> None:
    def spread(in_flight: int) -> list[int]:
        case = replace(ALONE, in_flight=in_flight)
        return [
            group.connections for group in forward._spread(case, [["a", 1], ["b", 2]], ["/path"])
        ]

    assert [spread(in_flight) for in_flight in (1, 2, 5)] == [[1], [1, 1], [3, 2]]


@pytest.mark.long  # eight processes: 6 s of processor time
def test_every_way_is_measured_in_every_case(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LOAD_S", 0.01)
    said: list[str] = []
    costs = run_forward(folder, rounds=1, say=said.append, cases=[*QUICK_CASES, STREAM])
    missing = {name for name in PROXIES if Proxy.program(name) is None}
    assert set(costs.notes) >= {note for note in MISSING if note.split()[0] in missing}
    ways = [name for name in WAYS if name not in missing]
    assert [(one.case, one.way) for one in costs.results] == [
        (case, way) for case in (*QUICK_CASES, STREAM) for way in ways
    ]
    for one in costs.results:
        assert one.requests >= one.case.in_flight
        assert 0 < one.latency.median_ms <= one.p99_ms
        assert one.cpu.median_ms > 0
        assert (one.forwarder_cpu_ms is not None) == (one.way in FORWARDERS)
    assert len(costs.targets()) >= 2
    assert [len(table.rows) > 0 for table in costs.tables()] == [True] * 3
    assert len(said) == 2
    assert list(folder.iterdir()) == []


@pytest.mark.long  # three processes
def test_what_is_not_installed_is_left_out_and_a_note_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "LOAD_S", 0.01)
    monkeypatch.setattr(Proxy, "program", lambda _: None)
    costs = run_forward(
        folder, rounds=1, say=lambda _: None, cases=[ALONE], ways=["straight", *PROXIES]
    )
    assert [one.way for one in costs.results] == ["straight"]
    assert costs.targets() == []
    assert costs.notes == MISSING
