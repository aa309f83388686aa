# SPDX-License-Identifier: Apache-2.0
"""Deltas within a client that stands on ``httpx2``, as the OpenAI SDK 3.x does. Laws: sdk/edges.py.

    OpenAI(base_url=…, http_client=client(rollout="r1"))

No server imports this: httpx2 is the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import httpx2

from rollout_router.transport.sdk.edges import AsyncEdge, Edge

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_router.transport.sdk.decide import Settings

__all__ = ["AsyncDeltaTransport", "DeltaTransport", "async_client", "client"]


class DeltaTransport(Edge, httpx2.BaseTransport):
    """A transport that sends what is new. Arguments and errors are those of :class:`Edge`."""

    _hx: ClassVar[Any] = httpx2


class AsyncDeltaTransport(AsyncEdge, httpx2.AsyncBaseTransport):
    """The same for ``AsyncOpenAI``. Arguments and errors are those of :class:`AsyncEdge`."""

    _hx: ClassVar[Any] = httpx2


def client(**settings: Unpack[Settings]) -> httpx2.Client:
    """What ``OpenAI(http_client=…)`` takes: a client with a transport of these settings.

    Like the SDK's own it follows redirects, and has the time-outs that the SDK sets.
    """
    return httpx2.Client(transport=DeltaTransport(**settings), follow_redirects=True)


def async_client(**settings: Unpack[Settings]) -> httpx2.AsyncClient:
    """What ``AsyncOpenAI(http_client=…)`` takes."""
    return httpx2.AsyncClient(transport=AsyncDeltaTransport(**settings), follow_redirects=True)
