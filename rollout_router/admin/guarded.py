# SPDX-License-Identifier: Apache-2.0
"""Around the admin application: who may, how much they may send, and what every answer carries."""

from typing import Any, Final

from rollout_router.admin.access import SECURITY_HEADERS, Access, AdminRefusal
from rollout_router.asgi import App, Message, Receive, Scope, Send
from rollout_router.errors import Refusal

__all__ = ["BODY_BYTES_MAX", "Guarded"]

BODY_BYTES_MAX: Final = 16 * 1024
"""Of a request: the longest holds a reason of a thousand characters."""

_ENDLESS: Final = "/api/stream"
_HEADERS: Final = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_OURS: Final = frozenset(name for name, _ in _HEADERS)


class Guarded:
    """An ASGI application of its own, so that nothing inside can forget it."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at the request first; what is refused reaches nothing inside."""
        if scope["type"] != "http":  # there are no websockets here
            raise RuntimeError(f"the admin address speaks HTTP alone, not {scope['type']}")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [one for one in message.get("headers", ()) if one[0].lower() not in _OURS]
                message = {**message, "headers": [*kept, *_HEADERS]}
            await send(message)

        try:
            self._access.check(scope["method"], _headers(scope))
            body = await _whole_body(receive) if scope["method"] not in {"GET", "HEAD"} else None
        except Refusal as refusal:
            await _refuse(refusal, send_with_headers)
            return
        if scope["method"] == "HEAD" and scope["path"] != _ENDLESS:
            scope = {**scope, "method": "GET"}  # the server leaves the body out
        await self._app(
            scope, receive if body is None else _again(body, receive), send_with_headers
        )


def _headers(scope: Scope) -> dict[str, str]:
    """By lower-case name. Of a name that comes twice both are refused, joined to what none is."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


async def _whole_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise AdminRefusal("bad_request", "the request ended before its body did")
        body += message.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            said = f"a request has at most {BODY_BYTES_MAX} bytes; nothing happened"
            raise AdminRefusal("body_too_large", said)
        more = message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives *body*, which was read, and then what comes after it."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return given.pop() if given else await receive()

    return receive_again


async def _refuse(refusal: Refusal, send: Any) -> None:
    headers = refusal.headers()
    if refusal.code == "admin_token_invalid":
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body()})
