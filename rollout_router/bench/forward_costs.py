# SPDX-License-Identifier: Apache-2.0
"""What forwarding costs, by what the load measured: ratios, added latency, targets. Pure.

Of the times of one way in one case there are as many as rounds, and each ratio has the spread of
the rounds beside it. Added latency is a difference of medians, because the differences of single
rounds are small, and noisy.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rollout_router.bench.figures import Part, Target, at_least, at_most
from rollout_router.bench.load import Outcome
from rollout_router.bench.measure import Measured, measured, percentile
from rollout_router.tables import Table

__all__ = [
    "ALONE",
    "BUSY",
    "FORWARDERS",
    "REFERENCES",
    "WAYS",
    "Added",
    "Case",
    "ForwardCosts",
    "Forwarded",
    "Outcomes",
    "forward_costs",
]

WAYS: Final = {
    "local": "connections to both workers, each asks for rollouts that its worker owns",
    "hop": "the same, each asks for rollouts of the other worker: every request is forwarded",
    "mix": "the same, in turn: half of the requests are forwarded",
    "one_way": "connections to one worker, rollouts of the other: one forwards, one serves",
    "httpx": "as one_way, but the forwarder is another worker, whose hop client is httpx",
    "httpx_kept": "the same, with a pool that keeps every connection instead of its default one",
    "straight": "connections to two plain uvicorn workers with the same application",
    "nginx": "connections to nginx, before the sockets of those two",
    "haproxy": "connections to HAProxy, before the sockets of those two",
}
REFERENCES: Final = {
    **dict.fromkeys(("hop", "mix", "one_way", "httpx", "httpx_kept"), "local"),
    **dict.fromkeys(("nginx", "haproxy"), "straight"),
}
"""The way without a hop that each is compared with."""

FORWARDERS: Final = frozenset({"one_way", "httpx", "httpx_kept", "nginx", "haproxy"})
"""One process forwards everything, and it is the first whose processor time is taken."""

_OURS: Final = ("hop", "mix", "one_way")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is asked for, and how often at a time."""

    body_bytes: int
    answer: Literal["json", "stream"]
    in_flight: int

    def named(self, way: str) -> str:
        """The case in one *way*, the same in every run."""
        return f"{self.body_bytes // 1000}kb {self.answer} {self.in_flight} {way}"


ALONE: Final = Case(body_bytes=5_000, answer="json", in_flight=1)
BUSY: Final = Case(body_bytes=5_000, answer="json", in_flight=64)

Outcomes = Mapping[tuple[Case, str], Sequence[Outcome]]
"""What came of each case in each way, round by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What a way adds to the latency of its reference; half of the rounds lie between."""

    median_ms: float  # of the medians
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """The results of one case, one way."""

    case: Case
    way: str
    rounds: int
    requests: int  # in all of them
    time: Measured  # of a round, divided by its requests
    latency: Measured  # each round's median
    p99_ms: float  # each round's, their median
    cpu: Measured  # processor time of a request, in all processes that it went through
    forwarder_cpu_ms: float | None  # None: there is none, or each worker is one
    added: Added | None  # None: it has no reference


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCosts(Part):
    """The results; a target is missing where its case or its other side was not measured."""

    results: list[Forwarded]

    def tables(self) -> list[Table]:
        """What is added to one request alone, and a table of each kind of request."""
        kinds = dict.fromkeys((one.case.body_bytes, one.case.answer) for one in self.results)
        alone = [one for one in self.results if one.case.in_flight == 1]
        columns = [
            "in flight",
            "rounds",
            "way",
            "requests/s",
            "share",
            "half of all rounds",
            "median ms",
        ]
        columns += ["p99 ms", "CPU µs", "times", "half of all rounds", "forwarder's µs", "to"]
        return [
            Table(
                title="What forwarding adds to the latency of one request alone",
                columns=[
                    "body",
                    "answer",
                    "way",
                    "added ms",
                    "half of all rounds",
                    "to",
                    "nginx's",
                ],
                rows=[self._added(one, one.added) for one in alone if one.added is not None],
            ),
            *(
                Table(
                    title=f"Forwarding {size:,} bytes, answered by {answer}",
                    columns=columns,
                    rows=[
                        _row(one)
                        for one in self.results
                        if (one.case.body_bytes, one.case.answer) == (size, answer)
                    ],
                )
                for size, answer in kinds
            ),
        ]

    def targets(self) -> list[Target]:
        """Of bodies of 5 KB and small answers; by the medians of all rounds."""
        found = []
        for name, way, other, bound in (
            ("every request over a hop: throughput, of local", "hop", "local", 0.3),
            ("through one forwarder: throughput, of httpx", "one_way", "httpx", 15.0),
        ):
            one, two = self._of(BUSY, way), self._of(BUSY, other)
            if one is not None and two is not None:
                value = two.time.median_ms / one.time.median_ms
                found.append(at_least(f"5 KB, 64 in flight, {name}", value, bound))
        hop = self._of(ALONE, "hop")
        if hop is not None and (times := self._of_nginx(ALONE, hop.added)) is not None:
            found.append(at_most("5 KB, alone: latency that a hop adds, of nginx's", times, 2.0))
        return found

    def measured(self) -> dict[str, Measured]:
        """Our own ways: that httpx or nginx took longer is no fault of ours."""
        return {
            f"forward {what} {stage.stage}": stage
            for one in self.results
            if one.way in _OURS
            for what, stage in (("time", one.time), ("cpu", one.cpu))
        }

    def _of(self, case: Case, way: str) -> Forwarded | None:
        return next((one for one in self.results if (one.case, one.way) == (case, way)), None)

    def _of_nginx(self, case: Case, added: Added | None) -> float | None:
        """How often it is what nginx adds; None: that was not measured, or nothing."""
        nginx = self._of(case, "nginx")
        if added is None or nginx is None or nginx.added is None or nginx.added.median_ms <= 0:
            return None
        return added.median_ms / nginx.added.median_ms

    def _added(self, one: Forwarded, added: Added) -> list[str]:
        times = self._of_nginx(one.case, added)
        return [
            *(f"{one.case.body_bytes:,}", one.case.answer, one.way, f"{added.median_ms:.3f}"),
            f"{added.low_ms:.3f} to {added.high_ms:.3f}",
            REFERENCES[one.way],
            "" if times is None else f"{times:.3g}",
        ]


def forward_costs(outcomes: Outcomes, *, notes: Iterable[str] = ()) -> ForwardCosts:
    """What the *outcomes* come to; all ways of a case have the same rounds, in the same order.

    Args:
        outcomes: of at least one round.
        notes: which way was left out, and why.
    """
    results = [_result(case, way, outcomes) for case, way in outcomes]
    said = [*notes]
    said += [
        "nginx added nothing that could be measured to one request alone: it is no reference"
        for one in results
        if (one.case, one.way) == (ALONE, "nginx") and one.added and one.added.median_ms <= 0
    ]
    return ForwardCosts(results=results, notes=said)


def _result(case: Case, way: str, outcomes: Outcomes) -> Forwarded:
    reference = REFERENCES.get(way)
    if (case, reference) not in outcomes:
        reference = None
    mine = outcomes[case, way]

    def over_rounds(figure_s: Callable[[Outcome], float]) -> Measured:
        taken = {
            case.named(name): [figure_s(one) for one in outcomes[case, name]]
            for name in (way, reference)
            if name is not None
        }
        return measured(
            case.named(way), taken, reference=None if reference is None else case.named(reference)
        )

    return Forwarded(
        case=case,
        way=way,
        rounds=len(mine),
        requests=sum(one.requests for one in mine),
        time=over_rounds(lambda one: one.seconds / one.requests),
        latency=over_rounds(lambda one: one.median_ms / 1000),
        p99_ms=statistics.median(one.p99_ms for one in mine),
        cpu=over_rounds(lambda one: sum(one.cpu_s) / one.requests),
        forwarder_cpu_ms=statistics.median(1000 * one.cpu_s[0] / one.requests for one in mine)
        if way in FORWARDERS
        else None,
        added=None if reference is None else _added(mine, outcomes[case, reference]),
    )


def _added(mine: Sequence[Outcome], its: Sequence[Outcome]) -> Added:
    differences = [one.median_ms - two.median_ms for one, two in zip(mine, its, strict=True)]
    mine_ms, its_ms = (statistics.median(one.median_ms for one in all_) for all_ in (mine, its))
    return Added(
        median_ms=mine_ms - its_ms,
        low_ms=percentile(differences, 25),
        high_ms=percentile(differences, 75),
    )


def _row(one: Forwarded) -> list[str]:
    share, shares, times, spread = "", "", "", ""
    if one.time.ratio is not None and one.time.spread is not None:
        share = f"{1 / one.time.ratio:.3g}"
        shares = f"{1 / one.time.spread[1]:.3g} to {1 / one.time.spread[0]:.3g}"
    if one.cpu.ratio is not None and one.cpu.spread is not None:
        times = f"{one.cpu.ratio:.3g}"
        spread = f"{one.cpu.spread[0]:.3g} to {one.cpu.spread[1]:.3g}"
    return [
        *(str(one.case.in_flight), str(one.rounds), one.way),
        *(f"{1000 / one.time.median_ms:,.0f}", share, shares),
        *(f"{one.latency.median_ms:.3f}", f"{one.p99_ms:.3f}"),
        *(f"{1000 * one.cpu.median_ms:.0f}", times, spread),
        "" if one.forwarder_cpu_ms is None else f"{1000 * one.forwarder_cpu_ms:.0f}",
        REFERENCES.get(one.way, ""),
    ]
