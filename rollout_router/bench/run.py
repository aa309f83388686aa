# SPDX-License-Identifier: Apache-2.0
"""The whole benchmark: starts two gateways and a shim, measures size by size, stops them."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollout_router.bench.bodies import TURNS, Conversation
from rollout_router.bench.calls import Connections, call_stages, shim_rollout
from rollout_router.bench.connection import BenchFailed, Connection, to_two_workers
from rollout_router.bench.lineage import Lineage
from rollout_router.bench.measure import Measured, run_rounds
from rollout_router.bench.rooms import claim_stages, history_stages
from rollout_router.claims import FileClaimStore, LifeLock, new_nonce
from rollout_router.processes import Gateway, Shim

__all__ = ["APP", "WARM_UPS", "Sized", "run_bench"]

APP: Final = "rollout_router.bench.app:app"
WARM_UPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """The results at one size; bytes are of the body and the frame of a turn in the middle."""

    history_bytes: int
    body_bytes: int
    frame_bytes: int
    stages: list[Measured]


def run_bench(
    folder: Path, *, sizes: Sequence[int], rounds: int, say: Callable[[str], None]
) -> list[Sized]:
    """Measure every stage at every size.

    Args:
        folder: for stores, records and sockets; exists and is empty. Its disk is measured.
        sizes: bytes of history.
        rounds: measurements of each stage, at each size.
        say: takes one line for people.

    Raises:
        BenchFailed, ServiceFailed: nothing keeps running, and nothing was measured wrongly.
    """
    shim_names = [shim_rollout(_name(size)) for size in sizes]
    with ExitStack() as stack:
        say("starting two gateways of two workers, and a shim")
        routed = stack.enter_context(_gateway(folder / "on"))
        unrouted = stack.enter_context(_gateway(folder / "off", "--no-history-delta"))
        shim = Shim(folder, routed.url)
        stack.callback(_check_frames, shim, shim_names)
        stack.callback(shim.service.stop)
        store = FileClaimStore.open(folder / "claims", service="bench")
        life = LifeLock.acquire(store, nonce=new_nonce(), socket=str(folder / "none.sock"))
        stack.enter_context(closing(life))
        results = []
        for size in sizes:
            say(f"measuring {rounds} rounds at {size:,} bytes of history")
            with ExitStack() as connections:
                owner, other = to_two_workers(routed.url)
                ways = Connections(
                    owner=owner,
                    other=other,
                    shim=Connection(shim.url),
                    unrouted=Connection(unrouted.url),
                )
                for connection in (ways.owner, ways.other, ways.shim, ways.unrouted):
                    connections.callback(connection.close)
                conversation = Conversation(size)
                stages = [
                    *history_stages(conversation, folder / "records"),
                    *claim_stages(store, life),
                    *call_stages(ways, conversation, _name(size)),
                ]
                measured = run_rounds(
                    stages, rounds=rounds, warm_ups=WARM_UPS, clock_s=time.perf_counter
                )
            results.append(_sized(size, conversation, measured))
        return results


def _sized(size: int, conversation: Conversation, measured: list[Measured]) -> Sized:
    lineage = Lineage(conversation)
    step = [lineage.step() for _ in range(TURNS // 2)][-1]
    return Sized(
        history_bytes=size,
        body_bytes=len(step.body),
        frame_bytes=len(step.frame()),
        stages=measured,
    )


@contextmanager
def _gateway(folder: Path, *arguments: str) -> Iterator[Gateway]:
    folder.mkdir()
    gateway = Gateway(folder, "--app", APP, *arguments)
    try:
        yield gateway
    finally:
        gateway.service.stop()


def _check_frames(shim: Shim, rollouts: Sequence[str]) -> None:
    """After the shim has stopped: it sent frames, and none was refused."""
    for rollout_id in rollouts:
        sent = shim.statistics(rollout_id)
        if sent and (sent["resyncs"] or sent["bytes_sent"] >= sent["bytes_full"]):
            raise BenchFailed(f"the shim did not send frames for {rollout_id}: {sent}")


def _name(size: int) -> str:
    return f"bench-{size}"
