# SPDX-License-Identifier: Apache-2.0
"""The ASGI scope of a hop, made equal to that of a local request: workers behave as one. Pure.

What the forwarder's server knew of the client travels in private headers; what the owner's own
server would have added, its lifespan's state, the owner adds.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from rollout_router.asgi import Scope
from rollout_router.routing import headers as wire
from rollout_router.routing.headers import Headers

__all__ = ["HOP_KEY", "completed", "scope_headers"]

HOP_KEY: Final = "rollout_router.hop"
"""Set in the scope of what came over the private socket; nothing from outside can set it."""


def scope_headers(scope: Scope) -> Headers:
    """What a forwarder sends of its own scope."""
    sent = [(wire.SCHEME, scope.get("scheme", "http").encode())]
    if scope.get("root_path"):
        sent.append((wire.ROOT_PATH, quote(scope["root_path"]).encode()))
    if scope.get("client"):
        host, port = scope["client"]
        sent.append((wire.CLIENT, f"{host} {port}".encode()))
    return sent


def completed(
    scope: Scope, told: Mapping[bytes, bytes], *, state: Mapping[str, Any] | None
) -> Scope:
    """The scope of a hop as the owner's public server would have made it.

    Args:
        scope: as it came over the private socket.
        told: its headers, by name.
        state: the state of the owner's lifespan; None where its server has none.
    """
    headers: Headers = scope["headers"]
    client = told.get(wire.CLIENT, b"").decode("latin-1").rpartition(" ")
    known = client[2].isdigit()
    if b"expect" in told:  # the client's own was answered
        headers = wire.without(headers, b"expect")
    if (length := told.get(wire.EMPTY_BODY)) is not None:
        headers = wire.without(headers, b"transfer-encoding")
        headers += [(b"content-length", length)] if length else []
    full = {
        **scope,
        "headers": headers,
        HOP_KEY: True,
        "client": (client[0], int(client[2])) if known else None,
        "scheme": told.get(wire.SCHEME, b"http").decode("latin-1"),
        "root_path": unquote(told.get(wire.ROOT_PATH, b"").decode("latin-1")),
    }
    if state is not None:
        full["state"] = dict(state)
    return full
