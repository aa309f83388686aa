# SPDX-License-Identifier: Apache-2.0
"""Hops that the server's protocol begins itself, below ASGI (R1, R2, R4).

Most forwarded requests are whole when they arrive, go to an owner whose claim, owner file and
connection are known, and are answered in one piece. Such a request is sent in the callback that
read it, and its answer is written in the callback that read that: no task, no application. What is
out of the ordinary takes the router's way: from its beginning where nothing was sent, and else from
the answer on, which the router waits for and judges as any other.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rollout_router.asgi import Scope
from rollout_router.claims import Claim, ClaimsError
from rollout_router.routing import headers as wire
from rollout_router.routing.decision import Forward, route_public
from rollout_router.routing.forward import MISDIRECTED, Target, whole_head
from rollout_router.routing.worker import Worker
from rollout_router.transport.hop import HopResponse, HopStarted

__all__ = ["BEGUN_KEY", "STRAIGHT_S", "BegunHop", "BegunHops"]

BEGUN_KEY: Final = "rollout_router.begun"
"""Where it stands in the scope of a request that the router takes over; nothing from outside can
set it."""

STRAIGHT_S: Final = 0.1
"""An answer that has not come by then, or by twice that, is the router's to wait for: it watches
the owner's life."""

_OF_THE_HOP: Final = (wire.HOP, wire.STAGES)


class BegunHop:
    """A whole request that was sent to *target*, and is counted in hand until it is over.

    Attributes:
        began_s: loop time at which it was sent.
    """

    __slots__ = ("_asked", "_hops", "_started", "_then", "began_s", "target", "worker")

    def __init__(
        self, hops: "BegunHops", worker: Worker, target: Target, started: HopStarted
    ) -> None:
        self.worker: Final = worker
        self.target: Final = target
        self.began_s: Final = hops.loop.time()
        self._hops: Final = hops
        self._started: Final = started
        self._asked = False  # for its answer: whoever has that is done with the connection
        worker.in_hand[False] += 1

    def listen(self, then: Callable[[], None]) -> None:
        """Call *then* once: when there is news of the answer, or none came in time."""
        self._then = then
        self._started.listen(self.tell)

    def tell(self) -> None:
        """Call who listens."""
        self._hops.discard(self)
        self._started.listen(None)
        then = self._then
        del self._then  # it knows this hop: a cycle that only the collector would end
        then()

    def take_answer(self) -> bytes | None:
        """The answer as a server writes it, where it is here whole; the hop is over then.

        None where the router has to look at it: an answer in pieces, a claim that moved, a loss, or
        a worker that leaves and has to say so.
        """
        answer = self._started.answer
        if not answer.complete or answer.status == MISDIRECTED or self.worker.ownership.leaving:
            return None
        lines, length = [STATUS_LINE[answer.status]], b""
        for name, value in answer.headers:
            if name not in _OF_THE_HOP:
                lines += (name, b": ", value, b"\r\n")
                if name == b"content-length":
                    length = value
        if length != b"%d" % answer.buffered_bytes:  # no length, or the answer to a HEAD
            return None
        lines += (b"\r\n", self._started.body())
        self.worker.in_hand[False] -= 1
        return b"".join(lines)

    async def response(self) -> HopResponse:
        """Its answer, as :meth:`HopClient.send` gives one and raises."""
        self._asked = True
        return await self._started.response()

    def close(self) -> None:
        """Its router is done; an answer that it never asked for is given up."""
        if not self._asked:
            self._started.abort()

    def abort(self) -> None:
        """The client left: its owner is told, and nobody is called."""
        self._hops.discard(self)
        self._started.abort()
        self.worker.in_hand[False] -= 1


class BegunHops:
    """Those of one worker, and the one timer that they have together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: Final = loop
        self._waiting: dict[BegunHop, None] = {}  # oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self, worker: Worker, rollout_id: str, scope: Scope, body: bytes | bytearray
    ) -> BegunHop | None:
        """Send a whole request to the owner of its rollout; None where nothing was sent.

        The claim is looked at here, and by its owner again before anything runs (C1).
        """
        if (
            worker.closed
            or worker.pid != os.getpid()
            or worker.in_hand[False] >= worker.settings.calls_max
            or rollout_id in worker.ownership.grants
            or rollout_id in worker.ownership.busy
            or (claim := _of_another(worker, rollout_id)) is None
            or (identity := worker.known_identity(claim.owner.nonce)) is None
        ):
            return None
        epoch = claim.claim_epoch
        head = whole_head(
            scope, len(body), identity=worker.settings.header_of("rollout"), claim_epoch=epoch
        )
        started = worker.hops.start(identity.socket, head, body) if head else None
        if started is None:
            return None
        target = Target(owner=claim.owner, socket=identity.socket, claim_epoch=epoch)
        begun = BegunHop(self, worker, target, started)
        self._waiting[begun] = None
        if self._timer is None:
            self._timer = self.loop.call_later(STRAIGHT_S, self._look)
        return begun

    def discard(self, begun: BegunHop) -> None:
        """It waits no longer."""
        self._waiting.pop(begun, None)

    def _look(self) -> None:
        due_s = self.loop.time() - STRAIGHT_S
        for begun in [begun for begun in self._waiting if begun.began_s <= due_s]:
            begun.tell()
        self._timer = self.loop.call_later(STRAIGHT_S, self._look) if self._waiting else None


def _of_another(worker: Worker, rollout_id: str) -> Claim | None:
    """The claim of another worker, to which the request is to be forwarded."""
    try:
        claim = worker.store.read(rollout_id)
    except ClaimsError:
        return None  # the router says so
    decision = route_public(
        me=worker.id, held_epoch=None, claim=claim, gate=worker.admission.gate, balanced=True
    )
    return decision.claim if isinstance(decision, Forward) else None
