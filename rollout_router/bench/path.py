# SPDX-License-Identifier: Apache-2.0
"""The whole path of a turn, as a harness sees it: shim, link, gateway, with deltas and without.

The client is a harness's: it posts the whole conversation to the shim on loopback, and waits for
the answer. Between shim and gateway is plain loopback, or the slow link (``slow_link``). Without
deltas the gateway has them off and routes all the same (``--no-history-delta --route-always``);
the shim is the same, and learns that nothing is kept. The application answers at once, so that no
model is measured. One call at a time: turns a second are one harness's, not what a gateway can do.

A client keeps its connection to the shim, or opens a new one for each call; the shim keeps its own
to the gateway in either case. The first body of a conversation is not timed. All ways over one link
at one size take turns in each round. Afterwards each shim tells how it sent each call: if one went
otherwise, there are no results.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from rollout_router.bench.bodies import Conversation
from rollout_router.bench.connection import BenchFailed, Connection
from rollout_router.bench.figures import Part, Target, at_least
from rollout_router.bench.lineage import CONTENT_TYPE, Lineage
from rollout_router.bench.measure import (
    Measured,
    Stage,
    Taken,
    percentile,
    summary,
    take_rounds,
)
from rollout_router.bench.slow_link import SLOW, slow_url
from rollout_router.bench.workers import started
from rollout_router.processes import Shim
from rollout_router.tables import Table
from rollout_router.timings import by_rollout
from rollout_router.transport.sandbox.client import Sent

__all__ = ["PathCosts", "PathTurns", "run_path"]

LinkName = Literal["loopback", "slow"]
Client = Literal["kept", "new"]

_OFF: Final = ("--no-history-delta", "--route-always")
_WARM_UPS: Final = 1
_SLOW_ROUNDS_MAX: Final = 9
"""A megabyte in full takes 0.8 s over the slow link, and two clients send one in each round."""

_TURN_BYTES: Final = 5_000
_MEGABYTE: Final = 1_000_000
_FASTER_MIN: Final = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTurns:
    """The turns of one client over one link, at one size."""

    link: LinkName
    history_bytes: int
    deltas: bool
    client: Client  # its connection to the shim is kept, or new for each call
    rounds: int
    turns_per_s: float
    p10_ms: float
    p90_ms: float
    latency: Measured  # beside the same without deltas


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCosts(Part):
    """Every link, size and client, with deltas and without."""

    turn_bytes: int  # that a turn adds to the conversation
    slow_bits_per_s: float
    slow_round_trip_s: float
    turns: list[PathTurns]

    def tables(self) -> list[Table]:
        """One table."""
        columns = ["link", "history", "connection", "deltas", "rounds", "turns/s"]
        columns += ["median ms", "p10 ms", "p90 ms", "times faster"]
        return [
            Table(
                title="The whole path: a turn from the harness and back",
                columns=columns,
                rows=[_row(turns) for turns in self.turns],
            )
        ]

    def targets(self) -> list[Target]:
        """Over the slow link, where a megabyte was among the sizes."""
        return [
            at_least(
                f"slow link, 1 MB, {turns.client} connection: times faster with deltas",
                1 / turns.latency.ratio,
                _FASTER_MIN,
            )
            for turns in self.turns
            if turns.link == "slow" and turns.history_bytes == _MEGABYTE and turns.latency.ratio
        ]

    def measured(self) -> dict[str, Measured]:
        """The latencies."""
        return {f"path {turns.latency.stage}": turns.latency for turns in self.turns}


def run_path(
    work_dir: Path, *, sizes: Sequence[int], rounds: int, say: Callable[[str], None]
) -> PathCosts:
    """Measure turns over both links at every size.

    Args:
        work_dir: a directory for stores and sockets is made there, and removed again. Its path is
            short.
        sizes: bytes of history.
        rounds: turns of each kind over plain loopback; at most 9 over the slow link.
        say: takes one line for people.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    with tempfile.TemporaryDirectory(prefix="rr-", dir=work_dir) as made, ExitStack() as stack:
        ways = list(_ways(Path(made), stack, say))
        turns: list[PathTurns] = []
        for link in get_args(LinkName):
            many = rounds if link == "loopback" else min(rounds, _SLOW_ROUNDS_MAX)
            over = [way for way in ways if way.link == link]
            for size in sizes:
                say(f"measuring the whole path over {link}: {many} rounds, {size:,} bytes")
                turns += _measure(over, size, many)
            for way in over:
                way.check(many)
    return PathCosts(
        turn_bytes=_TURN_BYTES,
        slow_bits_per_s=SLOW.bits_per_s,
        slow_round_trip_s=SLOW.round_trip_s,
        turns=turns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A shim, before one gateway, over one link."""

    link: LinkName
    deltas: bool
    shim: Shim
    timings: Path  # of the shim

    def stages(self, size: int, stack: ExitStack) -> Iterator[tuple[Client, Stage]]:
        """A turn of each client; the first call of its rollout is made here."""
        conversation = Conversation(size, turn_bytes=_TURN_BYTES)
        for client in get_args(Client):
            post = self._kept(stack) if client == "kept" else self._new
            lineage, path = Lineage(conversation), f"/sessions/{_rollout(self.link, size, client)}/"
            post(path, lineage.first)
            yield (
                client,
                Stage(
                    name=_name(self.link, size, client, deltas=self.deltas),
                    reference=_name(self.link, size, client, deltas=False) if self.deltas else None,
                    prepare=_turn(post, path, lineage),
                ),
            )

    def check(self, rounds: int) -> None:
        """Stop the shim: it sent what the stages are named after, call by call."""
        self.shim.service.stop()
        then = Sent.FRAME if self.deltas else Sent.FULL
        expected = [then.value] * (_WARM_UPS + rounds)
        lines = self.timings.read_text().splitlines()
        for rollout_id, (_, *calls) in by_rollout(lines).items():
            if (sent := [call["sent"] for call in calls]) != expected:
                raise BenchFailed(f"{rollout_id}: the shim sent {sent}, not {expected}")

    def _kept(self, stack: ExitStack) -> "_Post":
        connection = Connection(self.shim.url)
        stack.callback(connection.close)
        return lambda path, body: _post(connection, path, body)

    def _new(self, path: str, body: bytes) -> None:
        connection = Connection(self.shim.url)
        try:
            _post(connection, path, body)
        finally:
            connection.close()


_Post = Callable[[str, bytes], None]


def _post(connection: Connection, path: str, body: bytes) -> None:
    connection.post(f"{path}v1/chat/completions", body, {"Content-Type": CONTENT_TYPE})


def _turn(post: _Post, path: str, lineage: Lineage) -> Callable[[], Callable[[], None]]:
    def prepare() -> Callable[[], None]:
        body = lineage.step().body
        return lambda: post(path, body)

    return prepare


def _ways(folder: Path, stack: ExitStack, say: Callable[[str], None]) -> Iterator[_Way]:
    say("starting two gateways of two workers, a slow link to each, and four shims")
    for deltas in (False, True):
        name = "on" if deltas else "off"
        gateway = started(stack, folder / name, *(() if deltas else _OFF))
        for link in get_args(LinkName):
            url = gateway.url if link == "loopback" else slow_url(gateway.url, folder, stack)
            timings = folder / f"{link}-{name}.jsonl"
            shim = Shim(folder, url, "--timings-file", str(timings), name=f"{link}-{name}")
            stack.callback(shim.service.stop)
            yield _Way(link=link, deltas=deltas, shim=shim, timings=timings)


def _measure(ways: Sequence[_Way], size: int, rounds: int) -> list[PathTurns]:
    with ExitStack() as stack:
        found = [(way, *found) for way in ways for found in way.stages(size, stack)]
        stages = [stage for _, _, stage in found]
        taken = take_rounds(stages, rounds=rounds, warm_ups=_WARM_UPS, clock_s=time.perf_counter)
    latencies = summary(stages, taken)
    return [
        _turns(way, size, client, taken=taken, latency=latency)
        for (way, client, _), latency in zip(found, latencies, strict=True)
    ]


def _turns(way: _Way, size: int, client: Client, *, taken: Taken, latency: Measured) -> PathTurns:
    taken_s = taken[latency.stage]
    return PathTurns(
        link=way.link,
        history_bytes=size,
        deltas=way.deltas,
        client=client,
        rounds=len(taken_s),
        turns_per_s=len(taken_s) / sum(taken_s),
        p10_ms=1000 * percentile(taken_s, 10),
        p90_ms=1000 * percentile(taken_s, 90),
        latency=latency,
    )


def _row(turns: PathTurns) -> list[str]:
    faster = "" if turns.latency.ratio is None else f"{1 / turns.latency.ratio:.3g}"
    times = (turns.latency.median_ms, turns.p10_ms, turns.p90_ms)
    return [
        *(turns.link, f"{turns.history_bytes:,}", turns.client, "on" if turns.deltas else "off"),
        *(str(turns.rounds), f"{turns.turns_per_s:.3g}", *(f"{each:.1f}" for each in times)),
        faster,
    ]


def _name(link: LinkName, size: int, client: Client, *, deltas: bool) -> str:
    return f"{link} {size} {client} {'on' if deltas else 'off'}"


def _rollout(link: LinkName, size: int, client: Client) -> str:
    return f"path-{link}-{size}-{client}"
