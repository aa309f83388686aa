# SPDX-License-Identifier: Apache-2.0
"""The stages that are whole calls: at the owner, over the hop, through the shim, without routing.

Every answer is checked: a call that was resynced, not kept or answered by another worker ends the
benchmark instead of being counted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from rollout_router.bench.bodies import Conversation
from rollout_router.bench.connection import Answer, BenchFailed, Connection
from rollout_router.bench.lineage import CONTENT_TYPE, Lineage
from rollout_router.bench.measure import Stage
from rollout_router.bench.rooms import JSON_REFERENCE
from rollout_router.transport.sandbox.wire import CONTENT_TYPE as FRAME_TYPE
from rollout_router.transport.sandbox.wire import HISTORY_HEADER, KEEP, KEPT

__all__ = ["Connections", "call_stages", "shim_rollout"]

_Timed = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """One keep-alive connection for each way a call can go."""

    owner: Connection  # ends at the worker that owns the rollout
    other: Connection  # ends at the other worker, which forwards
    shim: Connection
    unrouted: Connection  # to a gateway whose router is off


def call_stages(connections: Connections, conversation: Conversation, name: str) -> list[Stage]:
    """All calls of one size; the first call of rollout *name* is made here, at its owner."""
    direct = _Direct(Lineage(conversation), connections.owner, name)
    shim, off_lineage = Lineage(conversation), Lineage(conversation)

    def through_shim() -> _Timed:
        body = shim.step().body
        return lambda: connections.shim.post(_path(shim_rollout(name)), body, _FULL)

    def unrouted() -> _Timed:
        body = off_lineage.step().body
        return lambda: _refuse_routed(connections.unrouted.post(_path(name), body, _FULL))

    off, full, delta = "call_router_off", "call_owner_full", "call_owner_delta"
    owner, other = connections.owner, connections.other
    return [
        Stage(name=off, reference=JSON_REFERENCE, prepare=unrouted),
        Stage(name=full, reference=off, prepare=lambda: direct.full(owner)),
        Stage(name=delta, reference=full, prepare=lambda: direct.delta(owner)),
        Stage(name="call_hop_full", reference=full, prepare=lambda: direct.full(other)),
        Stage(name="call_hop_delta", reference=delta, prepare=lambda: direct.delta(other)),
        Stage(name="call_shim_delta", reference=full, prepare=through_shim),
    ]


_FULL = {"Content-Type": CONTENT_TYPE}
_FULL_KEEP = {**_FULL, HISTORY_HEADER: KEEP}
_FRAME = {"Content-Type": FRAME_TYPE}


class _Direct:
    """The calls of one rollout without a shim, on whichever connection."""

    def __init__(self, lineage: Lineage, owner: Connection, rollout_id: str) -> None:
        self._lineage = lineage
        self._path = _path(rollout_id)
        # It arrives at this connection's worker first, which is its owner from now on.
        self._owner_id = owner.post(self._path, lineage.first, _FULL_KEEP).worker_id

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
        if answer.worker_id != self._owner_id:
            raise BenchFailed(f"{self._path} moved from {self._owner_id} to {answer.worker_id}")


def _refuse_routed(answer: Answer) -> None:
    if answer.mark is not None or answer.worker_id is not None:
        raise BenchFailed("a gateway whose router is off has routed a call")


def shim_rollout(name: str) -> str:
    """The rollout that goes through the shim: another one, since its bases are the shim's."""
    return f"{name}-shim"


def _path(rollout_id: str) -> str:
    return f"/sessions/{rollout_id}/v1/chat/completions"
