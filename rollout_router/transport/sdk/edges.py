# SPDX-License-Identifier: Apache-2.0
"""A request of an SDK is sent, and its answer handed on: once for threads, once for event loops.

S1, S4: what is sent, sent again or aborted is the sender's decision (decide.py). S2: an answer that
is not handed on gives its connection back or closes it, also when the call is cancelled. S3, R4:
whatever else happens to a call is what the inner transport raises, and nothing is tried again. An
answer's stream is handed on unread.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

import anyio.to_thread

from rollout_router.transport.sandbox.client import (
    SHORT_BYTES,
    Abort,
    Deliver,
    Outgoing,
    ResendFull,
    wants_body,
)
from rollout_router.transport.sandbox.wire import Headers
from rollout_router.transport.sdk.decide import Asked, Pass, Sender, Settings, is_short
from rollout_router.transport.sdk.messages import (
    Looked,
    aborted,
    asked,
    handed_on,
    limits,
    text,
    written,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["ENCODE_IN_THREAD_BYTES", "AsyncEdge", "Edge"]

ENCODE_IN_THREAD_BYTES = 64 * 1024
"""A longer body is hashed and encoded beside the event loop. Up to here a turn holds the loop for
less than a millisecond. Measured, busy machine: a whole new conversation, compressed, while four
bases have nothing of it, holds it for seven, and the worst text that we know for twelve."""
_RESYNC = 409


class _Sending:
    """What both edges are made of; the library comes with the flavour."""

    _hx: ClassVar[Any]

    def __init__(self, inner: Any, kind: Any, default: Any, settings: Settings) -> None:
        if inner is not None and not isinstance(inner, kind):
            raise TypeError(f"inner is no {self._hx.__name__}.{kind.__name__}: {inner!r}")
        self._sender = Sender(**settings)
        self._inner = default(limits=limits(self._hx)) if inner is None else inner

    def statistics(self) -> dict[str, Any]:
        """What each rollout has sent so far, in bytes of request bodies.

        ``{"rollouts": {id: {"calls", "bytes_sent", "bytes_plain", "bytes_full", "resyncs"}}}``.
        """
        return self._sender.statistics()


class Edge(_Sending):
    """For blocking clients, from any number of threads.

    Args:
        inner: the transport that sends; closed with this one. By default the library's own, which
            looks at no proxy.
        settings: see :class:`~rollout_router.transport.sdk.decide.Sender`.

    Raises:
        TypeError: *inner* belongs to the other library, or a setting is unknown.
        ValueError: a setting is not what it has to be.
    """

    def __init__(self, *, inner: Any = None, **settings: Unpack[Settings]) -> None:
        super().__init__(inner, self._hx.BaseTransport, self._hx.HTTPTransport, settings)

    def handle_request(self, request: Any) -> Any:
        """Send *request*, and give the answer that is meant for who made it.

        Raises:
            RemoteProtocolError: the answer was aborted (S4): the call may have run.
            TransportError: what the inner transport raises.
        """
        hx = self._hx
        plan = self._sender.plan(asked(hx, request))
        if isinstance(plan, Pass):
            answer = self._inner.handle_request(written(hx, request, plan.headers))
            passed = plan.settle(answer.status_code, text(answer.headers.raw))
            if isinstance(passed, Abort):
                answer.close()
                raise aborted(hx, request, passed)
            return handed_on(hx, answer, passed.headers)
        while True:
            answer = self._inner.handle_request(written(hx, request, plan.headers, plan.payload))
            dropped = True
            try:
                status, headers = answer.status_code, text(answer.headers.raw)
                short = is_short(headers)
                wanted = short is not False and wants_body(plan, status, headers)
                looked = _looked_at(answer) if wanted else None
                step = self._sender.settle(plan, status, headers, _whole(looked))
                if isinstance(step, Deliver):
                    dropped = False
                    return handed_on(hx, answer, step.headers, looked)
                if isinstance(step, Abort):
                    raise aborted(hx, request, step, plan.rollout)
                if short and looked is None:
                    with contextlib.suppress(hx.TransportError):  # so that the connection lives on
                        _looked_at(answer)
                plan = step.outgoing
            finally:
                if dropped:
                    answer.close()

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


class AsyncEdge(_Sending):
    """For asynchronous clients, any number of tasks of one event loop; asyncio or trio.

    Args:
        inner: the transport that sends; closed with this one. By default the library's own, which
            looks at no proxy.
        settings: see :class:`~rollout_router.transport.sdk.decide.Sender`.

    Raises:
        TypeError: *inner* belongs to the other library, or a setting is unknown.
        ValueError: a setting is not what it has to be.
    """

    def __init__(self, *, inner: Any = None, **settings: Unpack[Settings]) -> None:
        super().__init__(inner, self._hx.AsyncBaseTransport, self._hx.AsyncHTTPTransport, settings)

    async def handle_async_request(self, request: Any) -> Any:
        """Send *request*, and give the answer that is meant for who made it.

        Raises:
            RemoteProtocolError: the answer was aborted (S4): the call may have run.
            TransportError: what the inner transport raises.
        """
        hx = self._hx
        plan = await self._plan(asked(hx, request))
        if isinstance(plan, Pass):
            answer = await self._inner.handle_async_request(written(hx, request, plan.headers))
            passed = plan.settle(answer.status_code, text(answer.headers.raw))
            if isinstance(passed, Abort):
                await answer.aclose()
                raise aborted(hx, request, passed)
            return handed_on(hx, answer, passed.headers)
        while True:
            answer = await self._inner.handle_async_request(
                written(hx, request, plan.headers, plan.payload)
            )
            dropped = True
            try:
                status, headers = answer.status_code, text(answer.headers.raw)
                short = is_short(headers)
                wanted = short is not False and wants_body(plan, status, headers)
                looked = await _alooked_at(answer) if wanted else None
                step = await self._settle(plan, status, headers, _whole(looked))
                if isinstance(step, Deliver):
                    dropped = False
                    return handed_on(hx, answer, step.headers, looked)
                if isinstance(step, Abort):
                    raise aborted(hx, request, step, plan.rollout)
                if short and looked is None:
                    with contextlib.suppress(hx.TransportError):  # so that the connection lives on
                        await _alooked_at(answer)
                plan = step.outgoing
            finally:
                if dropped:
                    await answer.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _plan(self, what: Asked) -> Outgoing | Pass:
        if len(what.body or b"") <= ENCODE_IN_THREAD_BYTES:
            return self._sender.plan(what)
        return await anyio.to_thread.run_sync(self._sender.plan, what)

    async def _settle(
        self, plan: Outgoing, status: int, headers: Headers, looked: bytes
    ) -> Deliver | ResendFull | Abort:
        """A resync has the whole body compressed; no other answer costs anything."""
        settle = self._sender.settle
        if status != _RESYNC or len(plan.target.body) <= ENCODE_IN_THREAD_BYTES:
            return settle(plan, status, headers, looked)
        return await anyio.to_thread.run_sync(settle, plan, status, headers, looked)


def _looked_at(answer: Any) -> Looked:
    """The body where it is short, and its connection is free; else what it took to see that."""
    held, size, stream = [], 0, iter(answer.stream)
    for piece in stream:
        held.append(piece)
        size += len(piece)
        if size > SHORT_BYTES:
            return Looked(b"".join(held), stream)
    answer.stream.close()
    return Looked(b"".join(held), None)


async def _alooked_at(answer: Any) -> Looked:
    held, size, stream = [], 0, answer.stream.__aiter__()
    async for piece in stream:
        held.append(piece)
        size += len(piece)
        if size > SHORT_BYTES:
            return Looked(b"".join(held), stream)
    await answer.stream.aclose()
    return Looked(b"".join(held), None)


def _whole(looked: Looked | None) -> bytes:
    """What the decision may see: a body that is there in full."""
    return b"" if looked is None or looked.rest is not None else looked.start
