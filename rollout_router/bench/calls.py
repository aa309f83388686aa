# SPDX-License-Identifier: Apache-2.0
"""The stages that are whole calls: at the owner, over the hop, through the shim, without routing.

Every answer is checked: a call that was resynced, not kept or answered by another worker ends the
benchmark instead of being counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rollout_router.bench.bodies import Conversation
from rollout_router.bench.connection import Answer, BenchFailed, Connection
from rollout_router.bench.lineage import CONTENT_TYPE, Lineage
from rollout_router.bench.measure import Stage
from rollout_router.bench.rooms import JSON_REFERENCE
from rollout_router.transport.sandbox.wire import CONTENT_TYPE as FRAME_TYPE
from rollout_router.transport.sandbox.wire import HISTORY_HEADER, KEEP, KEPT

__all__ = ["Ways", "call_stages", "cpu_stages", "shim_rollout"]

_Timed = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """One keep-alive connection for each way a call can go."""

    owner: Connection  # ends at the worker that owns the rollout
    other: Connection  # ends at the other worker, which forwards
    shim: Connection  # to one that tells what its stages took
    untimed: Connection  # to one that does not, whose processor time is measured
    unrouted: Connection  # to a gateway whose router is off
    bare: Connection  # to what takes a body in and hashes it, and does nothing else


def call_stages(ways: Ways, conversation: Conversation, size: int) -> list[Stage]:
    """All calls of one size; the first calls of its rollouts are made here."""
    name = f"bench-{size}"
    direct = _Direct(Lineage(conversation), ways.owner, name)
    off_lineage = Lineage(conversation)

    def unrouted() -> _Timed:
        body = off_lineage.step().body
        return lambda: _refuse_routed(ways.unrouted.post(_path(name), body, _FULL))

    off, full, delta = "call_router_off", "call_owner_full", "call_owner_delta"
    owner, other = ways.owner, ways.other
    at_owner = _Shim(ways.shim, conversation, shim_rollout(size))
    # A rollout belongs to where it arrives first: the shim's connection ends at one worker, so the
    # other one is the owner of this.
    away = other if at_owner.worker_id == direct.owner_id else owner
    away.post(_path(shim_rollout(size, hop=True)), b"{}", _FULL)
    over_hop = _Shim(ways.shim, conversation, shim_rollout(size, hop=True))
    return [
        Stage(name=off, reference=JSON_REFERENCE, prepare=unrouted),
        Stage(name=full, reference=off, prepare=lambda: direct.full(owner)),
        Stage(name=delta, reference=full, prepare=lambda: direct.delta(owner)),
        Stage(name="call_hop_full", reference=full, prepare=lambda: direct.full(other)),
        Stage(name="call_hop_delta", reference=delta, prepare=lambda: direct.delta(other)),
        Stage(name="call_shim_delta", reference=full, prepare=at_owner.call),
        Stage(name="call_shim_hop_delta", reference=full, prepare=over_hop.call),
    ]


def cpu_stages(ways: Ways, conversation: Conversation, size: int) -> list[Stage]:
    """Processor time of the sandbox side; several calls a time, the clock of a kernel is coarse."""
    shim = _Shim(ways.untimed, conversation, f"bench-{size}-cpu")
    lineage = Lineage(conversation)

    def several(call: Callable[[], _Timed]) -> Callable[[], _Timed]:
        def prepare() -> _Timed:
            calls = [call() for _ in range(_CPU_CALLS)]
            return lambda: [one() for one in calls]

        return prepare

    def bare() -> _Timed:
        body = lineage.step().body
        return lambda: ways.bare.post("/", body, _FULL)

    reference = "cpu_bare"
    return [
        Stage(name=reference, reference=None, prepare=several(bare), calls=_CPU_CALLS),
        Stage(name="cpu_shim", reference=reference, prepare=several(shim.call), calls=_CPU_CALLS),
    ]


_CPU_CALLS: Final = 4
_FULL = {"Content-Type": CONTENT_TYPE}
_FULL_KEEP = {**_FULL, HISTORY_HEADER: KEEP}
_FRAME = {"Content-Type": FRAME_TYPE}


class _Direct:
    """The calls of one rollout without a shim, on whichever connection."""

    def __init__(self, lineage: Lineage, owner: Connection, rollout_id: str) -> None:
        self._lineage = lineage
        self._path = _path(rollout_id)
        # It arrives at this connection's worker first, which is its owner from now on.
        self.owner_id = owner.post(self._path, lineage.first, _FULL_KEEP).worker_id

    def full(self, connection: Connection) -> _Timed:
        step = self._lineage.step()
        return lambda: self._call(connection, step.body, _FULL_KEEP, step.sha)

    def delta(self, connection: Connection) -> _Timed:
        step = self._lineage.step()
        frame = step.frame()
        return lambda: self._call(connection, frame, _FRAME, step.sha)

    def _call(
        self, connection: Connection, payload: bytes, headers: dict[str, str], sha: str
    ) -> None:
        answer = connection.post(self._path, payload, headers)
        if answer.mark != KEPT + sha:
            raise BenchFailed(f"a call of {self._path} was not kept: {answer.mark}")
        if answer.worker_id != self.owner_id:
            raise BenchFailed(f"{self._path} moved from {self.owner_id} to {answer.worker_id}")


class _Shim:
    """The calls of one rollout through the shim; the first one is made here."""

    def __init__(self, connection: Connection, conversation: Conversation, rollout_id: str) -> None:
        self._connection = connection
        self._lineage = Lineage(conversation)
        self._path = _path(rollout_id)
        self.worker_id = connection.post(self._path, self._lineage.first, _FULL).worker_id

    def call(self) -> _Timed:
        body = self._lineage.step().body
        return lambda: self._connection.post(self._path, body, _FULL)


def _refuse_routed(answer: Answer) -> None:
    if answer.mark is not None or answer.worker_id is not None:
        raise BenchFailed("a gateway whose router is off has routed a call")


def shim_rollout(size: int, *, hop: bool = False) -> str:
    """What goes through the shim, at its owner or over a *hop*."""
    return f"bench-{size}-shim{'-hop' if hop else ''}"


def _path(rollout_id: str) -> str:
    return f"/sessions/{rollout_id}/v1/chat/completions"
