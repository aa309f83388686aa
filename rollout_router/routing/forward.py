# SPDX-License-Identifier: Apache-2.0
"""One hop: handing a request to the owner's private socket (R1, R2, R4).

What may follow a hop depends on how far it got:

    nothing was sent         NotDispatched   the life lock is asked; another route may follow
    421 from the owner       MOVED           the store is read again; at most twice
    an answer, whole         DELIVERED       it was passed on as it came
    lost before the answer   Refusal 502     it may have run: nothing is sent again
    lost within the answer   ResponseCut     the client's connection is aborted, never ended cleanly
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import Enum
from functools import partial
from typing import Final

from rollout_router.asgi import Scope
from rollout_router.claims import Claim
from rollout_router.errors import Refusal, ResponseCut
from rollout_router.routing import headers as wire
from rollout_router.routing.exchange import Exchange
from rollout_router.routing.headers import Headers
from rollout_router.routing.hop_scope import scope_headers
from rollout_router.routing.identity import path_of
from rollout_router.transport.hop import ConnectFailed, HopClient, HopLost, HopRequest, HopResponse

__all__ = ["HELD_BODY_BYTES_MAX", "MOVED", "Hop", "HopEnd", "NotDispatched"]

HELD_BODY_BYTES_MAX: Final = 1024**2
"""A body up to here is held whole by the forwarder and sent in one go; a longer one waits for the
owner's 100 Continue, and dispatch begins there."""

MOVED: Final = b"moved"
"""Value of ``Rollout-Hop`` on an owner's 421, to tell it from a 421 of the application."""

MISDIRECTED: Final = 421

_NOT_SENT_ON: Final = (
    b"content-length",
    b"expect",
    wire.HOP,
    wire.EXPECT_EPOCH,
    wire.CLIENT,
    wire.SCHEME,
    wire.ROOT_PATH,
)


class NotDispatched(Exception):  # noqa: N818 - names what can be relied on
    """The owner could not be reached, or was lost before any of the body was handed to it."""


class HopEnd(Enum):
    """How a hop ended that the forwarder may act on."""

    DELIVERED = "delivered"
    MOVED = "moved"


class Hop:
    """The forwarding of one request.

    Args:
        hops: the connections of this worker to its peers.
        exchange: the request as it came to the public port.
        identity: the header that may name the rollout, in lower case.
        timeout_s: how long to wait for the head of the answer; None: as long as it takes.
    """

    def __init__(
        self, hops: HopClient, exchange: Exchange, *, identity: bytes, timeout_s: float | None
    ) -> None:
        self._identity = identity
        self._hops = hops
        self._scope = exchange.scope
        self._client = exchange.client
        self._rollout_id = exchange.rollout_id
        self._timeout_s = timeout_s

    async def to(self, claim: Claim, socket: str) -> HopEnd:
        """Send the request to the owner of *claim* and its answer to the client.

        The caller has filled the client's body up to ``HELD_BODY_BYTES_MAX``.

        Raises:
            NotDispatched: nothing of it can have run.
            Refusal: 502 or 504; the call may have run.
            ResponseCut: the answer had begun.
            ClientGone: the client left before its body was complete.
        """
        response = await self._head(claim, socket)
        try:
            if response.status == MISDIRECTED and wire.first(response.headers, wire.HOP) == MOVED:
                return HopEnd.MOVED
            await self._pass_on(response, claim)
        finally:
            await response.aclose()
        return HopEnd.DELIVERED

    async def _head(self, claim: Claim, socket: str) -> HopResponse:
        try:
            async with asyncio.timeout(None) as limit:
                request = self._request(claim, partial(self._start_clock, limit))
                return await self._hops.send(socket, request)
        except ConnectFailed as error:
            raise NotDispatched(str(error)) from error
        except TimeoutError as error:
            raise self._lost(
                claim, "owner_timeout", f"gave no answer within {self._timeout_s} s"
            ) from error
        except HopLost as error:
            if not error.dispatched:
                raise NotDispatched(str(error)) from error
            raise self._lost(claim, "owner_lost_in_flight", f"was lost: {error}") from error

    def _lost(self, claim: Claim, code: str, what: str) -> Refusal:
        return Refusal(
            code,
            f"worker {claim.owner.nonce}, the owner of rollout {self._rollout_id}, {what};"
            " the call may have run",
            rollout_id=self._rollout_id,
            claim_epoch=claim.claim_epoch,
        )

    def _start_clock(self, limit: asyncio.Timeout) -> None:
        """The owner has the whole request: from now on its answer is waited for."""
        if self._timeout_s is not None:
            limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)

    async def _rest(self, on_end: Callable[[], None]) -> AsyncIterator[bytes]:
        async for chunk in self._client.rest():
            yield chunk
        on_end()

    def _request(self, claim: Claim, on_sent: Callable[[], None]) -> HopRequest:
        headers: Headers = list(self._scope["headers"])
        length = wire.first(headers, b"content-length")
        whole = self._client.body_is_whole
        if whole:
            on_sent()
        return HopRequest(
            method=self._scope["method"],
            target=_target(self._scope),
            headers=[
                *wire.without(_of_the_message(headers, self._identity), *_NOT_SENT_ON),
                (wire.HOP, b"1"),
                (wire.EXPECT_EPOCH, str(claim.claim_epoch).encode()),
                *scope_headers(self._scope),
            ],
            body=self._client.buffered(),
            rest=None if whole else self._rest(on_sent),
            content_length=None if length is None else int(length),
        )

    async def _pass_on(self, response: HopResponse, claim: Claim) -> None:
        await self._client.send(
            {
                "type": "http.response.start",
                "status": response.status,
                "headers": wire.without(response.headers, wire.HOP),
            }
        )
        try:
            async for chunk in response.body():
                await self._client.send(
                    {"type": "http.response.body", "body": chunk, "more_body": True}
                )
        except HopLost as error:
            if not self._client.started:  # an HTTP/1.0 client: its answer was still being buffered
                raise self._lost(claim, "owner_lost_in_flight", f"was lost: {error}") from error
            raise ResponseCut(f"rollout {self._rollout_id}: {error}") from error
        await self._client.send({"type": "http.response.body", "body": b"", "more_body": False})


def _of_the_message(headers: Headers, identity: bytes) -> Headers:
    """The headers that are not of one connection, nor named by Connection as such.

    What tells a frame from a body, or names the rollout, is never dropped.
    """
    named = {
        token.strip().lower()
        for key, value in headers
        if key.lower() == b"connection"
        for token in value.split(b",")
    }
    dropped = wire.HOP_BY_HOP | (named - {b"content-type", b"cookie", wire.HISTORY, identity})
    return wire.without(headers, *dropped)


def _target(scope: Scope) -> bytes:
    path = path_of(scope)
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path
