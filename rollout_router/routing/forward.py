# SPDX-License-Identifier: Apache-2.0
"""One hop: handing a request to the owner's private socket (R1, R2, R4).

How far it got, and what that allows, is the table of ``dispatch``: this module keeps account of it
and raises what the table says.

A new rollout goes to the worker that it is placed at. That one takes the claim before it asks for
the body, and dispatch begins when it asks, however short the body is. An empty one is sent as
chunks: a head without a body would be a whole request, and could run after its time was over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, assert_never

from rollout_router.claims import Owner
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.metrics import HOP_SECONDS, OWNER_UNREACHABLE
from rollout_router.routing import headers as wire
from rollout_router.routing.dispatch import AFTER, Event, Sent, Then
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.headers import Headers
from rollout_router.routing.hop_head import of_the_claim, of_the_message, target_of
from rollout_router.routing.hop_scope import scope_headers
from rollout_router.transport.hop import (
    AnswerRefused,
    ConnectFailed,
    HopClient,
    HopLost,
    HopRequest,
    HopResponse,
)

if TYPE_CHECKING:
    from rollout_router.routing.begun import BegunHop

__all__ = [
    "HELD_BODY_BYTES_MAX",
    "MISDIRECTED",
    "MOVED",
    "Hop",
    "HopEnd",
    "NotDispatched",
    "NotPlaced",
    "Target",
]

HELD_BODY_BYTES_MAX: Final = 1024**2
"""A body up to here is held whole by the forwarder and sent in one go; a longer one waits for the
owner's 100 Continue, and dispatch begins there."""

MOVED: Final = b"moved"
"""Value of ``Rollout-Hop`` on an owner's 421, to tell it from a 421 of the application."""

MISDIRECTED: Final = 421

PLACED_S_MAX: Final = 10.0
"""How long a worker may take to claim a rollout that was placed at it: twice the bounded wait for
the lock of a stripe. Nothing ran by then, so the rollout is taken by whoever placed it."""

_OUTCOMES: Final = {
    Then.JUDGE: "not_dispatched",
    Then.HERE: "not_placed",
    Then.UNREACHABLE: "owner_unreachable",
    Then.LOST_IN_FLIGHT: "owner_lost_in_flight",
    Then.TIMEOUT: "owner_timeout",
    Then.CUT: "cut",
    Then.REREAD: "moved",
}
"""How a hop is counted that was not delivered."""


class NotDispatched(Exception):  # noqa: N818 - names what can be relied on
    """Nothing of the request can have run: the owner may be judged, and another route may follow.

    The claim may have moved meanwhile; read it again.
    """


class NotPlaced(Exception):  # noqa: N818 - names what can be relied on
    """Nothing of a new rollout's request can have run: its claim may be taken here."""


class HopEnd(Enum):
    """How a hop ended that the forwarder may act on."""

    DELIVERED = "delivered"
    MOVED = "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The worker that a hop goes to."""

    owner: Owner
    socket: str
    claim_epoch: int | None  # None: of a new rollout, whose claim that worker takes
    on_claimed: Callable[[], None] = lambda: None  # called when it has


class Hop:
    """The forwarding of one request.

    Args:
        hops: the connections of this worker to its peers.
        exchange: the request as it came to the public port.
        identity: the header that may name the rollout, in lower case.
        timeout_s: how long to wait for the head of the answer; None: as long as it takes.
        begun: the request was sent already; None: it is sent here.

    Attributes:
        outcome: how it is counted, once it is over.
    """

    def __init__(
        self,
        hops: HopClient,
        exchange: Exchange,
        *,
        identity: bytes,
        timeout_s: float | None,
        begun: "BegunHop | None" = None,
    ) -> None:
        self._begun = begun
        self._identity = identity
        self._hops = hops
        self._exchange = exchange
        self._scope = exchange.scope
        self._client = exchange.client
        self._rollout_id = exchange.rollout_id
        self._timeout_s = timeout_s
        self._clock = asyncio.timeout(None)
        self._sent = Sent.NOTHING
        self.outcome = "given_up"  # unless something else ended it

    @property
    def dispatched(self) -> bool:
        """Whether the request may have run."""
        return self._sent is Sent.REQUEST

    async def to(self, target: Target) -> HopEnd:
        """Send the request to *target* and its answer to the client. Once.

        The caller has filled the client's body up to ``HELD_BODY_BYTES_MAX``.

        Raises:
            NotDispatched, or NotPlaced of a new rollout: nothing of it can have run.
            Refusal: 502, 503 or 504; of a new rollout it names no claim epoch.
            ResponseCut: the answer had begun.
            ClientGone: the client left before its body was complete.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time() if self._begun is None else self._begun.began_s
        response = await self._head(target)
        HOP_SECONDS.observe(loop.time() - began_s)
        try:
            if response.status == MISDIRECTED and wire.first(response.headers, wire.HOP) == MOVED:
                if self._client.handed_on:  # against the rule, and it could be sent in part alone
                    what = "its owner refused a body that it had asked for"
                    raise self.ended(Event.LOST, target, what)
                self.outcome = HopEnd.MOVED.value
                return HopEnd.MOVED
            await self._pass_on(response, target)
        finally:
            await response.aclose()
        self.outcome = HopEnd.DELIVERED.value
        return HopEnd.DELIVERED

    def ended(self, event: Event, target: Target, what: str) -> Exception:
        """What to raise where *event* came instead of a whole answer.

        Args:
            event: not MOVED, which :meth:`to` returns.
            target: the worker that was to answer.
            what: became of that worker, for people.
        """
        then = AFTER[Sent.ANSWER if self._client.started else self._sent, event]
        self.outcome = _OUTCOMES[then]
        match then:
            case Then.JUDGE:
                return NotDispatched(what)
            case Then.HERE:
                return NotPlaced(what)
            case Then.UNREACHABLE:
                OWNER_UNREACHABLE.inc()
                return self._refusal(
                    target, "owner_unreachable", f"{what}; nothing ran, send again"
                )
            case Then.LOST_IN_FLIGHT:
                return self._refusal(target, "owner_lost_in_flight", f"{what}; it may have run")
            case Then.TIMEOUT:
                return self._refusal(target, "owner_timeout", f"{what}; it may have run")
            case Then.CUT:
                return ResponseCut(f"rollout {self._rollout_id}: {what}")
            case Then.REREAD:
                raise RuntimeError("the store is read again after an answer, which is no exception")
            case never:
                assert_never(never)

    async def _head(self, target: Target) -> HopResponse:
        try:
            if self._begun is not None:
                self._sent, clocked, since_s = Sent.REQUEST, False, self._begun.began_s
                sending = self._begun.response()
            else:
                request = self._request(target)
                clocked, since_s = request.rest is not None, None
                sending = self._hops.send(target.socket, request)
            limit_s = PLACED_S_MAX if self._sent is Sent.NEW_HEAD else self._timeout_s
            if limit_s is None and not clocked:
                return await sending
            async with self._clock:
                self._wind(limit_s, since_s)
                return await sending
        except ConnectFailed as error:
            self._sent = Sent.NEW_NOTHING if self._sent is Sent.NEW_HEAD else Sent.NOTHING
            raise self.ended(Event.LOST, target, str(error)) from error
        except HopLost as error:
            raise self._lost(error, target) from error
        except TimeoutError as error:
            if self._sent is Sent.NEW_HEAD:
                what = f"it did not take the claim within {PLACED_S_MAX} s"
                raise self.ended(Event.UNCLAIMED, target, what) from error
            what = f"its owner gave no answer within {self._timeout_s} s"
            raise self.ended(Event.TIMED_OUT, target, what) from error

    def _lost(self, error: HopLost, target: Target) -> Exception:
        found = isinstance(error, AnswerRefused)  # by an owner that lives
        what = "its answer cannot be passed on" if found else "its owner was lost"
        return self.ended(Event.LOST, target, f"{what}: {error}")

    def _refusal(self, target: Target, code: str, what: str) -> Refusal:
        return Refusal(
            code,
            f"rollout {self._rollout_id} at worker {target.owner.nonce}: {what}",
            rollout_id=self._rollout_id,
            claim_epoch=target.claim_epoch,
        )

    def _wind(self, time_s: float | None, since_s: float | None = None) -> None:
        """Let the owner have so long from now on, or since then, to answer or ask for the body."""
        if since_s is None:
            since_s = asyncio.get_running_loop().time()
        self._clock.reschedule(None if time_s is None else since_s + time_s)

    async def _body(self, target: Target) -> AsyncIterator[bytes]:
        """The whole body, when its owner has asked for it; no limit while it comes."""
        if self._clock.expired():  # in this very turn of the loop: too late, and nothing was sent
            raise TimeoutError
        self._sent = Sent.REQUEST
        self._wind(None)
        target.on_claimed()
        yield self._client.buffered()
        async for chunk in self._client.rest():
            yield chunk
        self._wind(self._timeout_s)

    def _request(self, target: Target) -> HopRequest:
        headers: Headers = self._scope["headers"]
        announced = wire.first(headers, b"content-length")
        length = None if announced is None else int(announced)
        body = self._client.buffered()
        whole = self._client.body_is_whole
        added: Headers = []
        if target.claim_epoch is not None:
            self._sent = Sent.REQUEST if whole else Sent.HEAD
            epoch = b"%d" % target.claim_epoch
        else:
            self._sent, epoch = Sent.NEW_HEAD, wire.NEW
            if whole and body:
                length = len(body)
            elif whole:
                length = None
                if wire.first(headers, b"transfer-encoding") is None:
                    added = [(wire.EMPTY_BODY, announced or b"")]
            whole = False
        return HopRequest(
            method=self._scope["method"],
            target=target_of(self._scope),
            headers=[
                *of_the_message(headers, self._identity),
                *of_the_claim(epoch),
                *scope_headers(self._scope),
                *added,
            ],
            body=body if whole else b"",
            rest=None if whole else self._body(target),
            content_length=length,
        )

    async def _pass_on(self, response: HopResponse, target: Target) -> None:
        self._sent = Sent.REQUEST  # whoever answers has begun, whatever it was sent
        await self._client.send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": [
                    *wire.without(response.headers, wire.HOP, wire.STAGES),
                    *self._timing(response.headers),
                ],
            }
        )
        last = response.whole()
        if last is None:
            try:
                async for chunk in response.body():
                    await self._client.send(
                        {"type": "http.response.body", "body": chunk, "more_body": True}
                    )
            except HopLost as error:
                raise self._lost(error, target) from error
        await self._client.send(
            {"type": "http.response.body", "body": last or b"", "more_body": False}
        )

    def _timing(self, headers: Headers) -> Headers:
        """The stages at both workers in one line, where the owner told its own."""
        if (told := wire.first(headers, wire.STAGES)) is None:
            return []
        self._exchange.stages.end_hop(told)
        return self._exchange.timing()
