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
from typing import Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from rollout_router.asgi import Scope
from rollout_router.claims import Claim, ClaimsError
from rollout_router.metrics import HOP_SECONDS, HOPS, RECEIVED, REQUESTS
from rollout_router.routing import headers as wire
from rollout_router.routing.counting import class_of
from rollout_router.routing.decision import Forward, route_public
from rollout_router.routing.forward import MISDIRECTED, Target
from rollout_router.routing.hop_head import begin_of_head, end_of_head, lines_of_connection
from rollout_router.routing.worker import Worker
from rollout_router.transport.hop import Body, HopResponse, HopStarted

__all__ = [
    "BEGUN_KEY",
    "KNOWN_HEADS_MAX",
    "KNOWN_HEAD_BYTES_MAX",
    "KNOWN_HEAD_ROOM_BYTES",
    "STRAIGHT_S",
    "BegunHop",
    "BegunHops",
    "KnownHead",
    "split",
]

BEGUN_KEY: Final = "rollout_router.begun"
"""Where it stands in the scope of a request that the router takes over; nothing from outside can
set it."""

STRAIGHT_S: Final = 0.1
"""An answer that has not come by then, or by twice that, is the router's to wait for: it watches
the owner's life."""

KNOWN_HEADS_MAX: Final = 1024
"""Heads that are known again; the one that was not met for the longest goes first."""

KNOWN_HEAD_BYTES_MAX: Final = 8192
"""A longer head is read each time. With what it became a known one takes twice its bytes."""

KNOWN_HEAD_ROOM_BYTES: Final = 512
"""So far below the bound of a server a head stays known: its length may have more digits than the
first had, and the parser counts a header with no blank before its value as one byte more."""

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length: "
_LENGTH_DIGITS_MAX: Final = 9  # more than one read holds
_OF_THE_HOP: Final = (wire.HOP, wire.STAGES)


class BegunHop:
    """A whole request that was sent to *target*, and is counted in hand until it is over.

    Attributes:
        began_s: loop time at which it was sent.
    """

    __slots__ = (
        "_asked",
        "_hops",
        "_started",
        "_then",
        "began_s",
        "rollout_id",
        "target",
        "worker",
    )

    def __init__(
        self, hops: "BegunHops", target: Target, started: HopStarted, *, rollout_id: str
    ) -> None:
        self.worker: Final = hops.worker
        self.target: Final = target
        self.rollout_id: Final = rollout_id
        self.began_s: Final = hops.loop.time()
        self._hops: Final = hops
        self._started: Final = started
        self._then: Callable[[], None] | None = None
        self._asked = False  # for its answer: whoever has that is done with the connection
        self.worker.in_hand[False] += 1
        RECEIVED["public"].inc()

    def listen(self, then: Callable[[], None]) -> None:
        """Call *then* once: when there is news of the answer, or none came in time."""
        self._then = then
        self._started.listen(self.tell)

    def tell(self) -> None:
        """Call who listens."""
        self._hops.discard(self)
        self._started.listen(None)
        then, self._then = self._then, None  # a cycle else, that only the collector would end
        if then is not None:
            then()

    def take_answer(self) -> bytes | None:
        """The answer as a server writes it, where it is here whole; the hop is over then.

        None where the router has to look at it: an answer in pieces, a claim that moved, a loss, or
        a worker that leaves and has to say so.
        """
        answer = self._started.answer
        odd = answer.status == MISDIRECTED or answer.status not in STATUS_LINE
        if odd or not answer.complete or self.worker.ownership.leaving:
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
        HOP_SECONDS.observe(self._hops.loop.time() - self.began_s)
        self._over("delivered", class_of(answer.status))
        return b"".join(lines)

    def stands(self) -> bool:
        """Whether its rollout is still the target's. Costs a stat."""
        try:
            claim = self.worker.store.read(self.rollout_id)
        except ClaimsError:
            return False
        expected = (self.target.owner, self.target.claim_epoch)
        return claim is not None and (claim.owner, claim.claim_epoch) == expected

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
        self._then = None  # as in :meth:`tell`
        self._over("given_up", "client_gone")

    def _over(self, how: str, outcome: str) -> None:
        """Nobody else counts it."""
        self.worker.in_hand[False] -= 1
        HOPS[how].inc()
        REQUESTS["public", outcome].inc()


class KnownHead(NamedTuple):
    """A head that was sent on before; what it became, but for its connection and its length."""

    rollout_id: str
    claim_epoch: int
    begin: bytes


class BegunHops:
    """Those of one worker, the one timer that they have together, and the heads that they had."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self.worker: Final = worker
        self.loop: Final = loop
        self._waiting: dict[BegunHop, None] = {}  # oldest first
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[bytes, KnownHead] = {}  # by what :func:`split` gives; met last, last

    def begin(
        self, rollout_id: str, scope: Scope, body: Body, *, head: bytes | None
    ) -> BegunHop | None:
        """Send a whole request to the owner of its rollout; None where nothing was sent.

        The claim is looked at here, and by its owner again before anything runs (C1).

        Args:
            rollout_id: that the request names.
            scope: of our own server.
            body: all of it.
            head: of :func:`split`, by which :meth:`begin_again` is to know it; None: not.
        """
        claim = self._of_another(rollout_id)
        if claim is None:
            return None
        header = self.worker.settings.header_of("rollout")
        begin = begin_of_head(scope, identity=header, claim_epoch=claim.claim_epoch)
        if begin is None:
            return None
        announced = bool(body) or wire.first(scope["headers"], b"content-length") is not None
        end = end_of_head(lines_of_connection(scope), len(body) if announced else None)
        begun = self._send(claim, begin + end, body)
        if begun is not None and head is not None:
            if len(self._known) >= KNOWN_HEADS_MAX:
                del self._known[next(iter(self._known))]
            self._known[head] = KnownHead(rollout_id, claim.claim_epoch, begin)
        return begun

    def begin_again(self, head: bytes, lines: bytes, body: Body) -> BegunHop | None:
        """The same of a request whose *head* was sent on before; nothing is read out of it anew.

        A head that says the same, letter by letter, means the same. Its length alone may differ.

        Args:
            head: of :func:`split`.
            lines: of its connection, as :func:`lines_of_connection` gives them.
            body: all of it.
        """
        known = self._known.get(head)
        if known is None:
            return None
        self._known[head] = self._known.pop(head)  # met last
        claim = self._of_another(known.rollout_id)
        if claim is None or claim.claim_epoch != known.claim_epoch:
            return None
        return self._send(claim, known.begin + end_of_head(lines, len(body)), body)

    def _of_another(self, rollout_id: str) -> Claim | None:
        """The claim of another worker, to which the request is to be forwarded."""
        worker = self.worker
        if (
            worker.closed
            or worker.pid != os.getpid()
            or worker.in_hand[False] >= worker.settings.calls_max
            or rollout_id in worker.ownership.grants
            or rollout_id in worker.ownership.busy
        ):
            return None
        try:
            claim = worker.store.read(rollout_id)
        except ClaimsError:
            return None  # the router says so
        decision = route_public(
            me=worker.id, held_epoch=None, claim=claim, gate=worker.admission.gate, balanced=True
        )
        return decision.claim if isinstance(decision, Forward) else None

    def _send(self, claim: Claim, head: bytes, body: Body) -> BegunHop | None:
        identity = self.worker.known_identity(claim.owner.nonce)
        if identity is None:
            return None
        started = self.worker.hops.start(identity.socket, head, body)
        if started is None:
            return None
        target = Target(owner=claim.owner, socket=identity.socket, claim_epoch=claim.claim_epoch)
        begun = BegunHop(self, target, started, rollout_id=claim.rollout_id)
        self._waiting[begun] = None
        if self._timer is None:
            self._timer = self.loop.call_later(STRAIGHT_S, self._look)
        return begun

    def discard(self, begun: BegunHop) -> None:
        """It waits no longer."""
        self._waiting.pop(begun, None)

    def _look(self) -> None:
        due_s = self.loop.time() - STRAIGHT_S
        self._timer = None
        try:
            for begun in [begun for begun in self._waiting if begun.began_s <= due_s]:
                begun.tell()
        finally:  # whatever one of them meets, the others are told in time
            if self._waiting and self._timer is None:
                self._timer = self.loop.call_later(STRAIGHT_S, self._look)


def split(data: bytes) -> tuple[bytes, memoryview] | None:
    """The head of a request without the digits of its length, and its body.

    None unless *data* is one whole request whose length is written in digits alone.
    """
    end = data.find(_END)
    at = data[: max(end, 0)].lower().find(_LENGTH) + len(_LENGTH)
    if at < len(_LENGTH):
        return None
    stop = data.find(b"\r", at)
    digits, begin = data[at:stop], end + len(_END)
    if not digits.isdigit() or len(digits) > _LENGTH_DIGITS_MAX or int(digits) != len(data) - begin:
        return None
    return data[:at] + data[stop:end], memoryview(data)[begin:]
