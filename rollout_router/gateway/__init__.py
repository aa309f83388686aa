# SPDX-License-Identifier: Apache-2.0
"""The model server that ships with the product, and the capture of its calls (F1, F2, R4).

    router ── Capture ── create_app(model) ── Scripted | Upstream
                 └────── CaptureSink

``Capture`` and ``CaptureSink`` serve any ASGI application; the model server is one of them.
"""

from rollout_router.gateway.app import create_app
from rollout_router.gateway.capture import Capture
from rollout_router.gateway.model import Dialect, Model, ModelAnswer, ModelRequest
from rollout_router.gateway.scripted import Scripted
from rollout_router.gateway.sink import CaptureSink, EpochFenced, SinkRefused, SinkUnavailable
from rollout_router.gateway.upstream import Upstream

__all__ = [
    "Capture",
    "CaptureSink",
    "Dialect",
    "EpochFenced",
    "Model",
    "ModelAnswer",
    "ModelRequest",
    "Scripted",
    "SinkRefused",
    "SinkUnavailable",
    "Upstream",
    "create_app",
]
