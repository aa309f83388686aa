# SPDX-License-Identifier: Apache-2.0
"""Deltas within a client that stands on ``httpx``, as the OpenAI SDK 2.x does. Laws: sdk/edges.py.

    OpenAI(base_url=…, http_client=client(rollout="r1"))

No server imports this: httpx is the user's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import httpx

from rollout_router.transport.sdk.edges import AsyncEdge, Edge

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rollout_router.transport.sdk.decide import Settings

__all__ = ["AsyncDeltaTransport", "DeltaTransport", "async_client", "client"]


class DeltaTransport(Edge, httpx.BaseTransport):
    """A transport that sends what is new. Arguments and errors are those of :class:`Edge`."""

    _hx: ClassVar[Any] = httpx


class AsyncDeltaTransport(AsyncEdge, httpx.AsyncBaseTransport):
    """The same for ``AsyncOpenAI``. Arguments and errors are those of :class:`AsyncEdge`."""

    _hx: ClassVar[Any] = httpx


def client(**settings: Unpack[Settings]) -> httpx.Client:
    """What ``OpenAI(http_client=…)`` takes: a client with a transport of these settings.

    Like the SDK's own it follows redirects, and has the time-outs that the SDK sets.
    """
    return httpx.Client(transport=DeltaTransport(**settings), follow_redirects=True)


def async_client(**settings: Unpack[Settings]) -> httpx.AsyncClient:
    """What ``AsyncOpenAI(http_client=…)`` takes."""
    return httpx.AsyncClient(transport=AsyncDeltaTransport(**settings), follow_redirects=True)
