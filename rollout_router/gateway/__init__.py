# SPDX-License-Identifier: Apache-2.0
"""The model server that ships with the product, and the capture of its calls (F1, F2, R4).

    router ── Capture ── create_app(model) ── Scripted | Upstream
                 └────── CaptureSink

``Capture`` and ``CaptureSink`` serve any ASGI application; the model server is one of them. Each
name is imported on first use: a worker around an application of its own needs no web framework.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
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

_HOME: Final[Mapping[str, str]] = {
    "Capture": "capture",
    "CaptureSink": "sink",
    "Dialect": "model",
    "EpochFenced": "sink",
    "Model": "model",
    "ModelAnswer": "model",
    "ModelRequest": "model",
    "Scripted": "scripted",
    "SinkRefused": "sink",
    "SinkUnavailable": "sink",
    "Upstream": "upstream",
    "create_app": "app",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
