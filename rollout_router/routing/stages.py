# SPDX-License-Identifier: Apache-2.0
"""What the stages of one call took: counted, and told to its client where that is switched on.

Each reading of the clock ends one stage, so the stages add up to the time from the first look at
the call until the head of its answer. An owner tells its forwarder under a name that no application
can answer under (R5); the forwarder says the two in one line.

Source of the form: W3C Server Timing, section "The Server-Timing Header Field".
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

__all__ = ["SERVER_TIMING", "Stage", "Stages", "line_of", "merged", "spent_in"]

SERVER_TIMING: Final = b"server-timing"

Stage = Literal["claim", "admission", "read", "rebuild", "hop", "app"]
_ORDER: Final[tuple[str, ...]] = get_args(Stage)
_ENTRY: Final = re.compile(r"(\w+);dur=(\d+\.\d{3})", re.ASCII)


class Stages:
    """The stages of one call at one worker. It begins now.

    Args:
        name: the header that tells them.
        clock: monotonic seconds.
    """

    def __init__(self, name: bytes, clock: Callable[[], float] = time.perf_counter) -> None:
        self._name = name
        self._clock = clock
        self._seen_s = clock()
        self._spent_ms: dict[str, float] = {}
        self._told_ms: dict[str, float] = {}  # by the owner

    def end(self, stage: Stage) -> None:
        """What passed since the last stage ended was this one; it may come again."""
        now_s = self._clock()
        spent_ms = 1000 * (now_s - self._seen_s)
        self._spent_ms[stage] = self._spent_ms.get(stage, 0.0) + spent_ms
        self._seen_s = now_s

    def end_hop(self, told: bytes) -> None:
        """End the hop with what its owner *told* of itself, which is no part of it."""
        self.end("hop")
        self._told_ms = spent_in(told)

    @property
    def spent_ms(self) -> Mapping[str, float]:
        """All stages at this worker so far."""
        return self._spent_ms

    def header(self) -> tuple[bytes, bytes]:
        """The header that tells them, with those of the owner."""
        both = merged(self._spent_ms, self._told_ms) if self._told_ms else self._spent_ms
        return (self._name, line_of(both))


def line_of(spent_ms: Mapping[str, float]) -> bytes:
    """The value of the header: milliseconds, in the order in which a call meets the stages."""
    known = [stage for stage in _ORDER if stage in spent_ms]
    return ", ".join(f"{stage};dur={spent_ms[stage]:.3f}" for stage in known).encode()


def spent_in(line: bytes) -> dict[str, float]:
    """Milliseconds by stage; what is no stage of ours or has another form is left out."""
    found = _ENTRY.findall(line.decode("latin-1"))
    return {stage: float(spent_ms) for stage, spent_ms in found if stage in _ORDER}


def merged(forwarder: Mapping[str, float], owner: Mapping[str, float]) -> dict[str, float]:
    """The stages of two workers as those of one call: the hop is what the owner did not spend."""
    hop_ms = max(0.0, forwarder["hop"] - sum(owner.values()))  # rounding may make it less
    stages = {*forwarder, *owner}
    both = {stage: forwarder.get(stage, 0.0) + owner.get(stage, 0.0) for stage in stages}
    return both | {"hop": hop_ms}
