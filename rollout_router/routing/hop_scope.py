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


def completed(scope: Scope, *, state: Mapping[str, Any] | None) -> Scope:
    """The scope of a hop as the owner's public server would have made it.

    Args:
        scope: as it came over the private socket.
        state: the state of the owner's lifespan; None where its server has none.
    """
    headers: Headers = scope["headers"]
    client = (wire.first(headers, wire.CLIENT) or b"").decode("latin-1").rpartition(" ")
    known = client[2].isdigit()
    told = wire.without(headers, b"expect")  # the client's own was answered
    if (length := wire.first(headers, wire.EMPTY_BODY)) is not None:
        told = wire.without(told, b"transfer-encoding")
        told += [(b"content-length", length)] if length else []
    full = {
        **scope,
        "headers": told,
        HOP_KEY: True,
        "client": (client[0], int(client[2])) if known else None,
        "scheme": (wire.first(headers, wire.SCHEME) or b"http").decode("latin-1"),
        "root_path": unquote((wire.first(headers, wire.ROOT_PATH) or b"").decode("latin-1")),
    }
    if state is not None:
        full["state"] = dict(state)
    return full
