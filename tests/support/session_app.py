# SPDX-License-Identifier: Apache-2.0
"""An application with sessions in memory: a cookie names one, and its calls are counted.

Served by ``rollout-router serve --app support.session_app:app --session-cookie sid``; ``installed``
is for any other server.
``/open`` makes a session, ``/close`` ends one, every other path counts a call of one.
"""

import json
import os
import uuid
from pathlib import Path

from rollout_router import SessionSettings, Settings, close_session, install
from rollout_router.asgi import App, Receive, Scope, Send

__all__ = ["app", "installed"]

_calls: dict[str, int] = {}


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer ``{"pid", "calls"}``; 404 where the session is not known in this process."""
    if scope["type"] != "http":
        raise RuntimeError("this application serves HTTP alone")
    while (await receive()).get("more_body", False):
        pass
    session_id = _cookie(scope)
    status, headers = 200, [(b"content-type", b"application/json")]
    if scope["path"] == "/open":
        session_id = uuid.uuid4().hex
        _calls[session_id] = 0
        headers.append((b"set-cookie", f"sid={session_id}; Path=/; HttpOnly".encode()))
    elif session_id not in _calls:
        status = 404
    elif scope["path"] == "/close":
        del _calls[session_id]
        close_session(scope)
    else:
        _calls[session_id] += 1
    body = json.dumps({"pid": os.getpid(), "calls": _calls.get(session_id)}).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _cookie(scope: Scope) -> str:
    for key, value in scope["headers"]:
        if key == b"cookie":
            return str(value.decode().removeprefix("sid="))
    return ""


installed: App = app
if "TEST_STATE_DIR" in os.environ:
    installed = install(
        app,
        Settings(
            state_dir=Path(os.environ["TEST_STATE_DIR"]),
            run_dir=Path(os.environ["TEST_RUN_DIR"]),
            route_always=True,
            sessions=SessionSettings(cookie="sid"),
        ),
    )
