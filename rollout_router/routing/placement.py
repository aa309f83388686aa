# SPDX-License-Identifier: Apache-2.0
"""Which worker gets a new rollout: the one with the fewest in hand. Pure.

A hint and no law: whoever is chosen takes the claim itself or does not, and a rollout that could
not be placed is taken where it arrived. Only the spread depends on what is decided here.

A worker's load counts a call once it runs there. Until then whoever placed it counts it, and counts
it once for each worker: the others see the same loads and may be doing the same. So many workers
that place a burst at one time fill a gap together, instead of each of them filling it alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LOAD_BYTES", "Load", "decode", "encode", "place"]

LOAD_BYTES: Final = 128
"""A load as a line of this many bytes, blanks at its end, so that it is rewritten in one piece."""

_VERSION: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a worker says it has in hand."""

    calls: int  # that run under its claims
    rollouts: int  # that it owns, idle ones too
    at: float  # when it said so, in seconds of the host's monotonic clock


def place(
    loads: Mapping[str, Load],
    coming: Mapping[str, int],
    draw: Callable[[Sequence[str]], str],
) -> str:
    """The worker for one new rollout: fewest calls, then fewest rollouts, then any of those.

    Args:
        loads: of each worker that takes new rollouts; not empty.
        coming: how many were placed by the caller and are in no load yet, by worker.
        draw: chooses one of several that have the same in hand.
    """

    def in_hand(worker: str) -> tuple[int, int]:
        more = coming.get(worker, 0) * len(loads)
        return loads[worker].calls + more, loads[worker].rollouts + more

    fewest = min(map(in_hand, loads))
    return draw([worker for worker in loads if in_hand(worker) == fewest])


def encode(load: Load, *, store_id: str) -> bytes:
    """The line that a worker of the store *store_id* writes."""
    line = f"{_VERSION} {store_id} {load.calls} {load.rollouts} {load.at:.6f}"
    return line.encode().ljust(LOAD_BYTES - 1) + b"\n"


def decode(line: bytes, *, store_id: str) -> Load | None:
    """The inverse of :func:`encode`; None for what another version or store wrote, or nobody."""
    try:
        version, store, calls, rollouts, at = line.decode().split()
        load = Load(calls=int(calls), rollouts=int(rollouts), at=float(at))
    except ValueError:
        return None
    return load if (version, store) == (_VERSION, store_id) else None
